"""Proximal policy optimisation over whole recurrent rows (Schulman et al. 2017, arXiv 1707.06347).

The file follows an iteration: collect → advantages → minibatches → losses → step → stop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from simic import params, rng
from simic.agent import distributions
from simic.agent.metrics import Log, Probe, UpdateMetrics, as_one, health, largest, scales
from simic.agent.normalization import Normalizers, Reduce, alone
from simic.agent.policy import ActorCritic, Replayed, part_of, refuse_mismatch
from simic.agent.rollout import Environment, Position, Rollout, StepRecord, single_step_ids
from simic.errors import SimicError
from simic.transfer import upload

EARLY_STOP = 1.5  # times target_kl (Spinning Up's PPO)
RATIO_TOLERANCE = 1e-4  # of the first ratio: further from 1 is no rounding
LINEAR_END = 0.2  # of the learning rate, in the last update
HEAD_LOG_RATIO_LIMIT = 20.0  # e^20 ≈ 4.9e8; float32 overflows at e^88
JOINT_LOG_RATIO_LIMIT = 30.0
ADVANTAGE_SIGMA_FLOOR = 0.1  # for scaled rewards: below it differences are noise and are not blown up to 1

# Collect: act with the policy and the scales as they are.


def collect(
    env: Environment,
    policy: ActorCritic,
    normalizers: Normalizers,
    iteration: int,
    rng_seed: int,
    steps: int,
    on_step: Callable[[StepRecord], None] | None = None,
    position: Position | None = None,
) -> tuple[Rollout, Position]:
    """Act for ``steps`` steps with frozen normalisers and return the rollout and where it ended.

    Without a ``position`` the environments are reset and nothing is remembered; with one the episodes go on. The noise
    of each draw is keyed by (iteration, global env, step), so grouping and history do not matter.
    """
    position = position or Position.first(env, policy, env.reset(options={"iteration": iteration})[0])
    seen = normalizers.see(position.observation)
    rollout = Rollout.empty(steps, env.env_ids, seen, position.state, len(policy.heads))
    valid = torch.ones_like(position.starts)
    policy.action_spec.check_masks(position.observation.masks, env.num_envs)
    time = torch.arange(steps, device=env.env_ids.device)[:, None]
    stream = rng.key(rng_seed, rng.Purpose.ACTION, iteration, env.env_ids, time, device=time.device)
    noise = rng.uniform(stream, (len(policy.heads),))  # [T, E, heads], of all steps at once
    autoreset = env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, state, starts = position.observation, position.state, position.starts
    for t in range(steps):
        seen = normalizers.see(observation)
        rollout.record_seen(t, observation, seen, starts, valid)
        step = policy.act(seen, state, noise[t], valid=valid)
        observation, reward, terminated, truncated, info = env.step(step.actions)
        rollout.record_done(t, step, reward, terminated, truncated)
        state, ended = step.state, terminated | truncated
        if autoreset:
            # What a truncated episode would still have earned: its last observation, under the memory of that moment.
            if info.final is not None:
                rollout.next_values[t] = policy.value(normalizers.see(info.final), state)
            starts = ended
            state = state.zeroed(starts)
        else:
            starts, valid = torch.zeros_like(starts), valid & ~ended
        if on_step is not None:
            on_step(StepRecord(t, step, reward, info))
    # V(s') is that of the next step, except where an autoreset put another episode's state there.
    following = torch.cat((rollout.values[1:], policy.value(normalizers.see(observation), state)[None]))
    replaced = (rollout.terminated | rollout.truncated) if autoreset else torch.zeros_like(rollout.valid)
    rollout.next_values.copy_(torch.where(replaced, rollout.next_values, following))
    rollout = replace(rollout, starts_inside=autoreset and bool(rollout.starts[1:].any()))
    return rollout, Position(observation, state, starts)


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


def normalized(advantages: Tensor, valid: Tensor, reduce: Reduce = alone) -> Tensor:
    """Return (A − μ) / max(σ, floor) over the valid rows of all processes; 0 where not valid."""
    count = reduce(valid.sum().to(advantages.dtype), "sum").clamp(min=1)
    mean = reduce(torch.where(valid, advantages, 0.0).sum(), "sum") / count
    centred = torch.where(valid, advantages - mean, 0.0)
    sigma = (reduce(centred.square().sum(), "sum") / count).sqrt()
    return centred / sigma.clamp(min=ADVANTAGE_SIGMA_FLOOR)


# Minibatches: which rows count, and for which heads.


@dataclass(frozen=True)
class Usage:
    """Where each head mattered (``relevant``), and where it had more than one legal choice as well (``open``).

    Counts are over all processes. A sum over one of the ``minibatches`` times minibatches / rows is unbiased for the
    mean over the rollout, whatever rows fall into it.
    """

    relevant: Tensor  # [T, E, heads] bool
    open: Tensor  # [T, E, heads] bool
    rows: Tensor  # valid ones of the rollout; may be 0
    open_rows: Tensor  # [heads]
    minibatches: int

    def select(self, envs: Tensor) -> "Usage":
        """Return the same of some environments; the counts stay those of the rollout."""
        return replace(self, relevant=self.relevant.index_select(1, envs), open=self.open.index_select(1, envs))


@torch.no_grad()
def usage(policy: ActorCritic, rollout: Rollout, minibatches: int, reduce: Reduce = alone) -> Usage:
    """Return which heads mattered, read off the sampled actions and the masks they were sampled under."""
    relevant = policy.relevance[rollout.actions[..., 0]] & rollout.valid[..., None]
    several = torch.stack([_options(policy, rollout, head) > 1 for head in range(len(policy.heads))], dim=-1)
    choice = relevant & several
    counts = torch.cat((rollout.valid.sum()[None], choice.sum(dim=(0, 1)))).to(rollout.values.dtype)
    counts = reduce(counts, "sum")
    return Usage(relevant, choice, counts[0], counts[1:], minibatches)


def _options(policy: ActorCritic, rollout: Rollout, head: int) -> Tensor:
    chosen = list(rollout.actions[..., :2].unbind(dim=-1))
    mask = distributions.legal(policy.action_spec, rollout.masks, head, chosen)
    size = policy.action_spec.heads[head].size
    return torch.full_like(chosen[0], size) if mask is None else mask.sum(dim=-1)


# Losses.


def surrogate(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """Return min(r A, clip(r, 1 ± ε) A), element by element."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages)


def policy_objective(log_ratio: Tensor, relevant: Tensor, advantages: Tensor, settings: params.PPOParams) -> Tensor:
    """Return what PPO maximises, per row ``[T, N]``, from log-ratios per head ``[T, N, heads]``.

    ``joint``: one ratio of the whole action. ``per_head``: a clipped term for each relevant head, summed, so that at
    ratio 1 both have the same gradient.
    """
    if settings.ratio == "joint":
        joint = log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
        return surrogate(joint, advantages, settings.clip_range)
    by_head = surrogate(log_ratio, advantages[..., None], settings.clip_range)
    return torch.where(relevant, by_head, 0.0).sum(dim=-1)


def k3(log_ratio: Tensor) -> Tensor:
    """Return e^Δ − 1 − Δ ≥ 0, whose mean under the old policy is KL(old ‖ new) (Schulman, "Approximating KL")."""
    return torch.expm1(log_ratio) - log_ratio


@dataclass(frozen=True)
class Terms:
    """The loss of a minibatch and what is reported of it, all still on the device: ``sums``, which are added over
    processes (name → number or ``[heads]``), and ``peaks``, of which the largest counts.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    peaks: dict[str, Tensor]

    def reduced(self, reduce: Reduce) -> "Terms":
        """Return those of all processes, in one exchange for the sums and one for the peaks; the loss stays its own."""
        if reduce is alone:
            return self
        sums = as_one(list(self.sums.values()), lambda flat: reduce(flat, "sum"))
        peaks = as_one(list(self.peaks.values()), lambda flat: reduce(flat, "max"))
        return Terms(self.loss, dict(zip(self.sums, sums, strict=True)), dict(zip(self.peaks, peaks, strict=True)))


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

    policy = -over_rows(policy_objective(log_ratio, used.relevant, batch.advantages, settings))
    value = over_rows(0.5 * (seen.values - batch.returns).square())
    # Estimates the mean over the open rows of the rollout; above 1 where this minibatch has more of them than others.
    entropies = torch.where(used.open, seen.entropy, 0.0).sum(dim=(0, 1))
    entropy = entropies * used.minibatches / used.open_rows.clamp(min=1)
    bonus = (entropy_coef * entropy).sum() if isinstance(entropy_coef, Tensor) else entropy_coef * entropy.sum()
    loss = policy + settings.value_coef * value - bonus
    with torch.no_grad():
        return Terms(
            loss,
            {"policy_loss": policy.detach(), "value_loss": value.detach(), "entropy": entropies.detach()}
            | _sums(log_ratio, batch.valid, used, settings.clip_range),
            _peaks(difference, batch.valid),
        )


def _sums(log_ratio: Tensor, valid: Tensor, used: Usage, clip_range: float) -> dict[str, Tensor]:
    """Return sums over rows, and their counts; an irrelevant head's divergence is exactly 0, as its log-ratio is."""
    joint = log_ratio.sum(dim=-1).clamp(-JOINT_LOG_RATIO_LIMIT, JOINT_LOG_RATIO_LIMIT)
    ratio = joint.exp()
    outside = (ratio - 1.0).abs() > clip_range
    return {
        "rows": valid.sum().to(ratio.dtype),
        "open": used.open.sum(dim=(0, 1)).to(ratio.dtype),
        "kl": k3(log_ratio).sum(dim=(0, 1)),
        "ratio": torch.where(valid, ratio, 0.0).sum(),
        "clipped": (outside & valid).sum().to(ratio.dtype),
    }


def _peaks(difference: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Return largest values over rows; ``deviation`` is of unclamped ratios: max |r_k − 1| over heads, and |r − 1|."""
    joint = difference.sum(dim=-1)
    return {
        "deviation": torch.maximum(largest(difference.expm1().abs()), largest(joint.expm1().abs())),
        "ratio_max": largest(torch.where(valid, joint, -torch.inf).exp()),
        "minus_ratio_min": largest(-torch.where(valid, joint, torch.inf).exp()),
    }


# Step.


class Adam(torch.optim.AdamW):
    """Adam (Kingma, Ba 2015, arXiv 1412.6980) in torch's fused form, which passes over the weights once.

    All state exists from the start, so every checkpoint has the same names.
    """

    grad_scale: Tensor | None
    found_inf: Tensor | None  # 1 on the device of the weights: the next step changes nothing

    def __init__(self, module: nn.Module, learning_rate: float, eps: float) -> None:
        self.named = dict(module.named_parameters())
        self.parameters = list(self.named.values())
        super().__init__(self.parameters, lr=learning_rate, eps=eps, weight_decay=0.0, fused=True)
        for parameter in self.parameters:
            self.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def tensors(self) -> dict[str, Tensor]:
        """Return ``step`` (one for all) and both moments by the parameter's name; copies."""
        state: dict[str, Tensor] = {"step": self.state[self.parameters[0]]["step"].clone()}
        for name, parameter in self.named.items():
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"{moment}.{name}"] = self.state[parameter][moment].clone()
        return state

    @torch.no_grad()
    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Restore what ``tensors`` returned."""
        for name, parameter in self.named.items():
            own = self.state[parameter]
            own["step"].copy_(state["step"])
            for moment in ("exp_avg", "exp_avg_sq"):
                own[moment].copy_(state[f"{moment}.{name}"])


# The update: minibatches → losses → step → stop.


class PPO:
    """Learn one policy.

    ``total_updates`` is the length of the schedules. Over several processes ``reduce(tensor, "sum" | "max")`` combines
    a tensor of all of them and ``all_env_ids`` names every environment; all then take the same steps.

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
        reduce: Reduce = alone,
        all_env_ids: Tensor | None = None,
    ) -> None:
        self.policy, self.settings, self.rng_seed = policy, settings, rng_seed
        self.total_updates, self.reduce = total_updates, reduce
        self.all_env_ids = None if all_env_ids is None else all_env_ids.cpu()
        self.adam = Adam(policy, settings.learning_rate, settings.adam_eps)
        self.groups = policy.groups()
        parts = [{id(parameter) for parameter in part} for part in (*self.groups.values(), self.adam.parameters)]
        members = [[id(parameter) in part for parameter in self.adam.parameters] for part in parts]
        self.members = torch.tensor(members, device=policy.like.device)  # [parts, parameters]
        names = [head.name for head in policy.action_spec.heads]
        for name in settings.entropy_scale:
            if name not in names:
                raise SimicError(f"ppo.entropy_scale: there is no head {name!r}; the heads are {', '.join(names)}")
        scale = [settings.entropy_scale.get(name, 1.0) for name in names]
        self.entropy_scale = policy.like.new_tensor(scale) if settings.entropy_scale else None
        self.reads_are_free = policy.like.device.type == "cpu"
        self.updates = 0  # with at least one step: schedules count what was executed
        self.annealed_from = 0
        self.skipped_steps = 0
        self._known_ids: tuple[Tensor, Tensor] | None = None

    def update(self, rollout: Rollout, iteration: int) -> UpdateMetrics:
        """Learn from several epochs of minibatches over environments, of a policy without memory over single steps.

        The rollout must carry advantages and returns.
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
        log, probe = Log(once=scales(rollout, self.reduce)), None

        # Advantages: where one action was legal nothing was decided, and they say nothing about a decision.
        used = usage(self.policy, rollout, min(self.settings.minibatches, len(everyone)), self.reduce)
        decided = used.open.any(dim=-1)
        rollout = replace(rollout, advantages=normalized(rollout.advantages, decided, self.reduce))

        rate, entropy_coef = self.learning_rate(), self.entropy_coef()
        coefs = entropy_coef if self.entropy_scale is None else entropy_coef * self.entropy_scale
        alive = torch.ones((), dtype=torch.bool, device=rollout.valid.device)  # until the divergence ends the update

        # Minibatches: some environments, whole rows.
        for epoch, envs in self._minibatches(own, everyone.sort().values, iteration, used.minibatches):
            rows = upload(envs, rollout.valid.device)
            batch = rollout.select(rows)

            # Losses: replay under the present weights, objective and gradient.
            seen = self.replay(batch)
            if probe is None:
                probe = Probe(self.policy, batch, seen)
                log.once |= health(seen, batch.valid, self.reduce)
            losses = terms(seen, batch, used.select(rows), self.settings, coefs)
            norms = self._backward(losses.loss)
            losses = losses.reduced(self.reduce)

            # Step, unless the divergence is too large or something is not finite.
            diverged, finite = self._verdict(losses, norms[-1])
            self._step(rate, norms[-1], alive & finite & ~diverged)
            verdicts = torch.stack((diverged, finite))
            log.rows.append(losses.sums | losses.peaks | {"norms": norms, "verdicts": verdicts})
            log.epochs.append(epoch + 1)

            # Stop.
            alive = alive & ~(diverged & finite)
            if self.reads_are_free and not alive:
                break  # elsewhere asking would make the host wait: the rest is computed in vain, and skipped
        assert probe is not None
        log.once |= {"exact_kl": probe.divergence(self.reduce)}
        log.once |= {"samples": used.rows, "samples_by_head": used.open_rows}
        return self._report(log, rate, entropy_coef)

    def _on_host(self, env_ids: Tensor) -> Tensor:
        """Fetch ids once: they are the same tensor in every rollout."""
        if self._known_ids is None or self._known_ids[0] is not env_ids:
            self._known_ids = env_ids, env_ids.cpu()
        return self._known_ids[1]

    def _minibatches(
        self, env_ids: Tensor, everyone: Tensor, iteration: int, parts: int
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield epoch and positions in ``env_ids``; the order is a hash, equal for every grouping of environments."""
        for epoch in range(self.settings.epochs):
            order = rng.permutation(rng.key(self.rng_seed, rng.Purpose.MINIBATCH, iteration, epoch), len(everyone))
            for chosen in everyone[order].tensor_split(parts):
                yield epoch, torch.isin(env_ids, chosen).nonzero().flatten()

    def replay(self, batch: Rollout) -> Replayed:
        """Score the recorded decisions under the present weights."""
        starts = batch.starts if batch.starts_inside else None
        return self.policy.replay(batch.observation(), batch.actions, batch.state, batch.valid, starts)

    def _backward(self, loss: Tensor) -> Tensor:
        """Hand the optimizer the gradients, summed over processes in one exchange; return their norms before clipping,
        by part of the policy with the total last. Parameters that the loss does not reach have 0.
        """
        gradients = torch.autograd.grad(loss, self.adam.parameters, allow_unused=True, materialize_grads=True)
        if self.reduce is not alone:
            gradients = as_one(gradients, lambda flat: self.reduce(flat, "sum"))
        for parameter, gradient in zip(self.adam.parameters, gradients, strict=True):
            parameter.grad = gradient
        squares = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).square()
        return torch.where(self.members, squares, 0.0).sum(dim=-1).sqrt()

    def _verdict(self, losses: Terms, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether the divergence is too large, and whether loss and gradient are finite. From sums over all
        processes, so all agree.
        """
        sums, target = losses.sums, self.settings.target_kl
        kl = sums["kl"].sum() / sums["rows"].clamp(min=1)
        loss = sums["policy_loss"] + sums["value_loss"] + sums["entropy"].sum()
        return kl > (torch.inf if target is None else EARLY_STOP * target), (norm + kl + loss).isfinite()

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

    def anneal_over(self, updates: int) -> None:
        """Start the schedules again, to end in the last of so many more updates."""
        self.annealed_from, self.total_updates = self.updates, updates

    def _progress(self) -> float:
        """Return 0 in the first update of the schedules, 1 in the last."""
        return min(1.0, (self.updates - self.annealed_from) / max(1, self.total_updates - 1))

    def entropy_coef(self) -> float:
        """Return the coefficient of this update: linear from ``entropy_coef`` to ``entropy_coef_final``."""
        done = self._progress()
        return self.settings.entropy_coef + done * (self.settings.entropy_coef_final - self.settings.entropy_coef)

    def learning_rate(self) -> float:
        """Return the rate of this update: constant, or linear to a fifth in the last."""
        falls = 1.0 - LINEAR_END if self.settings.learning_rate_schedule == "linear" else 0.0
        return self.settings.learning_rate * (1.0 - falls * self._progress())

    def _report(self, log: Log, rate: float, entropy_coef: float) -> UpdateMetrics:
        heads = [head.name for head in self.policy.action_spec.heads]
        metrics, stepped = log.summarize(heads, tuple(self.groups), self.settings.max_grad_norm)
        self.updates += stepped
        self.skipped_steps += metrics["skipped_steps"]
        return UpdateMetrics(
            **metrics,
            first_ratio_ok=metrics["first_ratio_deviation"] < RATIO_TOLERANCE,
            entropy_coef=entropy_coef,
            learning_rate=rate,
            updates=self.updates,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return weights, moments and counters as plain tensors by name; copies."""
        parts = {
            "policy": {name: tensor.detach().clone() for name, tensor in self.policy.state_dict().items()},
            "adam": self.adam.tensors(),
            "counter": {"updates": torch.tensor(self.updates), "skipped_steps": torch.tensor(self.skipped_steps)},
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on exactly from there; SimicError when a tensor is missing, unknown or of another shape."""
        refuse_mismatch("the agent's checkpoint", self.state_dict(), state)
        self.policy.load_state_dict(part_of(state, "policy."))
        self.adam.load_tensors(part_of(state, "adam."))
        self.updates = int(state["counter.updates"])
        self.skipped_steps = int(state["counter.skipped_steps"])
