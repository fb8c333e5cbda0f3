"""What is worth knowing of an update besides its losses: exact distributions, health of the features, scales."""

import torch
from torch import Tensor

from simic.agent.distributions import Joint
from simic.agent.normalization import Reduce
from simic.agent.policy import ActorCritic, Evaluation
from simic.agent.rollout import Rollout

DORMANT_SHARE = 0.025  # of the mean activation of the layer (Sokar et al. 2023, arXiv 2302.12902)
SATURATED = 0.99
RANK_SHARE = 0.99
RANK_ROWS = 512  # the decomposition is cubic
PROBE_ROWS = 512  # each enumerates ops × slots × heads


class Probe:
    """The policy's exact distribution on some whole rows of a minibatch, kept to be compared with a later one."""

    def __init__(self, policy: ActorCritic, batch: Rollout, seen: Evaluation) -> None:
        steps, envs = batch.valid.shape
        rows = torch.arange(min(envs, max(1, PROBE_ROWS // steps)), device=batch.valid.device)
        self.policy, self.batch = policy, batch.select(rows)
        self.before = self._joint(seen.z[:, : len(rows)])

    def _joint(self, z: Tensor) -> Joint:
        with torch.no_grad():
            masks = {name: mask.flatten(0, 1) for name, mask in self.batch.masks.items()}
            return self.policy.joint(z.flatten(0, 1), masks)

    def _mean(self, x: Tensor, reduce: Reduce | None) -> Tensor:
        valid = self.batch.valid.flatten()
        total = torch.stack((torch.where(valid, x, 0.0).sum(), valid.sum().to(x.dtype)))
        total = total if reduce is None else reduce(total, "sum")
        return total[0] / total[1]

    def entropy(self, reduce: Reduce | None) -> Tensor:
        """Mean entropy of whole actions in nats, of the policy as it was."""
        return self._mean(self.before.entropy(), reduce)

    def divergence(self, reduce: Reduce | None) -> Tensor:
        """Mean KL(as it was ‖ as it is now) of whole actions in nats."""
        with torch.no_grad():
            now = replay(self.policy, self.batch)
        return self._mean(self.before.kl(self._joint(now.z)), reduce)


def replay(policy: ActorCritic, batch: Rollout) -> Evaluation:
    """The recorded decisions under the present weights."""
    starts = batch.starts if batch.starts_inside else None
    return policy.evaluate(batch.observation(), batch.actions, batch.state, batch.valid, starts)


@torch.no_grad()
def health(seen: Evaluation) -> dict[str, Tensor]:
    """Hidden norm, growth and saturation, dormant units and rank, of one minibatch of this process."""
    names = ("hidden_norm", "hidden_growth", "hidden_saturated", "dormant_units", "feature_rank")
    if seen.values.numel() == 0:
        return dict.fromkeys(names, seen.values.new_tensor(torch.nan))
    rms = seen.hidden.square().mean(dim=(1, 2)).sqrt()
    activity = seen.encoded.abs().mean(dim=(0, 1))
    saturated = (seen.hidden.abs() > SATURATED).float().mean()
    dormant = (activity <= DORMANT_SHARE * activity.mean()).float().mean()
    growth = rms[-1] / rms[0].clamp(min=1e-8)
    measured = (seen.hidden.square().mean().sqrt(), growth, saturated, dormant, _rank(seen.z.flatten(0, 1)))
    return dict(zip(names, measured, strict=True))


def _rank(z: Tensor) -> Tensor:
    """Smallest k whose largest singular values hold 99 % of the sum (Kumar et al. 2021, arXiv 2010.14498)."""
    stride = -(-len(z) // RANK_ROWS)
    singular = torch.linalg.svdvals(z[::stride].float().nan_to_num())
    share = singular.cumsum(dim=0) / singular.sum().clamp(min=1e-12)
    return (share < RANK_SHARE).sum() + 1


@torch.no_grad()
def scales(rollout: Rollout, reduce: Reduce | None) -> dict[str, Tensor]:
    """Mean, standard deviation and largest absolute value of advantages and returns, and the explained variance."""
    assert rollout.advantages is not None
    assert rollout.returns is not None
    residual = rollout.returns - rollout.values
    columns = torch.stack((rollout.advantages, rollout.returns, rollout.values, residual), dim=-1).double()
    rows = torch.where(rollout.valid[..., None], columns, 0.0).flatten(0, 1)
    every = reduce or (lambda x, _: x)
    count = every(rollout.valid.sum().double(), "sum")
    mean = every(rows.sum(dim=0), "sum") / count
    centred = torch.where(rollout.valid.flatten()[:, None], rows - mean, 0.0)
    variance = every(centred.square().sum(dim=0), "sum") / count
    peak = every(rows.abs().amax(dim=0), "max")
    unexplained = torch.where(variance[1] > 1e-8, variance[3] / variance[1], torch.nan)
    return {
        "advantage_mean": mean[0],
        "advantage_std": variance[0].sqrt(),
        "advantage_max_abs": peak[0],
        "return_mean": mean[1],
        "return_std": variance[1].sqrt(),
        "return_max_abs": peak[1],
        "value_mean": mean[2],
        "explained_variance": 1.0 - unexplained,
        "samples": count,
    }
