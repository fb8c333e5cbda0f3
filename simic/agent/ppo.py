"""Proximal policy optimisation over whole recurrent rows (Schulman et al. 2017, arXiv 1707.06347).

An iteration from top to bottom: ``collect`` (rollout.py) → ``with_advantages`` → ``PPO.update``: minibatches → losses →
step → stop.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from simic import params, rng
from simic.agent import distributions
from simic.agent.metrics import Log, Names, UpdateMetrics, summarize
from simic.agent.normalization import Reduce
from simic.agent.optimizer import Adam, refuse_mismatch
from simic.agent.policy import ActorCritic, Replayed
from simic.agent.rollout import Rollout, single_step_ids
from simic.transfer import upload

EARLY_STOP = 1.5  # times target_kl (Spinning Up's PPO)
RATIO_TOLERANCE = 1e-4
LINEAR_END = 0.2  # of the learning rate, in the last update
HEAD_LOG_RATIO_LIMIT = 20.0  # e^20 ≈ 4.9e8; float32 overflows at e^88
JOINT_LOG_RATIO_LIMIT = 30.0
ADVANTAGE_SIGMA_FLOOR = 0.1  # for scaled rewards: below it differences are noise and are not blown up to 1


# Advantages.


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns, all ``[T, E]``; both 0 where not valid (Schulman et al. 2016, arXiv 1506.02438).

    A terminal state is worth 0, also when it is truncated as well; a truncated one is worth its bootstrap value. The
    trace is cut at every end, and where a row's valid steps stop without one.
    """
    follows = torch.cat((valid[1:], torch.zeros_like(valid[:1])))
    goes_on = follows & ~(terminated | truncated)
    delta = rewards + gamma * torch.where(terminated, 0.0, next_values) - values
    advantages = torch.zeros_like(values)
    trace = torch.zeros_like(values[0])
    for t in reversed(range(len(values))):
        # A_t = δ_t + γ λ A_{t+1}
        trace = torch.where(valid[t], delta[t] + gamma * gae_lambda * torch.where(goes_on[t], trace, 0.0), 0.0)
        advantages[t] = trace
    return advantages, torch.where(valid, advantages + values, 0.0)


def with_advantages(rollout: Rollout, rewards: Tensor, gamma: float, gae_lambda: float) -> Rollout:
    """Return the rollout with its advantages and returns, computed from the scaled ``rewards [T, E]``."""
    ends = rollout.terminated, rollout.truncated, rollout.valid
    advantages, returns = gae(rewards, rollout.values, rollout.next_values, *ends, gamma, gae_lambda)
    return replace(rollout, advantages=advantages, returns=returns)


def normalized(advantages: Tensor, valid: Tensor, reduce: Reduce | None = None) -> Tensor:
    """Return (A − μ) / max(σ, floor) over the valid rows of all processes; 0 where not valid."""
    every = reduce or (lambda x, _: x)
    count = every(valid.sum().to(advantages.dtype), "sum").clamp(min=1)
    mean = every(torch.where(valid, advantages, 0.0).sum(), "sum") / count
    centred = torch.where(valid, advantages - mean, 0.0)
    sigma = (every(centred.square().sum(), "sum") / count).sqrt()
    return centred / sigma.clamp(min=ADVANTAGE_SIGMA_FLOOR)


# Which rows count.


@dataclass(frozen=True)
class Usage:
    """Which heads mattered where: ``relevant``, and ``open`` where more than one choice was legal as well.

    Counts are over all processes; ``N`` valid rows in so many ``minibatches``. A sum over one of them times
    minibatches / N is unbiased for the mean over the rollout, whatever rows fall into it.
    """

    relevant: Tensor  # [T, E, heads] bool
    open: Tensor  # [T, E, heads] bool
    rows: Tensor  # N, may be 0
    open_rows: Tensor  # [heads]
    relevant_rows: Tensor  # [heads]
    minibatches: int

    def select(self, envs: Tensor) -> "Usage":
        return replace(self, relevant=self.relevant.index_select(1, envs), open=self.open.index_select(1, envs))


@torch.no_grad()
def usage(policy: ActorCritic, rollout: Rollout, minibatches: int, reduce: Reduce | None) -> Usage:
    """Read off the sampled actions and the masks they were sampled under."""
    relevant = policy.relevance[rollout.actions[..., 0]] & rollout.valid[..., None]
    several = torch.stack([_options(policy, rollout, head) > 1 for head in range(len(policy.heads))], dim=-1)
    by_head = ((relevant & several).sum(dim=(0, 1)), relevant.sum(dim=(0, 1)))
    counts = torch.cat((rollout.valid.sum()[None], *by_head)).to(rollout.values.dtype)
    counts = counts if reduce is None else reduce(counts, "sum")
    open_rows, relevant_rows = counts[1:].chunk(2)
    return Usage(relevant, relevant & several, counts[0], open_rows, relevant_rows, minibatches)


def _options(policy: ActorCritic, rollout: Rollout, head: int) -> Tensor:
    chosen = list(rollout.actions[..., :2].unbind(dim=-1))
    mask = distributions.legal(policy.action_spec, rollout.masks, head, chosen)
    size = policy.action_spec.heads[head].size
    return torch.full_like(chosen[0], size) if mask is None else mask.sum(dim=-1)


# Losses.


def surrogate(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """min(r A, clip(r, 1 ± ε) A), element by element."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages)


def policy_objective(
    log_ratio: Tensor, relevant: Tensor, advantages: Tensor, settings: params.PPOParams, weights: Tensor | None = None
) -> Tensor:
    """What PPO maximises, per row ``[T, N]``, from log-ratios per head ``[T, N, heads]``.

    ``joint``: one ratio of the whole action. ``per_head``: a clipped term for each relevant head, summed, so that at
    ratio 1 both have the same gradient, unless the heads have ``weights``.
    """
    if settings.ratio == "joint":
        joint = log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
        return surrogate(joint, advantages, settings.clip_range)
    by_head = surrogate(log_ratio, advantages[..., None], settings.clip_range)
    by_head = by_head if weights is None else by_head * weights
    return torch.where(relevant, by_head, 0.0).sum(dim=-1)


def k3(log_ratio: Tensor) -> Tensor:
    """e^Δ − 1 − Δ ≥ 0, whose mean under the old policy is KL(old ‖ new) (Schulman, "Approximating KL divergence")."""
    return torch.expm1(log_ratio) - log_ratio


@dataclass(frozen=True)
class Terms:
    """The loss of a minibatch and what is reported of it, all still on the device.

    ``sums`` are added over processes (name → number or ``[heads]``), of ``peaks`` the largest counts.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    peaks: dict[str, Tensor]

    def joined(self, other: "Terms") -> "Terms":
        """Of both parts of a minibatch; the loss of the first alone, since its gradient is taken already."""
        sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        peaks = {name: torch.maximum(value, other.peaks[name]) for name, value in self.peaks.items()}
        return Terms(self.loss, sums, peaks)

    def reduced(self, reduce: Reduce | None) -> "Terms":
        """Of all processes, in one exchange for the sums and one for the peaks; the loss stays this one's."""
        if reduce is None:
            return self
        return Terms(self.loss, _exchanged(self.sums, "sum", reduce), _exchanged(self.peaks, "max", reduce))


def _exchanged(tensors: dict[str, Tensor], how: Literal["sum", "max"], reduce: Reduce) -> dict[str, Tensor]:
    flat = reduce(torch.cat([tensor.flatten() for tensor in tensors.values()]), how)
    parts = flat.split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def head_weights(used: Usage, settings: params.PPOParams) -> Tensor | None:
    """``head_weight: mean`` gives every head its own mean, however seldom it mattered: N / n_k."""
    return used.rows.clamp(min=1) / used.relevant_rows.clamp(min=1) if settings.head_weight == "mean" else None


def entropy_sum(seen: Replayed, used: Usage) -> Tensor:
    """Normalised entropy ``[heads]``, summed over open rows."""
    return torch.where(used.open, seen.entropy, 0.0).sum(dim=(0, 1))


def mean_entropy(seen: Replayed, used: Usage) -> Tensor:
    """Unbiased estimate from a minibatch of the rollout's mean over open rows ``[heads]``, for the loss. Above 1 it
    can be where more rows are open than in other minibatches. 0 of a head that was never open.
    """
    return entropy_sum(seen, used) * used.minibatches / used.open_rows.clamp(min=1)


def floor_pull(entropy: Tensor, floors: Tensor, coefficient: float) -> Tensor:
    """−d/dH of c · max(0, f − H)², ``[heads]``: what the penalty for an entropy below its floor weighs it with."""
    return 2.0 * coefficient * (floors - entropy).clamp(min=0)


def terms(
    seen: Replayed, batch: Rollout, used: Usage, settings: params.PPOParams, entropy_coef: float | Tensor
) -> Terms:
    """Return loss = policy + c_v · value − Σ_k c_k · mean normalised entropy of head k, as sums scaled by
    minibatches / N, with the sums and peaks that are reported.

    ``entropy_coef`` is one number for all heads, or one for each ``[heads]``.
    """
    assert batch.advantages is not None
    assert batch.returns is not None
    difference = torch.where(used.relevant, seen.log_probs - batch.log_probs, 0.0)
    log_ratio = difference.clamp(-HEAD_LOG_RATIO_LIMIT, HEAD_LOG_RATIO_LIMIT)
    scale = used.minibatches / used.rows.clamp(min=1)

    def over_rows(x: Tensor) -> Tensor:
        return scale * torch.where(batch.valid, x, 0.0).sum()

    weights = head_weights(used, settings)
    policy = -over_rows(policy_objective(log_ratio, used.relevant, batch.advantages, settings, weights))
    value = over_rows(0.5 * (seen.values - batch.returns).square())
    entropy = mean_entropy(seen, used)
    bonus = (entropy_coef * entropy).sum() if isinstance(entropy_coef, Tensor) else entropy_coef * entropy.sum()
    loss = policy + settings.value_coef * value - bonus
    with torch.no_grad():
        return Terms(
            loss,
            {"policy_loss": policy.detach(), "value_loss": value.detach(), "bonus": bonus.detach()}
            | {"entropy": entropy_sum(seen, used)}
            | _sums(log_ratio, batch.valid, used, settings.clip_range),
            _peaks(difference, seen, batch.valid),
        )


def _sums(log_ratio: Tensor, valid: Tensor, used: Usage, clip_range: float) -> dict[str, Tensor]:
    """Sums over rows with their counts; divergences of irrelevant heads are exactly 0 since their log-ratio is."""
    joint = log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
    ratio = joint.exp()
    outside = (ratio - 1.0).abs() > clip_range
    return {
        "rows": valid.sum().to(ratio.dtype),
        "open": used.open.sum(dim=(0, 1)).to(ratio.dtype),
        "kl": k3(log_ratio).sum(dim=(0, 1)),
        "kl_k1": -joint.sum(),
        "ratio": torch.where(valid, ratio, 0.0).sum(),
        "clipped": (outside & valid).sum().to(ratio.dtype),
    }


def _peaks(difference: Tensor, seen: Replayed, valid: Tensor) -> dict[str, Tensor]:
    """Largest values over rows; ``deviation`` is before any clamp: max |r_k − 1| over heads, and |r − 1|."""
    joint = difference.sum(dim=-1)
    return {
        "deviation": torch.maximum(largest(difference.expm1().abs()), largest(joint.expm1().abs())),
        "ratio_max": largest(torch.where(valid, joint, -torch.inf).exp()),
        "minus_ratio_min": largest(-torch.where(valid, joint, torch.inf).exp()),
        "log_prob": largest(seen.log_probs.abs()),
    }


def largest(x: Tensor) -> Tensor:
    """Maximum, −inf of nothing (a process may hold no environment of a minibatch); NaN stays NaN."""
    return x.max() if x.numel() else x.new_tensor(-torch.inf)


# The update.


class UpdateObserver(Protocol):
    """Measures an update from outside; ``simic.agent.health.Health`` is one. It changes nothing and reads nothing from
    the device: what ``after`` returns is fetched together with the losses.
    """

    def before(self, rollout: Rollout) -> None: ...

    def first(self, part: Rollout, seen: Replayed) -> None: ...

    def after(self) -> dict[str, Tensor]: ...


class PPO:
    """The learner of one policy.

    ``total_updates`` is the length of the entropy schedule. Over several processes ``reduce(tensor, "sum" | "max")``
    combines a tensor of all of them and ``all_env_ids`` names every environment; all then take the same steps.

    Whether a step is taken is decided on the policy's device, which skips the others; the host reads one tensor at the
    end of an update.
    """

    def __init__(
        self,
        policy: ActorCritic,
        settings: params.PPOParams,
        rng_seed: int,
        *,
        total_updates: int,
        reduce: Reduce | None = None,
        all_env_ids: Tensor | None = None,
    ) -> None:
        self.policy, self.settings, self.rng_seed = policy, settings, rng_seed
        self.total_updates, self.reduce = total_updates, reduce
        self.all_env_ids = None if all_env_ids is None else all_env_ids.cpu()
        self.groups, like = policy.groups(), policy.like
        self.adam = Adam(policy, settings.learning_rate, settings.adam_eps)
        everything = self.adam.parameters
        self.members = self._membership([*self.groups.values(), everything])
        self.layers = policy.layers()
        self.in_layer = self._membership(list(self.layers.values()))
        self.reads_are_free = like.device.type == "cpu"
        spec = policy.action_spec
        self.entropy_scale = like.new_tensor(spec.by_head(settings.entropy_scale, 1.0, "ppo.entropy_scale"))
        self.entropy_floor = like.new_tensor(spec.by_head(settings.entropy_floor, 0.0, "ppo.entropy_floor"))
        self.updates = 0  # with at least one step: schedules count what was executed
        self.annealed_from = 0
        self.skipped_steps = 0
        self._known_ids: tuple[Tensor, Tensor] | None = None

    def _membership(self, parts: list[list[torch.nn.Parameter]]) -> Tensor:
        """Which parameters ``[parts, parameters]`` belong to each part."""
        ids = [{id(parameter) for parameter in part} for part in parts]
        everything = [[id(parameter) in part for parameter in self.adam.parameters] for part in ids]
        return torch.tensor(everything, device=self.policy.like.device)

    def anneal_over(self, updates: int) -> None:
        """The entropy coefficient starts again and reaches its final value in the last of so many more updates."""
        self.annealed_from, self.total_updates = self.updates, updates

    def _progress(self) -> float:
        """Of the schedules: 0 in the first update, 1 in the last."""
        return min(1.0, (self.updates - self.annealed_from) / max(1, self.total_updates - 1))

    def entropy_coef(self) -> float:
        """Linear from ``entropy_coef`` in the first update to ``entropy_coef_final`` in the last."""
        done = self._progress()
        return self.settings.entropy_coef + done * (self.settings.entropy_coef_final - self.settings.entropy_coef)

    def learning_rate(self) -> float:
        """Return the rate of this update: constant, or linear to a fifth in the last."""
        falls = 1.0 - LINEAR_END if self.settings.learning_rate_schedule == "linear" else 0.0
        return self.settings.learning_rate * (1.0 - falls * self._progress())

    def update(self, rollout: Rollout, iteration: int, observer: UpdateObserver | None = None) -> UpdateMetrics:
        """Learn from several epochs of minibatches over environments, of a policy without memory over single steps; the
        rollout must carry advantages and returns. What only the ``observer`` measures is NaN without one.
        """
        if rollout.advantages is None:
            raise ValueError("the rollout has no advantages: call with_advantages first")
        own = self._on_host(rollout.env_ids)
        everyone = own if self.all_env_ids is None else self.all_env_ids
        if not self.policy.remembers:
            # Steps of one episode resemble each other; a minibatch of steps from everywhere has a better gradient.
            own, everyone = (single_step_ids(ids, len(rollout.valid)) for ids in (own, everyone))
            rollout = rollout.single_steps()
        assert rollout.advantages is not None
        if observer is not None:
            observer.before(rollout)

        # Advantages: where one action was legal nothing was decided, and they say nothing about a decision.
        used = usage(self.policy, rollout, min(self.settings.minibatches, len(everyone)), self.reduce)
        decided = used.open.any(dim=-1)
        batch = replace(rollout, advantages=normalized(rollout.advantages, decided, self.reduce))

        rate, entropy_coef, log = self.learning_rate(), self.entropy_coef(), Log()
        alive = torch.ones((), dtype=torch.bool, device=batch.valid.device)  # until the divergence ends the update
        # Minibatches.
        for epoch, envs in self._minibatches(own, everyone.sort().values, iteration, used.minibatches):
            pieces = upload(envs, batch.valid.device).tensor_split(self.settings.gradient_accumulation)
            # Losses: replay, objective and gradient.
            coefs = self._entropy_coefs(batch, used, pieces, entropy_coef)
            gradients, found = self._gradients(batch, used, pieces, coefs, None if log.epochs else observer)
            (norms, by_layer), found = self._take(gradients), found.reduced(self.reduce)

            # Step, unless the divergence is too large or something is not finite.
            diverged, finite = self._verdict(found, norms[-1])
            self._step(rate, norms[-1], alive & finite & ~diverged)
            verdicts = torch.stack((diverged, finite))
            log.add(epoch, found.sums | found.peaks | {"norms": norms, "by_layer": by_layer, "verdicts": verdicts})

            # Stop.
            alive = alive & ~(diverged & finite)
            if self.reads_are_free and not alive:
                break  # elsewhere asking would make the host wait: the rest is computed in vain, and skipped
        log.once |= {"samples": used.rows, "samples_by_head": used.open_rows}
        log.once |= {} if observer is None else observer.after()
        return self._report(log, rate, entropy_coef)

    def _on_host(self, env_ids: Tensor) -> Tensor:
        """The same tensor in every rollout is fetched once."""
        if self._known_ids is None or self._known_ids[0] is not env_ids:
            self._known_ids = env_ids, env_ids.cpu()
        return self._known_ids[1]

    def _minibatches(
        self, env_ids: Tensor, everyone: Tensor, iteration: int, parts: int
    ) -> Iterator[tuple[int, Tensor]]:
        """Epoch and positions in ``env_ids``; the order is a hash, the same for every grouping of environments."""
        for epoch in range(self.settings.epochs):
            order = rng.permutation(rng.key(self.rng_seed, rng.Purpose.MINIBATCH, iteration, epoch), len(everyone))
            for chosen in everyone[order].tensor_split(parts):
                yield epoch, torch.isin(env_ids, chosen).nonzero().flatten()

    def replay(self, batch: Rollout) -> Replayed:
        """The recorded decisions under the present weights."""
        starts = batch.starts if batch.starts_inside else None
        return self.policy.replay(batch.observation(), batch.actions, batch.state, batch.valid, starts)

    def _gradients(
        self,
        batch: Rollout,
        used: Usage,
        pieces: tuple[Tensor, ...],
        entropy_coef: float | Tensor,
        observer: UpdateObserver | None,
    ) -> tuple[tuple[Tensor, ...], Terms]:
        """Replay and losses of a minibatch, piece by piece: losses are sums, so their gradients add up to that of the
        whole. 0 for parameters that the loss does not reach.
        """
        gradients: tuple[Tensor, ...] = ()
        found: Terms | None = None
        for rows in pieces:
            part = batch.select(rows)
            seen = self.replay(part)
            loss = terms(seen, part, used.select(rows), self.settings, entropy_coef)
            if observer is not None and found is None:
                observer.first(part, seen)
            new = torch.autograd.grad(loss.loss, self.adam.parameters, allow_unused=True, materialize_grads=True)
            gradients = tuple(map(torch.add, gradients, new)) if gradients else new
            found = loss if found is None else found.joined(loss)
        assert found is not None
        return gradients, found

    def _entropy_coefs(
        self, batch: Rollout, used: Usage, pieces: tuple[Tensor, ...], entropy_coef: float
    ) -> float | Tensor:
        """What each head's entropy is worth: one number unless heads differ. A floor needs the entropy of the whole
        minibatch, over all processes, before its gradient: one more look at it.
        """
        if not (self.settings.entropy_scale or self.settings.entropy_floor):
            return entropy_coef
        coefs = entropy_coef * self.entropy_scale
        if not self.settings.entropy_floor:
            return coefs
        with torch.no_grad():
            entropy = torch.stack(
                [mean_entropy(self.replay(batch.select(rows)), used.select(rows)) for rows in pieces]
            ).sum(dim=0)
        entropy = entropy if self.reduce is None else self.reduce(entropy, "sum")
        pull = floor_pull(entropy, self.entropy_floor, self.settings.entropy_floor_coef)
        return coefs + torch.where(used.open_rows > 0, pull, 0.0)

    def _take(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Hands the optimizer the gradients, summed over processes in one exchange. Their norms before clipping by part
        of the policy, the total last, and by layer.
        """
        parameters = self.adam.parameters
        if self.reduce is not None:
            flat = self.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
            split = flat.split([parameter.numel() for parameter in parameters])
            gradients = tuple(part.view_as(p) for part, p in zip(split, parameters, strict=True))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        squares = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).square()
        parts, layers = (torch.where(of, squares, 0.0).sum(dim=-1).sqrt() for of in (self.members, self.in_layer))
        return parts, layers

    def _step(self, rate: float, norm: Tensor, go: Tensor) -> None:
        """Clip the gradients, whose total norm is known, and move, unless ``go`` is False: then neither weights nor
        moments change, which a fused optimizer finds out by itself, on any device.
        """
        for group in self.adam.param_groups:
            group["lr"] = rate
        # As torch.amp's GradScaler tells a fused optimizer what to divide by, and that a gradient is not finite.
        self.adam.grad_scale = (norm / self.settings.max_grad_norm).clamp(min=1.0).float()
        self.adam.found_inf = (~go).float()
        self.adam.step()

    def _verdict(self, found: Terms, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether the divergence is too large, and whether loss and gradient are finite. From sums over all
        processes, so all agree.
        """
        sums, target = found.sums, self.settings.target_kl
        kl = sums["kl"].sum() / sums["rows"].clamp(min=1)
        loss = sums["policy_loss"] + sums["value_loss"] + sums["entropy"].sum()
        return kl > (torch.inf if target is None else EARLY_STOP * target), (norm + kl + loss).isfinite()

    def _report(self, log: Log, rate: float, entropy_coef: float) -> UpdateMetrics:
        host, course = log.to_host()
        self.updates += any(course.stepped)
        self.skipped_steps += course.skipped
        heads = self.policy.action_spec.heads
        own = tuple(head.name for head in heads), tuple(bool(head.lean) for head in heads)
        known = {"entropy_coef": entropy_coef, "updates": self.updates, "learning_rate": rate}
        known["adam_eps"] = self.adam.param_groups[0]["eps"]
        names = Names(*own, tuple(self.groups), tuple(self.layers))
        return summarize(host, course, names, self.settings, RATIO_TOLERANCE, **known)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, moments and counters as plain tensors by name; copies."""
        counters = {"updates": torch.tensor(self.updates), "skipped_steps": torch.tensor(self.skipped_steps)}
        parts = {
            "policy": {name: tensor.detach().clone() for name, tensor in self.policy.state_dict().items()},
            "adam": self.adam.tensors(),
            "counter": counters,
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
        self.adam.load_tensors(parts["adam"])
        self.updates = int(parts["counter"]["updates"])
        self.skipped_steps = int(parts["counter"]["skipped_steps"])
