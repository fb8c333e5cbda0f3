"""E hosts that grow, as one vector environment: act, then train, then measure, then pay.

``step``: gates on the last measurements → op → alpha tick → host epoch → validation with all ablations → vital signs
(a broken host is rolled back and measured again) → snapshot of healthy hosts → reward on (s, effective op, s') →
observation and masks of s'. An episode is T steps of all hosts; nothing resets by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from simic import rng
from simic.agent.export import masked_heads
from simic.agent.spec import Observation
from simic.data.batches import Dataset, epoch_order
from simic.envs import governor, rewards, tracker
from simic.envs.actions import (
    action_masks,
    action_spec,
    choices,
    legal,
    open_choices,
    seed_budget,
    to_action,
    waiting_where,
)
from simic.envs.attribution import Attribution, attribute, measurable, switched_off
from simic.envs.governor import Cause, Vitals
from simic.envs.observations import View, columns, observation_spec, observe
from simic.envs.records import EpisodeState, StepInfo, Trials
from simic.envs.rewards import Setting, Transition, score
from simic.envs.tracker import Tracker
from simic.errors import DecisionFault, SimicError
from simic.growth.batch.forward import Backend
from simic.growth.batch.groups import SlotState
from simic.growth.batch.population import Population
from simic.growth.batch.statistics import TrainStats
from simic.growth.life.lifecycle import LIVE_STAGES, Events, advance, in_stages, prune_live, record
from simic.growth.life.vocabulary import Action, Ramp, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import build_host
from simic.params import Train
from simic.rng import Purpose
from simic.transfer import constant


class GrowthEnv(VectorEnv):
    """E hosts under the control of one policy; observations, rewards and masks are tensors on one device.

    Args:
        train: Settings of hosts, lifecycle, rewards and episodes.
        rng_seed: Seed of the run.
        dataset_train: Tasks with the samples that hosts learn from.
        dataset_val: The same tasks with the samples that hosts are measured on.
        env_ids: Names of the environments ``[E]`` for the random numbers, so that any grouping of them plays the same
            episodes; by default 0…envs-1.
        device: Where everything is.
        backend: How hosts are computed.
        compose: Builds the population; faults are injected by passing another one.
        train_tasks: Tasks of training are so many first ones of the bank, in turn; by default all.
        kinds: Of which kind each task of the bank is (-1: none), for the critic alone.
        group: Hosts that are computed together; by default all.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED, "render_modes": []}  # noqa: RUF012 - gymnasium's own form

    def __init__(
        self,
        train: Train,
        rng_seed: int,
        dataset_train: Dataset,
        dataset_val: Dataset,
        env_ids: Tensor | None = None,
        device: torch.device | str = "cpu",
        backend: Backend = "auto",
        compose: Callable[..., Population] = Population,
        train_tasks: int | None = None,
        kinds: Sequence[int] = (),
        group: int | None = None,
    ) -> None:
        # Validation on other classes would be measured without an error, and mean nothing.
        if (dataset_train.classes, dataset_train.task_classes) != (
            dataset_val.classes,
            dataset_val.task_classes,
        ):
            raise SimicError(
                f"validation data has {dataset_val.classes} classes and {dataset_val.tasks} tasks: allowed is the "
                f"training data's {dataset_train.classes} and {dataset_train.tasks}, with the same classes"
            )
        # The first reset begins iteration 0.
        self.train = train
        self.rng_seed = rng_seed
        self.iteration = -1
        self.steps = train.longest_episode
        self.device = torch.device(device)
        # Environments have names for the random numbers, apart from their place here.
        self.env_ids = torch.arange(train.envs) if env_ids is None else env_ids
        self.env_ids = self.env_ids.to(self.device)
        self.num_envs = len(self.env_ids)
        self.host_ids = self.env_ids
        self.training_data = dataset_train.of("train")
        self.validation_data = dataset_val.of("val")
        self.host = build_host(train.host, dataset_train.shape, dataset_train.classes)
        self.blueprints = blueprints_of(self.host.family)
        self.population = compose(
            self.host,
            self.blueprints,
            self.host_ids,
            rng_seed,
            train.host_optimizer,
            self.device,
            backend,
        )
        self.population.group = group or self.num_envs
        # Tasks of the bank, and of which kind they are.
        self.tasks_in_bank = dataset_train.tasks
        self.kinds = tuple(kinds)
        self.kind_of = torch.tensor(self.kinds or (-1,) * self.tasks_in_bank, device=self.device)
        self.train_tasks = train_tasks or self.tasks_in_bank
        self._assign(torch.zeros_like(self.env_ids))
        # What may be decided, and what seeds may cost.
        self.choices = choices(self.host.slots, [item.name for item in self.blueprints])
        self.left_open = open_choices(train.actions, self.choices, self.device)
        self.budget = seed_budget(
            self.host,
            self.blueprints,
            train.lifecycle.param_budget,
            self.device,
            self.left_open.get("blueprint"),
        )
        self._describe()
        self._state: EpisodeState | None = None
        self._step = 0
        self._all_alive = True

    def _describe(self) -> None:
        """Make the specs for the policy and the spaces that gymnasium asks for."""
        # The policy reads the specs; the spaces are what Gymnasium's checkers and other agents ask for.
        slots = self.host.slots
        blueprints = len(self.blueprints)
        self.action_spec = action_spec(slots, blueprints)
        self.observation_spec = observation_spec(slots, blueprints, 1 + max(self.kinds, default=-1))
        table = [row for _, row in columns(slots, blueprints)]
        low = torch.tensor([row.low for row in table]).numpy()
        high = torch.tensor([row.high for row in table]).numpy()
        self.single_observation_space = spaces.Box(low, high)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = spaces.MultiDiscrete(
            [head.size for head in self.action_spec.heads]
        )
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _assign(self, tasks: Tensor) -> None:
        """Give every host its task ``[E]``, and what depends on it."""
        self.tasks = tasks
        self.chance_loss = self.training_data.chance_loss[tasks]
        # A gamma other than the agent's would change the task (Ng, Harada, Russell 1999).
        self.setting = Setting(
            weights=self.train.reward,
            gamma=self.train.ppo.gamma,
            episode_steps=self.steps,
            host_params=self.host.params,
            param_budget=self.train.lifecycle.param_budget,
            price=self.train.price,
            chance_loss=self.chance_loss,
        )

    def length_of(self, iteration: int) -> int:
        """Draw the number of steps of a training episode of that iteration."""
        # One length for all hosts of an iteration: they step together.
        low = self.train.shortest_episode
        high = self.train.longest_episode
        word = int(rng.bits(rng.key(self.rng_seed, Purpose.EPISODE_LENGTH, iteration)))
        return low + (word & 0x7FFFFFFF) % (high - low + 1)

    def _drawn_tasks(self) -> Tensor:
        """Choose the tasks of training in turn, from one that depends on the run: all kinds occur equally often."""
        first = int(rng.bits(rng.key(self.rng_seed, Purpose.TASK))) % self.train_tasks
        return (first + self.iteration * self.train.envs + self.host_ids) % self.train_tasks

    @property
    def openings(self) -> Tensor:
        """Which blueprints fit the slots of a bare host, by budget and ``train.actions``, bool ``[K, P]``."""
        # Of a bare host: no living seed holds a reserve yet.
        possible = (self.budget.reserve <= self.budget.limit) & self.budget.runs
        return possible & self.left_open["slot"][:, None] if "slot" in self.left_open else possible

    @property
    def masked(self) -> tuple[str, ...]:
        always = masked_heads(self.action_spec)
        return tuple(
            head.name for head in self.action_spec.heads if head.name in (*always, *self.left_open)
        )

    @property
    def state(self) -> EpisodeState:
        """The running episode; SimicError before the first reset."""
        if self._state is None:
            raise SimicError("environment: no episode is running; call reset first")
        return self._state

    @property
    def slots(self) -> Slots:
        return self.state.slots

    def reset(  # pyright: ignore[reportIncompatibleMethodOverride] - a typed record instead of a dict
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, StepInfo]:
        """Start an episode with fresh, untrained hosts; return its first observation after one validation.

        ``options`` are its number ``iteration`` (default: the next), its length ``steps`` and the ``tasks [E]`` of its
        hosts (default: as drawn for training), their names ``host_ids [E]`` (default: the environments' ids). ``seed``
        replaces the run's rng_seed.
        """
        # Which episode this is, and on which tasks.
        # Another seed is another run, whose episodes are counted from the start.
        if seed is not None:
            self.rng_seed = self.population.rng_seed = seed
            self.iteration = -1
        options = options or {}
        self.iteration = options.get("iteration", self.iteration + 1)
        self.steps = options.get("steps") or self.length_of(self.iteration)
        self._step = 0
        self._all_alive = True
        tasks = options.get("tasks")
        host_ids = options.get("host_ids")
        self.host_ids = self.env_ids if host_ids is None else host_ids.to(self.device)
        self._assign(self._drawn_tasks() if tasks is None else self._checked(tasks))

        # Fresh hosts, measured once before they are trained.
        self.population.reset(self.iteration, self.tasks, self.host_ids)
        self.alignment = self.population.aligned(self.training_data)
        slots = Slots.empty(self.num_envs, self.host.slots, self.device)
        measured = self._validate(slots, SlotState.read(slots))
        yes = torch.ones_like(self.env_ids, dtype=torch.bool)
        # The validation of an untrained host: the first observation and the first difference of rewards need one.
        self._state = EpisodeState(
            slots=slots,
            tracker=tracker.update(
                Tracker.empty(self.num_envs, self.device), measured.loss, measured.accuracy
            ),
            vitals=Vitals.empty(self.num_envs, self.train.governor, self.device),
            alive=yes,
            measured=measured,
            trained=TrainStats.unmeasured(self.num_envs, self.host.slots, self.device),
            effective_op=torch.full_like(self.env_ids, -1),
            succeeded=yes,
            seed_params=self.population.seed_params(slots),
            ledgers=rewards.start(self.train.reward.mode, slots, measured.loss, self.setting),
            trials=Trials.none(self.num_envs, len(self.blueprints), self.device),
        )
        # The host to go back to, should it break in its first epoch.
        self.population.take_snapshot()
        nothing = torch.zeros_like(slots.stage, dtype=torch.bool)
        return self._observe(), self._info(
            None, {}, torch.full_like(self.env_ids, Cause.NONE), yes, nothing
        )

    def step(  # pyright: ignore[reportIncompatibleMethodOverride] - a typed record instead of a dict
        self, actions: Action | Tensor
    ) -> tuple[Observation, Tensor, Tensor, Tensor, StepInfo]:
        """Execute a decision and an epoch of every host; reward ``[E]`` float64, terminated and truncated ``[E]``."""
        # The ops, refused before anything moves where the masks forbid one. What the CPU must know of the slots, to
        # choose which networks run, comes in one transfer with the refusals.
        before = self.state
        action, illegal = self._playable(actions)
        slots, events = advance(before.slots, action, self.train.lifecycle, before.tracker.accuracy)
        read = SlotState.read(slots, events.germinated, illegal[:, None].expand_as(slots.stage))
        germinated, refused = read.flags
        if refused.any():
            row = int(refused[:, 0].argmax())
            forbidden = to_action(actions) if isinstance(actions, Tensor) else actions
            heads = {name: int(choice[row]) for name, choice in forbidden._asdict().items()}
            raise DecisionFault(
                f"action {heads} of host {row} at step {self._step}: forbidden by the masks"
            )

        # An epoch of training, measured. A live seed that a new one replaced is noted: its slot is occupied before and
        # after.
        self._step += 1
        self.population.germinate(slots, germinated, self.training_data, read)
        stats = self._train_epoch(slots, read, before.alive)
        replaced = events.germinated & in_stages(before.slots.stage, LIVE_STAGES)
        slots, measured, vitals, cause = self._measure(slots, read, stats, before, replaced)
        slots = record(
            slots,
            measured.accuracy,
            measured.contribution,
            measured.contribution_se,
            stats.gradient_ratio,
            stats.gradient_healthy,
        )
        self._state = EpisodeState(
            slots=slots,
            tracker=tracker.update(before.tracker, measured.loss, measured.accuracy),
            vitals=vitals,
            alive=before.alive & (cause == Cause.NONE),
            measured=measured,
            trained=stats,
            effective_op=events.effective_op,
            succeeded=(events.gate < 0) | events.gate_passed,
            seed_params=self.population.seed_params(slots),
            ledgers=before.ledgers,
            trials=before.trials.after(slots, events.germinated),
        )

        # The reward of the transition; hosts that had ended before earn nothing.
        mode = self.train.reward.mode
        transition = self._transition(before, action, events)
        self._state = replace(self.state, ledgers=rewards.advance(mode, transition, self.setting))
        parts = rewards.components(mode, transition, self.setting)
        parts = {name: torch.where(before.alive, value, 0.0) for name, value in parts.items()}
        truncated = transition.ended & ~transition.terminal
        info = self._info(events, parts, cause, before.alive, replaced)
        return self._observe(), rewards.total(parts), transition.terminal, truncated, info

    def committed(self, test: Dataset) -> tuple[Tensor, Tensor]:
        """Measure accuracy (points) and loss ``[E]`` of hosts with FOSSILIZED seeds alone, on the test split."""
        off = measurable(self.slots) & (self.slots.stage != Stage.FOSSILIZED)
        # All seeds but the fossilized are forced out: what is left is what would be kept.
        answers = self.population.evaluate(self.slots, test.of("test"), off[None])
        [correct] = answers.correct
        [loss] = answers.loss
        accuracy = 100.0 * correct.float().mean(dim=1)
        return torch.where(loss.isfinite(), accuracy, torch.nan), loss

    def _checked(self, tasks: Tensor) -> Tensor:
        """Raise SimicError unless there is one task for each host, and the bank has it."""
        # An index behind the bank would read the samples of no task.
        if (
            tasks.shape != self.env_ids.shape
            or not ((tasks >= 0) & (tasks < self.tasks_in_bank)).all()
        ):
            raise SimicError(
                f"reset: tasks {tasks.tolist()}: must be {self.num_envs}, one for each host, each of 0 to "
                f"{self.tasks_in_bank - 1}"
            )
        return tasks.to(self.device)

    def _playable(self, actions: Action | Tensor) -> tuple[Action, Tensor]:
        """Split an action into heads with WAIT for ended rows, and find the rows ``[E]`` whose masks forbid theirs."""
        # Ended hosts wait, and indices outside a head's range become WAIT, so that the masks can be looked up at all.
        alive = self.state.alive
        if self._step >= self.steps:
            raise SimicError(
                f"environment: the episode ended at step {self.steps}; call reset first"
            )
        action = waiting_where(
            ~alive, to_action(actions) if isinstance(actions, Tensor) else actions
        )
        sizes = constant(
            tuple(head.size for head in self.action_spec.heads), torch.int64, self.device
        )[:, None]
        chosen = torch.stack(tuple(action))
        outside = ((chosen < 0) | (chosen >= sizes)).any(dim=0)
        action = waiting_where(outside, action)
        return action, outside | ~legal(self.action_spec, self._masks, action)

    def _transition(self, before: EpisodeState, action: Action, events: Events) -> Transition:
        """Describe (s, effective op, s') with s' the present state, and how the step ended."""
        # Read after the state was replaced: every difference of a reward is between what this step found and what it
        # left.
        after = self.state
        panicked = before.alive & ~after.alive
        ended = after.alive & (self._step == self.steps)
        return Transition(
            before=before.slots,
            after=after.slots,
            op=events.effective_op,
            slot=action.slot,
            seed_params_before=before.seed_params,
            seed_params_after=after.seed_params,
            stable_accuracy=after.tracker.stable_accuracy(self.train.reward.escrow.window),
            committed_accuracy_before=before.measured.committed_accuracy,
            committed_accuracy=after.measured.committed_accuracy,
            loss=after.measured.loss,
            committed_loss=after.measured.committed_loss,
            ended=ended,
            terminal=panicked | (ended & (self.train.episode_end == "terminate")),
            panicked=panicked,
            ledgers=before.ledgers,
        )

    def _train_epoch(self, slots: Slots, read: SlotState, alive: Tensor) -> TrainStats:
        """Train every host for an epoch; put hosts that ended by a rollback back to their snapshot."""
        # Samples are drawn by name of the host; each task has its part of the data.
        order = epoch_order(
            self.rng_seed,
            self.iteration,
            self.host_ids,
            self._step,
            len(self.training_data),
            self.train.batch_size,
            self.train.batches_per_epoch,
        )
        order = order + (self.tasks * len(self.training_data))[:, None, None]
        stats = self.population.train_epoch(slots, self.training_data, order, read)
        # Hosts that ended are trained along, since all run together, and put back.
        if not self._all_alive:
            self.population.restore(~alive)
        return stats

    def _measure(
        self,
        slots: Slots,
        read: SlotState,
        stats: TrainStats,
        before: EpisodeState,
        replaced: Tensor,
    ) -> tuple[Slots, Attribution, Vitals, Tensor]:
        """Validate with ablations, check vital signs, roll broken hosts back and snapshot healthy ones."""
        # NaN anywhere in training or in what would be kept.
        measured = self._validate(slots, read)
        finite = stats.finite & measured.committed_loss.isfinite()
        # A seed that was taken away may have carried the network: that is a decision, no accident.
        pruned = (slots.stage == Stage.PRUNED) & (before.slots.stage != Stage.PRUNED)
        removal = (slots.ramp == Ramp.DOWN) | pruned | replaced
        vitals, cause, healthy = governor.check(
            before.vitals.forgotten(removal.any(dim=1)),
            measured.loss,
            finite,
            self.chance_loss,
            self.train.governor,
        )
        # A broken host gets the weights of its last healthy moment, without live seeds, and is measured again: the
        # reward must be paid for the state that the host is in now.
        cause = torch.where(before.alive, cause, int(Cause.NONE))
        panicked = cause != Cause.NONE
        if bool(panicked.any()):
            self._all_alive = False
            self.population.restore(panicked)
            slots = prune_live(slots, panicked)
            measured = measured.replaced(panicked, self._validate(slots, SlotState.read(slots)))
        self.population.refresh_snapshot(healthy & before.alive, slots)
        return slots, measured, vitals, cause

    def _validate(self, slots: Slots, read: SlotState) -> Attribution:
        off = switched_off(read.acting, read.stage == Stage.FOSSILIZED)
        answers = self.population.evaluate(slots, self.validation_data, off, read)
        return attribute(slots, answers.correct, answers.loss)

    def _observe(self) -> Observation:
        state = self.state
        # Features, then the masks under which the next action is sampled.
        view = View(
            state=state,
            step=self._step,
            episode_steps=self.steps,
            chance_loss=self.chance_loss.float(),  # as the losses are, which it divides
            host_params=self.host.params,
            param_budget=self.train.lifecycle.param_budget,
            alignment=self.alignment,
        )
        self._masks = action_masks(state.slots, self.train.lifecycle, self.budget, self.left_open)
        privileged = self.kind_of[self.tasks][:, None] if self.kinds else None
        return Observation(observe(view), state.slots.blueprint, self._masks, privileged)

    def _info(
        self,
        events: Events | None,
        parts: dict[str, Tensor],
        cause: Tensor,
        valid: Tensor,
        replaced: Tensor,
    ) -> StepInfo:
        """Describe the step that led to the present state; a reset has no ``events`` and ``parts``."""
        # Everything a log could want is already on the device; it is handed out as it is and fetched once an episode.
        state = self.state
        slots = state.slots
        measured = state.measured
        host = self.host
        # What was grown, and what of it is kept.
        seed_flops = self.population.seed_flops(slots)
        fossilized = slots.stage == Stage.FOSSILIZED
        fossilized_params = torch.where(fossilized, state.seed_params, 0).sum(dim=1)
        return StepInfo(
            effective_op=state.effective_op,
            gate=events.gate if events else torch.full_like(cause, -1),
            gate_passed=events.gate_passed if events else torch.zeros_like(valid),
            components=parts,
            live_accuracy=measured.accuracy,
            committed_accuracy=measured.committed_accuracy,
            score=score(
                measured.committed_accuracy, fossilized_params, host.params, self.train.price
            ),
            all_off_accuracy=measured.all_off_accuracy,
            val_loss=measured.loss,
            train_loss=state.trained.loss,
            host_grad_norm=state.trained.host_grad_norm,
            seed_grad_norm=state.trained.seed_grad_norm,
            contribution=measured.contribution,
            contribution_se=measured.contribution_se,
            stage=slots.stage,
            blueprint=slots.blueprint,
            alpha=slots.alpha,
            params=host.params + state.seed_params.sum(dim=1),
            committed_params=host.params + fossilized_params,
            flops=host.flops_per_sample + seed_flops.sum(dim=1),
            committed_flops=host.flops_per_sample
            + torch.where(fossilized, seed_flops, 0).sum(dim=1),
            panicked=cause != Cause.NONE,
            cause=cause,
            valid=valid,
            replaced=replaced,
        )
