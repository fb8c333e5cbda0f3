"""Proximal policy optimisation over whole recurrent rows (Schulman et al. 2017, arXiv 1707.06347)."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from simic import params, rng
from simic.agent.advantages import normalized
from simic.agent.compiled import Compiled
from simic.agent.diagnostics import Probe, clipped, health, replay, scales, unmeasured
from simic.agent.losses import Terms, Usage, floor_pull, mean_entropy, terms, usage
from simic.agent.metrics import HEALTH, Log, UpdateMetrics, summarize
from simic.agent.normalization import Reduce
from simic.agent.optimizer import Adam, refuse_mismatch
from simic.agent.policy import ActorCritic, Replayed
from simic.agent.rollout import Rollout, single_step_ids
from simic.transfer import upload

EARLY_STOP = 1.5  # times target_kl (Spinning Up's PPO)
RATIO_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2}
# After rsl_rl (Rudin et al. 2022, arXiv 2109.11978), which moves its rate at every minibatch and ends no update early:
# here once per update, or an update's small first divergences would raise what its last one ends.
RATE_FACTOR, RATE_BAND, RATE_MIN, RATE_MAX = 1.5, 2.0, 1e-5, 1e-2


def score(
    policy: ActorCritic, batch: Rollout, used: Usage, settings: params.PPOParams, entropy_coef: float | Tensor
) -> tuple[Replayed, Terms]:
    """The recorded decisions under the present weights, and the loss of that."""
    seen = replay(policy, batch)
    return seen, terms(seen, batch, used, settings, entropy_coef)


@dataclass
class Pass:
    """One update under way."""

    start: Tensor  # weights before it
    entropy_coef: float
    log: Log
    probe: Probe | None = None
    kl: Tensor | None = None  # the last divergence that was looked at
    alive: Tensor | None = field(default=None)  # deferred: 1 until the divergence ends the update


class PPO:
    """The learner of one policy.

    ``total_updates`` is the length of the entropy schedule. Over several processes ``reduce(tensor, "sum" | "max")``
    combines a tensor of all of them and ``all_env_ids`` names every environment; all then take the same steps.

    ``deferred`` (default: on a GPU) leaves to the device what depends on the data: a step that must not be taken is
    skipped there, and the host reads one tensor per update. Otherwise it looks at each minibatch and stops at once.
    Without ``watch`` the health of the network is not measured (NaN).
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
        deferred: bool | None = None,
        watch: bool = True,
    ) -> None:
        self.policy, self.settings, self.rng_seed = policy, settings, rng_seed
        self.total_updates, self.reduce, self.watch = total_updates, reduce, watch
        self.all_env_ids = None if all_env_ids is None else all_env_ids.cpu()
        self.score = Compiled(score) if settings.compile else score
        self.groups = policy.groups()
        like = policy.like
        self.deferred = like.is_cuda if deferred is None else deferred
        self.adam = Adam(
            policy,
            settings.learning_rate,
            settings.adam_eps,
            decayed=self.groups["value"],
            weight_decay=settings.value_weight_decay,
        )
        # Float32 on the device, as a fused optimizer wants it; a host counts in float64.
        self.learning_rate = torch.tensor(settings.learning_rate, dtype=torch.float64)
        if self.deferred:
            self.learning_rate = self.learning_rate.to(like.device, torch.float32)
        spec = policy.action_spec
        self.entropy_scale = like.new_tensor(spec.by_head(settings.entropy_scale, 1.0, "ppo.entropy_scale"))
        self.entropy_floor = like.new_tensor(spec.by_head(settings.entropy_floor, 0.0, "ppo.entropy_floor"))
        self.updates = 0  # with at least one step: schedules count what was executed
        self.skipped_steps = 0
        self._known_ids: tuple[Tensor, Tensor] | None = None

    @property
    def compile_error(self) -> str | None:
        """Why torch.compile was given up; None: it was not, or not asked for."""
        return self.score.error if isinstance(self.score, Compiled) else None

    def entropy_coef(self) -> float:
        """Linear from ``entropy_coef`` in the first update to ``entropy_coef_final`` in the last."""
        done = min(1.0, self.updates / max(1, self.total_updates - 1))
        return self.settings.entropy_coef + done * (self.settings.entropy_coef_final - self.settings.entropy_coef)

    def update(self, rollout: Rollout, iteration: int) -> UpdateMetrics:
        """Several epochs of minibatches over environments, of a policy without memory over single steps; the rollout
        must carry advantages and returns.
        """
        own = self._on_host(rollout.env_ids)
        everyone = own if self.all_env_ids is None else self.all_env_ids
        if not self.policy.remembers:
            # Steps of one episode resemble each other; a minibatch of steps from everywhere has a better gradient.
            own, everyone = (single_step_ids(ids, len(rollout.valid)) for ids in (own, everyone))
            rollout = rollout.single_steps()
        if rollout.advantages is None:
            raise ValueError("the rollout has no advantages: call with_advantages first")
        batch = replace(rollout, advantages=normalized(rollout.advantages, rollout.valid, self.reduce))
        used = usage(self.policy, rollout, min(self.settings.minibatches, len(everyone)), self.reduce)
        log = Log(once={**scales(rollout, self.reduce), "samples_by_head": used.open_rows})
        log.once["observation_clipped"] = clipped(self.policy, rollout, self.reduce)
        current = Pass(self._weights(), self.entropy_coef(), log)
        for epoch, envs in self._minibatches(own, everyone.sort().values, iteration, used.parts):
            log.epochs.append(epoch + 1)
            if not self._minibatch(batch, used, envs, current):
                break
        if self.settings.learning_rate_schedule == "adaptive" and current.kl is not None and len(log.verdicts) > 1:
            self._adapt(current.kl)
        return self._finish(current)

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

    def _minibatch(self, batch: Rollout, used: Usage, envs: Tensor, current: Pass) -> bool:
        """One step, unless the divergence is too large or something is not finite; whether to go on."""
        log = current.log
        pieces = upload(envs, batch.valid.device).tensor_split(self.settings.gradient_accumulation)
        entropy_coef = self._entropy_coefs(batch, used, pieces, current)
        gradients, found = self._gradients(batch, used, pieces, entropy_coef, current)
        self.adam.take(gradients, self.reduce)
        log.norms.append(self._norms())
        self._record(found, log)
        kl = self._verdict(log)
        current.kl = kl if current.alive is None or current.kl is None else torch.where(current.alive, kl, current.kl)
        if self.deferred:
            self._step_on_device(current)
            return True
        diverged, finite = log.verdicts[-1].tolist()
        if finite and not diverged:
            self.adam.step(log.norms[-1][-1], self.settings.max_grad_norm, self._rate())
        return not (finite and diverged)

    def _gradients(
        self, batch: Rollout, used: Usage, pieces: tuple[Tensor, ...], entropy_coef: float | Tensor, current: Pass
    ) -> tuple[tuple[Tensor, ...], Terms]:
        """Of a minibatch, piece by piece: losses are sums, so their gradients add up to that of the whole."""
        gradients: tuple[Tensor, ...] | None = None
        found: Terms | None = None
        for rows in pieces:
            part = batch.select(rows)
            seen, loss = self.score(self.policy, part, used.select(rows), self.settings, entropy_coef)
            if "joint_entropy" not in current.log.once:
                self._look(part, seen, current)
            new = self.adam.gradients(loss.loss)
            gradients = new if gradients is None else tuple(map(torch.add, gradients, new))
            found = loss if found is None else found.joined(loss)
        assert gradients is not None
        assert found is not None
        return gradients, found

    def _look(self, part: Rollout, seen: Replayed, current: Pass) -> None:
        """Health of the network on the first rows of the update."""
        if not self.watch:
            current.log.once |= unmeasured(seen.values, (*HEALTH, "joint_entropy"))
            return
        current.probe = Probe(self.policy, part, seen)
        current.log.once |= health(seen, part.valid) | {"joint_entropy": current.probe.entropy(self.reduce)}

    def _entropy_coefs(self, batch: Rollout, used: Usage, pieces: tuple[Tensor, ...], current: Pass) -> float | Tensor:
        """What each head's entropy is worth: one number unless heads differ. A floor needs the entropy of the whole
        minibatch, over all processes, before its gradient: one more look at it.
        """
        if not (self.settings.entropy_scale or self.settings.entropy_floor):
            return current.entropy_coef
        coefs = current.entropy_coef * self.entropy_scale
        if not self.settings.entropy_floor:
            return coefs
        with torch.no_grad():
            entropy = torch.stack(
                [mean_entropy(replay(self.policy, batch.select(rows)), used.select(rows)) for rows in pieces]
            ).sum(dim=0)
        entropy = entropy if self.reduce is None else self.reduce(entropy, "sum")
        pull = floor_pull(entropy, self.entropy_floor, self.settings.entropy_floor_coef)
        return coefs + torch.where(used.open_rows > 0, pull, 0.0)

    def _verdict(self, log: Log) -> Tensor:
        """Too far from the old policy? Loss and gradient finite? From sums over all processes, so all agree. The
        divergence.
        """
        sums = log.sums[-1]
        kl = sums["kl"].sum() / sums["rows"].clamp(min=1)
        limit = torch.inf if self.settings.target_kl is None else EARLY_STOP * self.settings.target_kl
        loss = sums["policy_loss"] + sums["value_loss"] + sums["entropy"].sum()
        log.verdicts.append(torch.stack((kl > limit, (log.norms[-1][-1] + kl + loss).isfinite())))
        return kl

    def _step_on_device(self, current: Pass) -> None:
        """The same decisions as on the host, as numbers that the optimizer reads."""
        log = current.log
        diverged, finite = log.verdicts[-1].unbind()
        alive = torch.ones_like(finite) if current.alive is None else current.alive
        skip = (~(alive & finite & ~diverged)).float()
        current.alive = alive & ~(diverged & finite)
        self.adam.step(log.norms[-1][-1], self.settings.max_grad_norm, self._rate(), skip)

    def _adapt(self, kl: Tensor) -> None:
        """÷ 1.5 where the divergence ended the update, × 1.5 where it ended below half of the target."""
        target, rate = self.settings.target_kl, self.learning_rate
        assert target is not None
        slower, faster = (rate / RATE_FACTOR).clamp(min=RATE_MIN), (rate * RATE_FACTOR).clamp(max=RATE_MAX)
        near = torch.where(kl < target / RATE_BAND, faster, rate)
        self.learning_rate = torch.where(kl > EARLY_STOP * target, slower, near)

    def _rate(self) -> float | Tensor | None:
        """None: what the optimizer was made with."""
        if self.settings.learning_rate_schedule == "constant":
            return None
        return self.learning_rate if self.deferred else float(self.learning_rate)

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
        nothing = self.policy.like.new_zeros(())  # of an empty part torch's own would be on the CPU
        norms = torch.stack([torch.nn.utils.get_total_norm(part) if part else nothing for part in parts])
        return torch.cat((norms, norms.square().sum().sqrt()[None]))

    @torch.no_grad()
    def _weights(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.adam.parameters])

    def _finish(self, current: Pass) -> UpdateMetrics:
        log, start = current.log, current.start
        missing = start.new_full((), torch.nan)
        log.once["exact_kl"] = missing if current.probe is None else current.probe.divergence(self.reduce)
        log.once["update_ratio"] = (self._weights() - start).norm() / start.norm()
        log.once["max_second_moment"] = self.adam.largest_second_moment()
        log.once["learning_rate"] = self.learning_rate
        host, course = log.to_host()
        self.updates += any(course.stepped)
        self.skipped_steps += course.skipped
        heads = tuple(head.name for head in self.policy.action_spec.heads)
        return summarize(
            host,
            course,
            heads,
            tuple(self.groups),
            self.settings,
            RATIO_TOLERANCE[self.policy.coarsest],
            entropy_coef=current.entropy_coef,
            updates=self.updates,
            compiled=self.settings.compile and self.compile_error is None,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, moments and counters as plain tensors by name; copies."""
        counters = {"updates": torch.tensor(self.updates), "skipped_steps": torch.tensor(self.skipped_steps)}
        if self.settings.learning_rate_schedule == "adaptive":
            counters["learning_rate"] = self.learning_rate.detach().cpu().double()
        parts = {
            "policy": {name: tensor.detach().clone() for name, tensor in self.policy.state_dict().items()},
            "adam": self.adam.state_dict(),
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
        self.adam.load_state_dict(parts["adam"])
        self.updates = int(parts["counter"]["updates"])
        self.skipped_steps = int(parts["counter"]["skipped_steps"])
        if "learning_rate" in parts["counter"]:
            self.learning_rate = parts["counter"]["learning_rate"].to(self.learning_rate)


def _reduced(tensors: dict[str, Tensor], how: str, reduce: Reduce) -> dict[str, Tensor]:
    """All of them in one exchange."""
    flat = reduce(torch.cat([tensor.flatten() for tensor in tensors.values()]), "sum" if how == "sum" else "max")
    parts = flat.split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensor) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}
