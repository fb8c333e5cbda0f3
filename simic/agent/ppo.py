"""Proximal policy optimisation over whole recurrent rows (Schulman et al. 2017, arXiv 1707.06347).

The file follows an update: advantages → step → the loop over minibatches. Rollouts are collected in ``rollout``, losses
computed in ``losses``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from simic import params, rng
from simic.agent.losses import HEAD_LOG_RATIO_LIMIT, HeadUsage, Losses, head_usage, k3, losses
from simic.agent.metrics import Log, UpdateMetrics, health, scales
from simic.agent.policy import ActorCritic, Rescoring, part_of, refuse_mismatch
from simic.agent.rollout import Rollout, single_step_ids
from simic.errors import SimicError
from simic.threads import share
from simic.transfer import Reduce, alone, as_one, upload

EARLY_STOP = 1.5  # times target_kl (Spinning Up's PPO)
# The first minibatch is scored by the weights that acted, so its ratios are 1 up to rounding. Further off, what is
# rescored is not what was recorded, and every later ratio is wrong as well.
RATIO_TOLERANCE = 1e-4
LINEAR_END = 0.2  # of the learning rate, in the last update
# Steps of a minibatch from which on two threads are faster than one (docs/history/experiments.md).
LEAST_SHARED = 2048
MOMENT_DECAYS = (0.9, 0.999)  # Adam's β (Kingma and Ba 2015, arXiv 1412.6980)
# For scaled rewards: below it differences are noise and are not blown up to 1.
ADVANTAGE_SIGMA_FLOOR = 0.1

# Advantages: how much better each action was than the value of its state said.


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
    """Compute generalised advantage estimates (Schulman et al. 2016, arXiv 1506.02438).

    Args:
        rewards: Scaled, ``[T, E]``.
        values: V of the states that were decided in, ``[T, E]``.
        next_values: V of the states that the steps led to, ``[T, E]``.
        terminated: Bool ``[T, E]``; a terminal state is worth 0, also when it is truncated as well.
        truncated: Bool ``[T, E]``; a truncated state is worth its value.
        valid: Bool ``[T, E]``; the trace is cut where a row's valid steps stop, and at every end.
        gamma: Discount of rewards.
        gae_lambda: Decay of the trace.

    Returns:
        Advantages and returns ``[T, E]``, both 0 where not valid.
    """
    # The trace goes on within one episode alone: what follows an end belongs to the next one.
    next_valid = torch.cat((valid[1:], torch.zeros_like(valid[:1])))
    continues = next_valid & ~(terminated | truncated)
    # δ_t = r_t + γ V(s_{t+1}) − V(s_t). A truncated state keeps its value: the episode could have gone on, and 0 would
    # teach that running out of steps is a loss (Pardo et al. 2018, arXiv 1712.00378).
    delta = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    delta = delta.masked_fill(~valid, 0.0)
    decay = (gamma * gae_lambda * continues).to(delta.dtype)
    advantages = torch.empty_like(values)
    trace = torch.zeros_like(values[0])
    # Views of all steps at once: to index a tensor in each costs as much as to add two.
    parts = (part.unbind()[::-1] for part in (advantages, delta, decay))
    for advantage, delta_t, decay_t in zip(*parts, strict=True):
        # A_t = δ_t + γ λ A_{t+1}
        trace = torch.add(delta_t, decay_t * trace, out=advantage)
    # What V is fitted to: the λ-return A_t + V(s_t).
    return advantages, (advantages + values).masked_fill(~valid, 0.0)


def with_advantages(rollout: Rollout, rewards: Tensor, gamma: float, gae_lambda: float) -> Rollout:
    """Add advantages and returns to a rollout.

    Args:
        rollout: As it was collected.
        rewards: Scaled, ``[T, E]``.
        gamma: Discount of rewards.
        gae_lambda: Decay of the trace.
    """
    advantages, returns = gae(
        rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.truncated,
        rollout.valid,
        gamma,
        gae_lambda,
    )
    return replace(rollout, advantages=advantages, returns=returns)


def normalized(advantages: Tensor, valid: Tensor, reduce: Reduce = alone) -> Tensor:
    """Compute (A − μ) / max(σ, floor).

    Args:
        advantages: A, ``[T, E]``.
        valid: Bool ``[T, E]``: the rows over which mean and deviation are taken; the others become 0.
        reduce: Combines those of all processes.
    """
    # The mean first and then deviations from it: a difference of sums of squares would lose digits.
    count = reduce(valid.sum().to(advantages.dtype), "sum").clamp(min=1)
    mean = reduce(torch.where(valid, advantages, 0.0).sum(), "sum") / count
    centred = torch.where(valid, advantages - mean, 0.0)
    sigma = (reduce(centred.square().sum(), "sum") / count).sqrt()
    return centred / sigma.clamp(min=ADVANTAGE_SIGMA_FLOOR)


# Step.


class Adam:
    """Adam (Kingma, Ba 2015, arXiv 1412.6980) by torch's fused operation, which passes over the weights once.

    torch.optim would sort the same tensors anew in every step, which takes longer than the operation.
    """

    def __init__(self, module: nn.Module, eps: float) -> None:
        # A user's module may be frozen.
        self.named = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self.parameters = list(self.named.values())
        self.eps = eps
        self.steps = torch.zeros((), device=self.parameters[0].device)
        self.moments = {
            name: [torch.zeros_like(parameter) for parameter in self.parameters]
            for name in ("exp_avg", "exp_avg_sq")
        }

    @torch.no_grad()
    def step_unless_skipped(self, learning_rate: float, divisor: Tensor, go: Tensor) -> None:
        """Move along the gradients, or change neither weights nor moments.

        The fused operation reads both numbers on its device, as it does those of torch.amp's GradScaler.

        Args:
            learning_rate: Of this step.
            divisor: Gradients are divided by it.
            go: Whether to step, a bool scalar.
        """
        self.steps += go
        torch._fused_adamw_(  # pyright: ignore[reportCallIssue, reportPrivateImportUsage] - has no types
            self.parameters,
            [parameter.grad for parameter in self.parameters],
            *self.moments.values(),
            [],
            [self.steps] * len(self.parameters),
            lr=learning_rate,
            beta1=MOMENT_DECAYS[0],
            beta2=MOMENT_DECAYS[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            # The operation divides by it anyway, so clipping costs no pass of its own.
            grad_scale=divisor.float(),
            found_inf=(~go).float(),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Copy ``step`` and both moments, by the parameter's name."""
        tensors: dict[str, Tensor] = {"step": self.steps.clone()}
        for moment, parts in self.moments.items():
            for name, part in zip(self.named, parts, strict=True):
                tensors[f"{moment}.{name}"] = part.clone()
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore what ``tensors`` copied."""
        self.steps.copy_(tensors["step"])
        for moment, parts in self.moments.items():
            for name, part in zip(self.named, parts, strict=True):
                part.copy_(tensors[f"{moment}.{name}"])


# Update: minibatches → losses → step or stop.


Piece = tuple[Rollout, HeadUsage]  # rows of a minibatch, and where they count


class PieceLearned(NamedTuple):
    """What a piece of a minibatch says: its losses, their gradient by parameter, and the core's outputs."""

    losses: Losses
    gradients: Sequence[Tensor]
    hidden: Tensor  # [T, N, H]


class StepVerdict(NamedTuple):
    """What becomes of a minibatch, bool scalars on the device, equal in all processes."""

    step: Tensor  # weights move
    stop: Tensor  # the divergence ends the update before this step
    finite: Tensor  # loss and gradient; else this step is skipped


class PPO:
    """Learn one policy.

    Whether a step is taken is decided on the policy's device, which skips the others; the CPU reads one tensor at the
    end of an update.

    Args:
        policy: What learns.
        settings: The hyperparameters.
        rng_seed: Keys the order of minibatches.
        total_updates: Length of the schedules.
        reduce: ``reduce(tensor, "sum" | "max")`` combines a tensor of all processes, which take the same steps.
        all_env_ids: Global numbers of the environments of all processes; None: there is one process.

    Raises:
        SimicError: ``ppo.entropy_scale`` names a head that is not there.
    """

    def __init__(
        self,
        policy: ActorCritic,
        settings: params.PPOParams,
        rng_seed: int,
        *,
        total_updates: int,
        reduce: Reduce = alone,
        all_env_ids: Tensor | None = None,
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.rng_seed = rng_seed
        self.total_updates = total_updates
        self.reduce = reduce
        self.all_env_ids = None if all_env_ids is None else all_env_ids.cpu()
        self.adam = Adam(policy, settings.adam_eps)

        # Which parameters belong to which part, whose gradient norm is recorded; the last part is all of them.
        self.groups = policy.groups()
        parts = [
            {id(parameter) for parameter in part}
            for part in (*self.groups.values(), self.adam.parameters)
        ]
        members = [[id(parameter) in part for parameter in self.adam.parameters] for part in parts]
        # Bool [parts, parameters]
        self.non_members = ~torch.tensor(members, device=policy.like.device)

        # The entropy bonus of a head may weigh more or less than that of the others.
        self.heads = [head.name for head in policy.action_spec.heads]
        for name in settings.entropy_scale:
            if name not in self.heads:
                raise SimicError(
                    f"ppo.entropy_scale: there is no head {name!r}; the heads are {', '.join(self.heads)}"
                )
        scale = [settings.entropy_scale.get(name, 1.0) for name in self.heads]
        self.entropy_scale = policy.like.new_tensor(scale) if settings.entropy_scale else None

        # Whether the CPU may ask for values, and which rows had a choice, without waiting.
        self.reads_are_free = self.rows_are_known = policy.like.device.type == "cpu"
        self.updates = 0  # with at least one step: schedules count what was executed
        self.annealed_from = 0
        self.skipped_steps = 0
        self._cpu_ids: tuple[Tensor, Tensor] | None = None

    def update(self, rollout: Rollout, iteration: int) -> UpdateMetrics:
        """Run several epochs of minibatches: of whole environments if the policy has memory, else of single steps.

        Args:
            rollout: With advantages and returns.
            iteration: Keys the order of minibatches.
        """
        if rollout.advantages is None:
            raise ValueError("the rollout has no advantages: call with_advantages first")
        rollout, env_ids, all_env_ids = self._rows(rollout)

        log = Log(once=scales(rollout, self.reduce))
        rollout, usage = self._prepared(rollout, len(all_env_ids))

        # Schedules.
        learning_rate = self.learning_rate()
        entropy_coef = self.entropy_coef()
        coefs = entropy_coef if self.entropy_scale is None else entropy_coef * self.entropy_scale

        # ``alive`` turns False when the divergence ends the update. The first minibatch is kept, to measure the
        # divergence of the whole update afterwards.
        alive = torch.ones((), dtype=torch.bool, device=rollout.valid.device)
        probe: list[Piece] = []
        for epoch, positions in self._minibatches(
            env_ids, all_env_ids.sort().values, iteration, usage.minibatches
        ):
            # A minibatch's loss and gradient under the present weights. What the verdict reads is summed over
            # processes, so that all give the same one.
            pieces = self._pieces(rollout, usage, upload(positions, rollout.valid.device))
            learned = share(lambda piece: self._learn(*piece, coefs), pieces)
            if not probe:
                probe = pieces
                hidden = torch.cat([part.hidden for part in learned], dim=1)
                valid = torch.cat([batch.valid for batch, _ in pieces], dim=1)
                log.once |= health(hidden, valid, self.reduce)
            minibatch = Losses.of_pieces([part.losses for part in learned]).reduced(self.reduce)
            norms = self._gradients([part.gradients for part in learned])

            # Step, stop or skip. Gradients are clipped by their common norm: divided by norm / maximum where above 1.
            verdict = self._verdict(minibatch, norms[-1], alive)
            clipping = (norms[-1] / self.settings.max_grad_norm).clamp(min=1.0)
            self.adam.step_unless_skipped(learning_rate, clipping, verdict.step)
            log.add(epoch, minibatch.sums | minibatch.peaks | {"norms": norms} | verdict._asdict())
            alive = alive & ~verdict.stop
            # On a GPU asking would make the CPU wait for it: there the rest is computed in vain, and skipped.
            if self.reads_are_free and not alive:
                break

        # How far the whole update moved the policy.
        log.once |= {
            "update_kl": self._divergence(probe),
            "samples": usage.rows,
            "samples_by_head": usage.choice_rows,
        }
        return self._report(log, learning_rate, entropy_coef)

    def _prepared(self, rollout: Rollout, environments: int) -> tuple[Rollout, HeadUsage]:
        """Normalise the advantages, and leave out what no minibatch reads; give what heads had a choice too."""
        # Advantages are normalised over rows with a choice: where one action was legal nothing was decided. Over the
        # rollout, not the minibatch, so that a row counts the same in every epoch.
        minibatches = min(self.settings.minibatches, environments)
        usage = head_usage(self.policy, rollout, minibatches, self.reduce)
        decided = usage.choice.any(dim=-1)
        assert rollout.advantages is not None
        rollout = replace(
            rollout,
            advantages=normalized(rollout.advantages, decided, self.reduce),
            raw_features=rollout.raw_features[..., :0],
            masks=self._masks(rollout, usage),
        )
        return rollout, usage

    def _rows(self, rollout: Rollout) -> tuple[Rollout, Tensor, Tensor]:
        """Cut a rollout into the rows that minibatches are made of; give their ids here and in all processes.

        Rows are environments where the policy has memory, else steps: those of one episode resemble each other, and a
        minibatch of steps from everywhere has a better gradient.
        """
        # Fetched once, since the ids are the same tensor in every rollout.
        if self._cpu_ids is None or self._cpu_ids[0] is not rollout.env_ids:
            self._cpu_ids = rollout.env_ids, rollout.env_ids.cpu()
        env_ids = self._cpu_ids[1]
        all_env_ids = env_ids if self.all_env_ids is None else self.all_env_ids
        if self.policy.has_memory:
            return rollout, env_ids, all_env_ids
        steps = len(rollout.valid)
        flat = rollout.single_steps()
        return flat, single_step_ids(env_ids, steps), single_step_ids(all_env_ids, steps)

    def _masks(self, rollout: Rollout, usage: HeadUsage) -> dict[str, Tensor]:
        """Select the masks of heads that had a choice anywhere; all where the CPU cannot ask for free."""
        if not self.rows_are_known:
            return rollout.masks
        chose = usage.choice.flatten(0, 1).any(dim=0).tolist()
        return {
            name: rollout.masks[name]
            for name, is_used in zip(self.heads, chose, strict=True)
            if is_used and name in rollout.masks
        }

    def _minibatches(
        self, env_ids: Tensor, all_env_ids: Tensor, iteration: int, minibatches: int
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield epoch and positions in ``env_ids``; the order is a hash, equal for every grouping of environments.

        Args:
            env_ids: Of the rows of this process.
            all_env_ids: Of those of all processes, ascending.
            iteration: Keys the order.
            minibatches: Of an epoch.
        """
        places = torch.searchsorted(all_env_ids, env_ids)
        number = torch.empty_like(all_env_ids)  # of the minibatch, by row
        for epoch in range(self.settings.epochs):
            stream = rng.key(self.rng_seed, rng.Purpose.MINIBATCH, iteration, epoch)
            order = rng.permutation(stream, len(all_env_ids))
            for minibatch, rows in enumerate(order.tensor_split(minibatches)):
                number[rows] = minibatch
            numbers = number[places]
            for minibatch in range(minibatches):
                yield epoch, (numbers == minibatch).nonzero().flatten()

    def rescore(self, batch: Rollout, usage: HeadUsage | None = None) -> Rescoring:
        """Score the recorded decisions under the present weights.

        Args:
            batch: Rows of a rollout.
            usage: Where its heads had a choice; None: every head is computed everywhere.
        """
        # Without a start inside, rows go through the core as they are, uncut: that is faster.
        starts = batch.starts if batch.starts_inside else None
        return self.policy.rescore(
            batch.observation(),
            batch.actions,
            batch.state,
            batch.valid,
            starts,
            usage.choice if usage and self.rows_are_known else None,
        )

    def _pieces(self, rollout: Rollout, usage: HeadUsage, envs: Tensor) -> list[Piece]:
        """Cut a minibatch in two where that is worth a thread; by its size alone, so that sums have one order."""
        is_large = len(envs) * len(rollout.valid) >= LEAST_SHARED
        parts = envs.tensor_split(2) if is_large and self.reads_are_free else (envs,)
        return [(rollout.select(part), usage.select(part)) for part in parts]

    def _learn(self, batch: Rollout, usage: HeadUsage, coefs: float | Tensor) -> PieceLearned:
        rescoring = self.rescore(batch, usage)
        part, gradients = losses(rescoring, batch, usage, self.settings, coefs)
        by_parameter = gradients.through(rescoring, self.adam.parameters)
        return PieceLearned(part, by_parameter, rescoring.hidden.detach())

    def _gradients(self, parts: Sequence[Sequence[Tensor]]) -> Tensor:
        """Hand the optimizer the gradients, summed over pieces, and over processes in one exchange; return their norms
        before clipping, by part of the policy with the total last.
        """
        # Processes sum: each loss is already a share of the whole, divided by the rows of all.
        gradients = [reduce(torch.add, of_pieces) for of_pieces in zip(*parts, strict=True)]
        if self.reduce is not alone:
            gradients = as_one(gradients, lambda flat: self.reduce(flat, "sum"))
        for parameter, gradient in zip(self.adam.parameters, gradients, strict=True):
            parameter.grad = gradient
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
        squares = torch.stack(norms).square()
        return squares.expand_as(self.non_members).masked_fill(self.non_members, 0.0).sum(-1).sqrt()

    def _verdict(self, minibatch: Losses, grad_norm: Tensor, alive: Tensor) -> StepVerdict:
        """Decide from sums over all processes, so that all agree, whether to step, to stop or to skip."""
        sums = minibatch.sums
        approx_kl = sums["kl"].sum() / sums["rows"].clamp(min=1)
        target_kl = self.settings.target_kl
        diverged = approx_kl > (torch.inf if target_kl is None else EARLY_STOP * target_kl)
        loss = sums["policy_loss"] + sums["value_loss"] + sums["entropy"].sum()
        # One NaN or infinity anywhere makes the sum so.
        finite = (grad_norm + approx_kl + loss).isfinite()
        return StepVerdict(step=alive & finite & ~diverged, stop=diverged & finite, finite=finite)

    @torch.no_grad()
    def _divergence(self, pieces: Sequence[Piece]) -> Tensor:
        """Estimate KL(acting ‖ present) of whole actions on a minibatch, in nats."""

        def measured(piece: Piece) -> Tensor:
            batch, usage = piece
            # Limited as in the loss: one action with an infinite ratio would hide all others.
            difference = self.rescore(batch, usage).log_probs - batch.log_probs
            log_ratio = torch.where(usage.relevant, difference, 0.0)
            kl = k3(log_ratio.clamp(-HEAD_LOG_RATIO_LIMIT, HEAD_LOG_RATIO_LIMIT)).sum()
            return torch.stack((kl, batch.valid.sum().to(kl.dtype)))

        total = self.reduce(torch.stack(share(measured, pieces)).sum(dim=0), "sum")
        return total[0] / total[1].clamp(min=1)

    def anneal_over(self, updates: int) -> None:
        """Start the schedules again, to end in the last of so many more updates."""
        self.annealed_from = self.updates
        self.total_updates = updates

    def _progress(self) -> float:
        """Compute where the schedules are: 0 in their first update, 1 in the last."""
        return min(1.0, (self.updates - self.annealed_from) / max(1, self.total_updates - 1))

    def entropy_coef(self) -> float:
        """Compute the coefficient of this update: linear from ``entropy_coef`` to ``entropy_coef_final``."""
        change = self.settings.entropy_coef_final - self.settings.entropy_coef
        return self.settings.entropy_coef + self._progress() * change

    def learning_rate(self) -> float:
        """Compute the rate of this update: constant, or falling linearly to a fifth at the last one."""
        decay = 1.0 - LINEAR_END if self.settings.learning_rate_schedule == "linear" else 0.0
        return self.settings.learning_rate * (1.0 - decay * self._progress())

    def _report(self, log: Log, learning_rate: float, entropy_coef: float) -> UpdateMetrics:
        metrics = log.summarize(self.heads, list(self.groups), self.settings.max_grad_norm)
        self.updates += metrics["steps"] > 0
        self.skipped_steps += metrics["skipped_steps"]
        return UpdateMetrics(
            **metrics,
            first_ratio_ok=metrics["first_ratio_deviation"] < RATIO_TOLERANCE,
            entropy_coef=entropy_coef,
            learning_rate=learning_rate,
            updates=self.updates,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Copy weights, moments and counters as plain tensors by name."""
        tensors = {
            f"policy.{name}": tensor.detach().clone()
            for name, tensor in self.policy.state_dict().items()
        }
        tensors |= {f"adam.{name}": tensor for name, tensor in self.adam.tensors().items()}
        tensors["counter.updates"] = torch.tensor(self.updates)
        tensors["counter.skipped_steps"] = torch.tensor(self.skipped_steps)
        return tensors

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on exactly from there; SimicError when a tensor is missing, unknown or of another shape."""
        # Before anything is copied: else a refusal would leave a policy half old and half new.
        refuse_mismatch("the agent's checkpoint", self.state_dict(), state)
        self.policy.load_state_dict(part_of(state, "policy."))
        self.adam.load_tensors(part_of(state, "adam."))
        self.updates = int(state["counter.updates"])
        self.skipped_steps = int(state["counter.skipped_steps"])
