"""Proximal policy optimisation over whole recurrent rows (Schulman et al. 2017, arXiv 1707.06347)."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from simic import params, rng
from simic.agent.advantages import normalized
from simic.agent.diagnostics import Probe, health, replay, scales
from simic.agent.losses import Terms, Usage, terms, usage
from simic.agent.metrics import Log, UpdateMetrics, summarize
from simic.agent.normalization import Reduce
from simic.agent.optimizer import Adam, refuse_mismatch
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Rollout

EARLY_STOP = 1.5  # times target_kl (Spinning Up's PPO)
RATIO_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2}


class PPO:
    """The learner of one policy.

    ``total_updates`` is the length of the entropy schedule. Over several processes ``reduce(tensor, "sum" | "max")``
    combines a tensor of all of them and ``all_env_ids`` names every environment; all then take the same steps.
    """

    def __init__(
        self,
        policy: ActorCritic,
        settings: params.PPO,
        rng_seed: int,
        *,
        total_updates: int,
        reduce: Reduce | None = None,
        all_env_ids: Tensor | None = None,
    ) -> None:
        self.policy, self.settings, self.rng_seed = policy, settings, rng_seed
        self.total_updates, self.reduce = total_updates, reduce
        self.all_env_ids = None if all_env_ids is None else all_env_ids.cpu()
        self.adam = Adam(policy, settings.learning_rate, settings.adam_eps)
        self.groups = policy.groups()
        self.updates = 0  # with at least one step: schedules count what was executed
        self.skipped_steps = 0

    def entropy_coef(self) -> float:
        """Linear from ``entropy_coef`` in the first update to ``entropy_coef_final`` in the last."""
        done = min(1.0, self.updates / max(1, self.total_updates - 1))
        return self.settings.entropy_coef + done * (self.settings.entropy_coef_final - self.settings.entropy_coef)

    def update(self, rollout: Rollout, iteration: int) -> UpdateMetrics:
        """Several epochs of minibatches over environments; the rollout must carry advantages and returns."""
        if rollout.advantages is None:
            raise ValueError("the rollout has no advantages: call with_advantages first")
        batch = replace(rollout, advantages=normalized(rollout.advantages, rollout.valid, self.reduce))
        everyone = rollout.env_ids.cpu() if self.all_env_ids is None else self.all_env_ids
        used = usage(self.policy, rollout, min(self.settings.minibatches, len(everyone)), self.reduce)
        log = Log(once={**scales(rollout, self.reduce), "samples_by_head": used.open_rows})
        start, entropy_coef = self._weights(), self.entropy_coef()
        probe: Probe | None = None
        for epoch, envs in self._minibatches(rollout.env_ids.cpu(), everyone.sort().values, iteration, used.parts):
            log.epochs = epoch + 1
            rows = envs.to(rollout.env_ids.device)
            part = batch.select(rows)
            probe = self._minibatch(part, used.select(rows), entropy_coef, log, probe)
            if log.stopped:
                break
        return self._finish(log, probe, start, entropy_coef)

    def _minibatches(
        self, env_ids: Tensor, everyone: Tensor, iteration: int, parts: int
    ) -> Iterator[tuple[int, Tensor]]:
        """Epoch and positions in ``env_ids``; the order is a hash, the same for every grouping of environments."""
        for epoch in range(self.settings.epochs):
            order = rng.permutation(rng.key(self.rng_seed, rng.Purpose.MINIBATCH, iteration, epoch), len(everyone))
            for chosen in everyone[order].tensor_split(parts):
                yield epoch, torch.isin(env_ids, chosen).nonzero().flatten()

    def _minibatch(self, part: Rollout, used: Usage, entropy_coef: float, log: Log, probe: Probe | None) -> Probe:
        """One step, unless the divergence is too large (then the update ends) or something is not finite."""
        seen = replay(self.policy, part)
        found = terms(seen, part, used, self.settings, entropy_coef)
        if probe is None:
            probe = Probe(self.policy, part, seen)
            log.once |= health(seen) | {"joint_entropy": probe.entropy(self.reduce)}
        self.adam.backward(found.loss, self.reduce)
        norms = self._norms()
        self._record(found, log)
        diverged, finite = self._verdict(log.sums[-1], norms[-1])
        log.stopped = diverged and finite
        log.skipped += not finite
        log.stepped.append(finite and not diverged)
        if log.stepped[-1]:
            log.norms.append(norms)
            self.adam.step(norms[-1], self.settings.max_grad_norm)
        return probe

    def _verdict(self, sums: dict[str, Tensor], norm: Tensor) -> tuple[bool, bool]:
        """Too far from the old policy? Loss and gradient finite? From sums over all processes, so all agree."""
        kl = sums["kl"].sum() / sums["rows"].clamp(min=1)
        limit = torch.inf if self.settings.target_kl is None else EARLY_STOP * self.settings.target_kl
        loss = sums["policy_loss"] + sums["value_loss"] + sums["entropy"].sum()
        diverged, finite = torch.stack((kl > limit, (norm + kl + loss).isfinite())).tolist()
        return diverged, finite

    def _record(self, found: Terms, log: Log) -> None:
        sums, peaks = found.sums, found.peaks
        if self.reduce is not None:
            sums = _reduced(sums, "sum", self.reduce)
            peaks = _reduced(peaks, "max", self.reduce)
        log.sums.append(sums)
        log.peaks.append(peaks)

    def _norms(self) -> Tensor:
        """Gradient norms before clipping by part of the policy, and the total last."""
        parts = ([p.grad for p in group if p.grad is not None] for group in self.groups.values())
        norms = torch.stack([torch.nn.utils.get_total_norm(part) for part in parts])
        return torch.cat((norms, norms.square().sum().sqrt()[None]))

    @torch.no_grad()
    def _weights(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.adam.parameters])

    def _finish(self, log: Log, probe: Probe | None, start: Tensor, entropy_coef: float) -> UpdateMetrics:
        assert probe is not None  # there is at least one epoch and one environment
        log.once["exact_kl"] = probe.divergence(self.reduce)
        log.once["update_ratio"] = (self._weights() - start).norm() / start.norm()
        log.once["max_second_moment"] = self.adam.largest_second_moment()
        self.updates += any(log.stepped)
        self.skipped_steps += log.skipped
        heads = tuple(head.name for head in self.policy.action_spec.heads)
        tolerance = RATIO_TOLERANCE[self.policy.encoder.weight.dtype]
        max_norm = self.settings.max_grad_norm
        return summarize(log, heads, tuple(self.groups), entropy_coef, tolerance, max_norm, self.updates)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, moments and counters as plain tensors by name; copies."""
        counters = {"updates": self.updates, "skipped_steps": self.skipped_steps}
        parts = {
            "policy": {name: tensor.detach().clone() for name, tensor in self.policy.state_dict().items()},
            "adam": self.adam.state_dict(),
            "counter": {name: torch.tensor(value) for name, value in counters.items()},
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on exactly from there; SimicError when a tensor is missing, unknown or of another shape."""
        refuse_mismatch("the agent's checkpoint", self.state_dict(), state)
        parts: dict[str, dict[str, Tensor]] = {"policy": {}, "adam": {}, "counter": {}}
        for name, tensor in state.items():
            part, _, own = name.partition(".")
            parts[part][own] = tensor
        self.policy.load_state_dict(parts["policy"])
        self.adam.load_state_dict(parts["adam"])
        self.updates = int(parts["counter"]["updates"])
        self.skipped_steps = int(parts["counter"]["skipped_steps"])


def _reduced(tensors: dict[str, Tensor], how: str, reduce: Reduce) -> dict[str, Tensor]:
    """All of them in one exchange."""
    flat = reduce(torch.cat([tensor.flatten() for tensor in tensors.values()]), "sum" if how == "sum" else "max")
    parts = flat.split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}
