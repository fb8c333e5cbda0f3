"""Proximal policy optimisation over whole recurrent rows (Schulman et al. 2017, arXiv 1707.06347).

To be read from top to bottom: update, minibatches, replay, losses, step, stop.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from simic import params, rng
from simic.agent.losses import Terms, Usage, floor_pull, mean_entropy, normalized, terms, usage
from simic.agent.metrics import Log, Names, UpdateMetrics, summarize
from simic.agent.normalization import Reduce
from simic.agent.optimizer import Adam, refuse_mismatch
from simic.agent.policy import ActorCritic, Replayed
from simic.agent.rollout import Rollout, single_step_ids
from simic.transfer import upload

EARLY_STOP = 1.5  # times target_kl (Spinning Up's PPO)
RATIO_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2}
# After rsl_rl (Rudin et al. 2022, arXiv 2109.11978), which moves its rate at every minibatch and ends no update early:
# here once per update, since the first minibatches' divergence is always small and would raise the rate.
LINEAR_END = 0.2  # of the learning rate, in the last update
RATE_FACTOR, RATE_BAND, RATE_MIN, RATE_MAX = 1.5, 2.0, 1e-5, 1e-2


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
        # On a GPU float32, as a fused optimizer wants it.
        kind = torch.float64 if self.reads_are_free else torch.float32
        self.learning_rate = torch.tensor(settings.learning_rate, dtype=kind, device=like.device)
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

    def update(self, rollout: Rollout, iteration: int, observer: UpdateObserver | None = None) -> UpdateMetrics:
        """Several epochs of minibatches over environments, of a policy without memory over single steps; the rollout
        must carry advantages and returns. What only the ``observer`` measures is NaN without one.
        """
        own = self._on_host(rollout.env_ids)
        everyone = own if self.all_env_ids is None else self.all_env_ids
        target = self.settings.target_kl
        limit = torch.inf if target is None else EARLY_STOP * target
        entropy_coef = self.entropy_coef()
        if self.settings.learning_rate_schedule == "linear":
            rate = self.settings.learning_rate * (1.0 - (1.0 - LINEAR_END) * self._progress())
            self.learning_rate = torch.full_like(self.learning_rate, rate)
        if not self.policy.remembers:
            # Steps of one episode resemble each other; a minibatch of steps from everywhere has a better gradient.
            own, everyone = (single_step_ids(ids, len(rollout.valid)) for ids in (own, everyone))
            rollout = rollout.single_steps()
        if rollout.advantages is None:
            raise ValueError("the rollout has no advantages: call with_advantages first")
        if observer is not None:
            observer.before(rollout)
        used = usage(self.policy, rollout, min(self.settings.minibatches, len(everyone)), self.reduce)
        # Where one action was legal nothing was decided, and the advantage says nothing about a decision.
        decided = used.open.any(dim=-1)
        batch = replace(rollout, advantages=normalized(rollout.advantages, decided, self.reduce))
        log = Log()
        alive = torch.ones((), dtype=torch.bool, device=batch.valid.device)  # until the divergence ends the update
        last_kl = batch.values.new_zeros(())  # of those looked at while alive
        for epoch, envs in self._minibatches(own, everyone.sort().values, iteration, used.minibatches):
            pieces = upload(envs, batch.valid.device).tensor_split(self.settings.gradient_accumulation)
            coefs = self._entropy_coefs(batch, used, pieces, entropy_coef)
            gradients, found = self._gradients(batch, used, pieces, coefs, None if log.epochs else observer)
            (norms, by_layer), found = self._take(gradients), found.reduced(self.reduce)
            kl, diverged, finite = self._verdict(found, norms[-1], limit)
            self._step(norms[-1], alive & finite & ~diverged)
            log.add(epoch, found, norms, by_layer, torch.stack((diverged, finite)))
            last_kl = torch.where(alive, kl, last_kl)
            alive = alive & ~(diverged & finite)
            if self.reads_are_free and not alive:
                break  # elsewhere asking would make the host wait: the rest is computed in vain, and skipped
        several = self.settings.epochs * used.minibatches > 1
        if several and self.settings.learning_rate_schedule == "adaptive":
            self._adapt(last_kl)
        log.once |= {"samples": used.rows, "samples_by_head": used.open_rows, "learning_rate": self.learning_rate}
        log.once |= {} if observer is None else observer.after()
        return self._report(log, entropy_coef)

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

    def _step(self, norm: Tensor, go: Tensor) -> None:
        """Clip the gradients, whose total norm is known, and move, unless ``go`` is False: then neither weights nor
        moments change, which a fused optimizer finds out by itself, on any device.
        """
        if self.settings.learning_rate_schedule != "constant":
            for group in self.adam.param_groups:
                group["lr"] = self.learning_rate
        # As torch.amp's GradScaler tells a fused optimizer what to divide by, and that a gradient is not finite.
        self.adam.grad_scale = (norm / self.settings.max_grad_norm).clamp(min=1.0).float()
        self.adam.found_inf = (~go).float()
        self.adam.step()

    def _verdict(self, found: Terms, norm: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        """The divergence; whether it is too large; whether loss and gradient are finite. From sums over all processes,
        so all agree.
        """
        sums = found.sums
        kl = sums["kl"].sum() / sums["rows"].clamp(min=1)
        loss = sums["policy_loss"] + sums["value_loss"] + sums["entropy"].sum()
        return kl, kl > limit, (norm + kl + loss).isfinite()

    def _adapt(self, kl: Tensor) -> None:
        """÷ 1.5 where the divergence ended the update, × 1.5 where it ended below half of the target."""
        target, rate = self.settings.target_kl, self.learning_rate
        assert target is not None
        slower, faster = (rate / RATE_FACTOR).clamp(min=RATE_MIN), (rate * RATE_FACTOR).clamp(max=RATE_MAX)
        near = torch.where(kl < target / RATE_BAND, faster, rate)
        self.learning_rate = torch.where(kl > EARLY_STOP * target, slower, near)

    def _report(self, log: Log, entropy_coef: float) -> UpdateMetrics:
        host, course = log.to_host()
        self.updates += any(course.stepped)
        self.skipped_steps += course.skipped
        heads = self.policy.action_spec.heads
        own = tuple(head.name for head in heads), tuple(bool(head.lean) for head in heads)
        tolerance = RATIO_TOLERANCE[self.policy.coarsest]
        known = {"entropy_coef": entropy_coef, "updates": self.updates, "adam_eps": self.adam.param_groups[0]["eps"]}
        names = Names(*own, tuple(self.groups), tuple(self.layers))
        return summarize(host, course, names, self.settings, tolerance, **known)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, moments and counters as plain tensors by name; copies."""
        counters = {"updates": torch.tensor(self.updates), "skipped_steps": torch.tensor(self.skipped_steps)}
        if self.settings.learning_rate_schedule == "adaptive":
            counters["learning_rate"] = self.learning_rate.detach().cpu().double()
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
        if "learning_rate" in parts["counter"]:
            self.learning_rate = parts["counter"]["learning_rate"].to(self.learning_rate)
