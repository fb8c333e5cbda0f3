"""One host in its growth environment in float64; all follows from its identity and the decisions."""

import copy
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from simic.certify import bank, masks, rewards, streams
from simic.certify.alignment import alignments
from simic.certify.bank import Bank, NoReference
from simic.certify.epochs import (
    NAN,
    Answers,
    Epoch,
    Memory,
    On,
    PartLearner,
    Validation,
    answers,
    minibatches,
    validate,
)
from simic.certify.life import FOSSILIZED, GATE, GERMINATE, MULTIPLY, Measured, Outcome, Slot, advance, remember
from simic.certify.masks import Masks, decision
from simic.certify.modules import FITTED_ROWS
from simic.certify.networks import Anatomy, Weights, anatomy, host_parts, part_of
from simic.certify.observations import History, Sight, Trial, features
from simic.params import Params, Train

SEED_MODULE, GATE_MODULE = 0, 1  # last counter of their streams
Action = dict[str, int]  # index of the choice of every head


@dataclass(frozen=True)
class World:
    """Hold what all hosts of a run share."""

    params: Params
    bank: Bank

    @classmethod
    def read(cls, params: Params, prepared: Path, tasks: Bank | None = None) -> "World":
        """Read a run's prepared data; ``tasks`` are those of training and validation unless given. NoReference for
        settings that the reference does not implement.
        """
        mode = params.train.reward.mode
        if mode not in rewards.MODES:
            raise NoReference(f"train.reward.mode = {mode!r}: the reference has only {', '.join(rewards.MODES)}")
        world = cls(params, tasks or bank.read(prepared))
        _ = world.body  # refuses hosts that it does not know
        return world

    @cached_property
    def body(self) -> Anatomy:
        """Return how every host is built."""
        return anatomy(self.params.train.host, self.bank.shape, self.bank.classes)

    def steps_of(self, iteration: int) -> int:
        """Return the length of the training episodes of an iteration."""
        return streams.episode_length(self.params.train.episode_steps, self.params.rng_seed, iteration)

    def task_of(self, iteration: int, host_id: int) -> int:
        """Return the task of a host: training tasks in turn, from one that depends on the run."""
        train, tasks = self.params.train, self.bank.of_training
        return (streams.first_task(self.params.rng_seed, tasks) + iteration * train.envs + host_id) % tasks


@dataclass(frozen=True)
class Told:
    """Hold what telemetry and observations have of one step; accuracies in points, NaN = not measured."""

    numbers: dict[str, float]
    per_slot: dict[str, list[float]]
    components: dict[str, float]
    features: list[float]
    categories: list[int]
    masks: Masks


@dataclass
class ReferenceHost:
    """Play an episode: call ``reset``, then for each step ``train`` and ``measure``."""

    world: World
    host_id: int
    iteration: int
    task: int
    steps: int  # of the episode
    weights: Weights = field(init=False)
    memories: dict[str, Memory] = field(init=False, default_factory=dict)
    slots: list[Slot] = field(init=False)
    trials: list[Trial] = field(init=False)
    history: History = field(init=False, default_factory=History)
    step: int = field(init=False, default=0)
    epoch: Epoch | None = field(init=False, default=None)
    order: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        bank = self.world.bank
        self.training, self.validating = bank.samples("train", self.task), bank.samples("val", self.task)
        self.classes = bank.task_classes[self.task]
        count = self.world.body.slots
        self.slots = [Slot() for _ in range(count)]
        self.weights = Weights(self._initial(), [None] * count, [None] * count)
        aligned = alignments([*self.world.body.blueprints[0].values()], self.training.x, self.training.y)
        self.trials = [Trial(each) for each in aligned]
        self.memories["host"] = Memory.fresh(self.weights.host, self.world.params.train.host_optimizer)

    # --- an episode ---

    def reset(self) -> Told:
        """Measure the untrained host."""
        validation = self._validated()
        self.history.add(validation.loss, validation.accuracy)
        self._remembered = self._state(validation)
        return self._told(validation, Outcome(-1, -1, passed=False), {})

    def train(self, action: Action) -> None:
        """Execute the action and train an epoch."""
        self.step += 1
        self._action, chosen = action, decision(action)
        self._outcome = advance(self.slots, chosen, self.world.params.train.lifecycle, self.history.accuracies[-1])
        if self._outcome.op == GERMINATE:
            self._plant(chosen.slot)
        self.epoch = self._learner().epoch(minibatches(self.training, self._order(), self._settings.batch_size))

    def measure(self) -> Told:
        """Validate, update the seeds, and pay the reward."""
        validation, epoch = self._validated(), self.epoch
        assert epoch is not None
        for k, slot in enumerate(self.slots):
            worth = validation.contribution[k], validation.contribution_se[k]
            remember(slot, Measured(validation.accuracy, *worth, epoch.ratios[k], epoch.healthy[k]))
        self._try_out()
        self.history.add(validation.loss, validation.accuracy)
        before, self._remembered = self._remembered, self._state(validation)
        ended = self.step == self.steps
        step = rewards.Step(before, self._remembered, self._outcome.op, self._action["slot"], ended)
        paid = rewards.components(step, self._settings, self.world.body.params, self.steps)
        return self._told(validation, self._outcome, paid)

    def masks(self) -> Masks:
        """Return the masks of the present state."""
        return masks.masks(self.slots, self.world.body, self._settings)

    # --- parts of a step ---

    @property
    def _settings(self) -> Train:
        return self.world.params.train

    def _initial(self) -> dict[str, Tensor]:
        given, params = self.world.bank.host, self.world.params
        values: dict[str, Tensor] = {}
        for number, (lead, part) in enumerate(host_parts(self.world.body)):
            if given is not None:
                values |= {lead + entry.name: given[lead + entry.name].double() for entry in part.entries}
                continue
            stream = streams.key(params.rng_seed, streams.HOST_INIT, self.iteration, self.host_id, number)
            values |= {lead + name: value for name, value in part.draw(stream).items()}
        return values

    def _plant(self, k: int) -> None:
        """Draw the first weights of a new seed, and of the gate that it may need later."""
        slot, rng_seed = self.slots[k], self.world.params.rng_seed
        part, gate = part_of(self.world.body, k, slot.seed.blueprint), self.world.body.gates[k]
        who = streams.SEED_INIT, self.iteration, self.host_id, k, slot.germinations
        values = part.draw(streams.key(rng_seed, *who, SEED_MODULE))
        if part.fit is not None:
            values |= part.fit(self.training.x[:FITTED_ROWS].flatten(1))
        if slot.seed.operator == MULTIPLY:
            for name in part.closing:
                values[name].zero_()
        gates = gate.draw(streams.key(rng_seed, *who, GATE_MODULE))
        self.weights.seeds[k], self.weights.gates[k] = values, gates
        for name, block in ((f"seed.{k}", values), (f"gate.{k}", gates)):
            self.memories[name] = Memory.fresh(block, self._settings.host_optimizer)

    def _order(self) -> list[int]:
        """Return the samples of the epoch in order: one permutation of the task's samples serves as many epochs as it
        has batches for.
        """
        settings, count = self._settings, len(self.training.y)
        whole = count // settings.batch_size
        batches = whole if settings.batches_per_epoch == "all" else settings.batches_per_epoch
        each, size = whole // batches, batches * settings.batch_size
        who = streams.BATCH_ORDER, self.iteration, self.host_id, self.step // each
        order = streams.permutation(streams.key(self.world.params.rng_seed, *who), count)
        first = self.step % each * size
        self.order = order[first : first + size].tolist()
        return self.order

    def _try_out(self) -> None:
        """Update the trials of blueprints; of two seeds of one blueprint the later slot's contribution counts."""
        for k, slot in enumerate(self.slots):
            if slot.seed.blueprint < 0:
                continue
            trial = self.trials[slot.seed.blueprint]
            trial.germinations += self._outcome.op == GERMINATE and self._action["slot"] == k
            if math.isfinite(slot.seed.contribution):
                trial.gained = slot.seed.contribution

    def _learner(self) -> PartLearner:
        return PartLearner(
            body=self.world.body,
            weights=self.weights,
            slots=self.slots,
            memories=self.memories,
            optimizer=self._settings.host_optimizer,
            host_frozen=self.world.bank.host is not None,
            task_classes=self.classes,
        )

    def _validated(self) -> Validation:
        known: dict[On, Answers] = {}

        def network(on: On) -> Answers:
            if on not in known:
                known[on] = answers(self.world.body, self.weights, self.slots, on, self.validating, self.classes)
            return known[on]

        return validate(self.slots, network)

    def _weighed(self, k: int, what: str) -> int:
        """Return parameters or FLOPs of a seed with its gate; 0 where there is none."""
        slot = self.slots[k]
        if not slot.alive:
            return 0
        own = getattr(part_of(self.world.body, k, slot.seed.blueprint), what)
        return own + (getattr(self.world.body.gates[k], what) if slot.seed.operator == GATE else 0)

    def _fossilized(self) -> list[bool]:
        return [slot.stage == FOSSILIZED for slot in self.slots]

    def _state(self, validation: Validation) -> rewards.State:
        sizes = [self._weighed(k, "params") for k in range(len(self.slots))]
        kept = sum(itertools.compress(sizes, self._fossilized()))
        return rewards.State(copy.deepcopy(self.slots), sizes, validation.committed_accuracy, kept)

    def _sight(self, validation: Validation, outcome: Outcome) -> Sight:
        epoch = self.epoch
        return Sight(
            slots=self.slots,
            history=self.history,
            step=self.step,
            steps=self.steps,
            chance=self.world.bank.chance_loss(self.task),
            train_loss=epoch.loss if epoch else NAN,
            train_accuracy=epoch.accuracy if epoch else NAN,
            op=outcome.op,
            succeeded=outcome.gate < 0 or outcome.passed,
            validation=validation,
            seed_params=self._remembered.seed_params,
            host_params=self.world.body.params,
            budget=self._settings.lifecycle.param_budget,
            trials=self.trials,
        )

    def _told(self, validation: Validation, outcome: Outcome, paid: Mapping[str, float]) -> Told:
        body, epoch, state = self.world.body, self.epoch, self._remembered
        sight = self._sight(validation, outcome)
        flops = [self._weighed(k, "flops") for k in range(body.slots)]
        numbers = {
            "effective_op": outcome.op,
            "gate": outcome.gate,
            "gate_passed": outcome.passed,
            "live_accuracy": validation.accuracy,
            "committed_accuracy": validation.committed_accuracy,
            "all_off_accuracy": validation.all_off_accuracy,
            "val_loss": validation.loss,
            "train_loss": sight.train_loss,
            "host_grad_norm": epoch.host_norm if epoch else NAN,
            "params": body.params + sum(state.seed_params),
            "committed_params": body.params + state.kept_params,
            "flops": body.flops + sum(flops),
            "committed_flops": body.flops + sum(itertools.compress(flops, self._fossilized())),
            "reward": math.fsum(paid.values()),
        }
        per_slot = {
            "seed_grad_norm": epoch.seed_norms if epoch else [NAN] * body.slots,
            "contribution": validation.contribution,
            "contribution_se": validation.contribution_se,
            "stage": [slot.stage for slot in self.slots],
            "blueprint": [slot.seed.blueprint for slot in self.slots],
            "alpha": [slot.seed.alpha for slot in self.slots],
        }
        return Told(
            numbers=numbers,
            per_slot={name: list(map(float, values)) for name, values in per_slot.items()},
            components=dict(paid),
            features=features(sight),
            categories=[slot.seed.blueprint for slot in self.slots],
            masks=self.masks(),
        )
