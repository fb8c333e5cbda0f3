"""One host in its growth environment in float64; all follows from its identity and the decisions."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simic.params import Params
from tests.reference import bank, life, rewards, streams
from tests.reference.bank import Bank, NoReference
from tests.reference.epochs import (
    NAN,
    Answers,
    Epoch,
    HostTrainer,
    On,
    Validation,
    answers,
    validate,
)
from tests.reference.life import (
    FOSSILIZED,
    GATE,
    GERMINATE,
    MULTIPLY,
    OPS,
    WAIT,
    Action,
    Outcome,
    Slot,
)
from tests.reference.modules import FITTED_ROWS, alignments
from tests.reference.networks import Anatomy, Block, Weights, anatomy, host_parts, part_of
from tests.reference.observations import History, Sight, Trial, features

SEED_MODULE = 0
GATE_MODULE = 1  # last counter of their streams
# By head: ``op [O]``, ``slot [O][K]`` given the op, ``blueprint [K][P]`` given the slot; others where the params close
# a choice.
Masks = dict[str, list[Any]]


@dataclass(frozen=True)
class World:
    params: Params
    bank: Bank

    @classmethod
    def read(cls, params: Params, prepared: Path, tasks: Bank | None = None) -> "World":
        """Read a run's prepared data; ``tasks`` are those of training and validation unless given. NoReference for
        settings that the reference does not implement.
        """
        mode = params.train.reward.mode
        if mode not in rewards.MODES:
            raise NoReference(
                f"train.reward.mode = {mode!r}: the reference has only {', '.join(rewards.MODES)}"
            )
        world = cls(params, tasks or bank.read(prepared))
        _ = world.body  # refuses hosts that it does not know
        return world

    @cached_property
    def body(self) -> Anatomy:
        return anatomy(self.params.train.host, self.bank.shape, self.bank.classes)

    def steps_of(self, iteration: int) -> int:
        return streams.episode_length(
            self.params.train.episode_steps, self.params.rng_seed, iteration
        )

    def task_of(self, iteration: int, host_id: int) -> int:
        """Return the task of a host: training tasks in turn, from one that depends on the run."""
        train = self.params.train
        tasks = self.bank.of_training
        return (
            streams.first_task(self.params.rng_seed, tasks) + iteration * train.envs + host_id
        ) % tasks


@dataclass(frozen=True)
class StepState:
    """Hold what telemetry and observations have of one step; accuracies in points, NaN = not measured. ``lead`` is
    that of the best class over the next, by validation sample.
    """

    numbers: dict[str, float]
    per_slot: dict[str, list[float]]
    components: Mapping[str, float]
    features: list[float]
    categories: list[int]
    masks: Masks
    lead: Tensor


class ReferenceHost:
    """Play an episode of so many ``steps``; ``told`` begins with the untrained host and grows with every ``play``."""

    def __init__(self, world: World, host_id: int, iteration: int, task: int, steps: int) -> None:
        self.world = world
        self.host_id = host_id
        self.iteration = iteration
        self.task = task
        self.steps = steps
        self.body = world.body
        self.settings = world.params.train
        self.rng_seed = world.params.rng_seed
        self.training = world.bank.samples("train", task)
        self.validating = world.bank.samples("val", task)
        self.classes = world.bank.task_classes[task]
        count = self.body.slots
        self.slots = [Slot() for _ in range(count)]
        optimizer = self.settings.host_optimizer
        self.weights = Weights(Block(self._initial(), optimizer.weight_decay))
        self.trainer = HostTrainer(self.body, self.weights, self.slots, optimizer, self.classes)
        aligned = alignments([*self.body.blueprints[0].values()], self.training.x, self.training.y)
        self.trials = [Trial(each) for each in aligned]
        self.history = History()
        self.step = 0
        self.epoch = Epoch(NAN, NAN, NAN, [NAN] * count, [NAN] * count, [False] * count)
        self.order: list[int] = []
        validation = self._validated()
        self.state = self._state(validation)
        self.states = [self._step_state(validation, Outcome(-1, -1, passed=False), {})]

    def play(self, action: Action) -> None:
        """Execute the action, train an epoch, validate, update the seeds, and pay the reward."""
        self.step += 1
        rules = self.settings.lifecycle
        accuracy = self.history.accuracies[-1]
        outcome = life.advance(self.slots, action, rules, accuracy)
        if outcome.op == GERMINATE:
            self._plant(action["slot"])
        self.order = self._order()
        batches = torch.tensor(self.order).reshape(-1, self.settings.batch_size)
        self.epoch = self.trainer.epoch(
            [(self.training.x[rows], self.training.y[rows]) for rows in batches]
        )
        validation = self._validated()
        for k, slot in enumerate(self.slots):
            worth = validation.contribution[k], validation.contribution_se[k]
            life.remember(
                slot, validation.accuracy, *worth, self.epoch.ratios[k], self.epoch.healthy[k]
            )
            if (
                slot.seed.blueprint >= 0
            ):  # of two seeds of one blueprint the later slot's contribution counts
                trial = self.trials[slot.seed.blueprint]
                trial.germinations += outcome.op == GERMINATE and action["slot"] == k
                if math.isfinite(slot.seed.contribution):
                    trial.gained = slot.seed.contribution
        before = self.state
        self.state = self._state(validation)
        step = rewards.Step(before, self.state, outcome.op, action["slot"], self.step == self.steps)
        paid = rewards.components(step, self.settings, self.body.params, self.steps)
        self.states.append(self._step_state(validation, outcome, paid))

    def _masks(self) -> Masks:
        """Return the masks of the present state: lifecycle, parameter budget, choices that the params leave open."""
        choices = {
            "op": OPS,
            "slot": range(self.body.slots),
            "blueprint": self.body.blueprints[0],
            "style": life.STYLES,
            "tempo": life.TEMPOS,
            "alpha_target": life.TARGETS,
            "alpha_speed": life.SPEEDS,
            "alpha_curve": life.CURVES,
        }
        left = dict[str, list[bool]]()
        chosen = self.settings.actions
        for head, values in choices.items():
            left[head] = [not chosen.get(head) or value in chosen[head] for value in values]
        slot = life.allowed(self.slots, self.settings.lifecycle)
        blueprint = self._affordable()
        for k, fits in enumerate(blueprint):
            for op in range(len(OPS)):
                slot[op][k] = slot[op][k] and left["op"][op] and (op == WAIT or left["slot"][k])
            fits = zip(fits, left["blueprint"], strict=True)
            blueprint[k] = [
                slot[GERMINATE][k] and affordable and is_left for affordable, is_left in fits
            ]
        slot[GERMINATE] = [any(row) for row in blueprint]
        masks = {"op": [any(row) for row in slot], "slot": slot, "blueprint": blueprint}
        return masks | {
            head: flags for head, flags in left.items() if head not in masks and not all(flags)
        }

    def _initial(self) -> dict[str, Tensor]:
        values = dict[str, Tensor]()
        for number, (lead, part) in enumerate(host_parts(self.body)):
            stream = streams.key(
                self.rng_seed, streams.HOST_INIT, self.iteration, self.host_id, number
            )
            values |= {lead + name: value for name, value in part.draw(stream).items()}
        return values

    def _plant(self, k: int) -> None:
        """Draw the first weights of a new seed, and of the gate that it may need later."""
        slot = self.slots[k]
        part = part_of(self.body, k, slot.seed.blueprint)
        who = self.rng_seed, streams.SEED_INIT, self.iteration, self.host_id, k, slot.germinations
        values = part.draw(streams.key(*who, SEED_MODULE))
        if part.fit is not None:
            values |= part.fit(self.training.x[:FITTED_ROWS].flatten(1))
        if slot.seed.operator == MULTIPLY:
            for name in part.closing:
                values[name].zero_()
        decay = self.settings.host_optimizer.seed_weight_decay
        self.weights.seeds[k] = Block(values, decay, part.fitted)
        self.weights.gates[k] = Block(
            self.body.gates[k].draw(streams.key(*who, GATE_MODULE)), decay
        )

    def _order(self) -> list[int]:
        """Return the samples of the epoch in order: one permutation of the task's samples serves as many epochs as it
        has batches for.
        """
        settings = self.settings
        count = len(self.training.y)
        whole = count // settings.batch_size
        batches = whole if settings.batches_per_epoch == "all" else settings.batches_per_epoch
        each = whole // batches
        size = batches * settings.batch_size
        who = self.rng_seed, streams.BATCH_ORDER, self.iteration, self.host_id, self.step // each
        first = self.step % each * size
        return streams.permutation(streams.key(*who), count)[first : first + size].tolist()

    def _affordable(self) -> list[list[bool]]:
        """Return where a seed of each blueprint stays within the budget beside those of other slots ``[K][P]``; a gate
        counts with every seed, since one may be added later.
        """
        sizes = [
            [part.params + gate.params for part in kinds.values()]
            for kinds, gate in zip(self.body.blueprints, self.body.gates, strict=True)
        ]
        sizes_held = [
            sizes[k][slot.seed.blueprint] if slot.alive else 0 for k, slot in enumerate(self.slots)
        ]
        limit = self.settings.lifecycle.param_budget * self.body.params
        return [
            [sum(sizes_held) - sizes_held[k] + size <= limit for size in row]
            for k, row in enumerate(sizes)
        ]

    def _validated(self) -> Validation:
        """Validate, and add the result to the history."""

        @cache
        def network(on: On) -> Answers:
            return answers(self.body, self.weights, self.slots, on, self.validating, self.classes)

        validation = validate(self.slots, network)
        self.history.add(validation.loss, validation.accuracy)
        return validation

    def _costs_of_seeds(self, cost: str) -> list[int]:
        """Return ``params`` or ``flops`` of each slot's seed with its gate; 0 where there is none."""
        costs = [0] * len(self.slots)
        for k, slot in enumerate(self.slots):
            if slot.alive:
                gate = getattr(self.body.gates[k], cost) if slot.seed.operator == GATE else 0
                costs[k] = gate + getattr(part_of(self.body, k, slot.seed.blueprint), cost)
        return costs

    def _state(self, validation: Validation) -> rewards.State:
        sizes = self._costs_of_seeds("params")
        return rewards.State(copy.deepcopy(self.slots), sizes, validation.committed_accuracy)

    def _step_state(
        self, validation: Validation, outcome: Outcome, paid: Mapping[str, float]
    ) -> StepState:
        body = self.body
        epoch = self.epoch
        flops = self._costs_of_seeds("flops")
        sight = Sight(
            slots=self.slots,
            history=self.history,
            step=self.step,
            steps=self.steps,
            chance=self.world.bank.chance_loss(self.task),
            train_loss=epoch.loss,
            train_accuracy=epoch.accuracy,
            op=outcome.op,
            succeeded=outcome.gate < 0 or outcome.passed,
            validation=validation,
            seed_params=self.state.seed_params,
            host_params=body.params,
            budget=self.settings.lifecycle.param_budget,
            trials=self.trials,
        )
        numbers = {
            "effective_op": outcome.op,
            "gate": outcome.gate,
            "gate_passed": outcome.passed,
            "live_accuracy": validation.accuracy,
            "committed_accuracy": validation.committed_accuracy,
            "all_off_accuracy": validation.all_off_accuracy,
            "val_loss": validation.loss,
            "train_loss": epoch.loss,
            "host_grad_norm": epoch.host_norm,
            "params": body.params + sum(self.state.seed_params),
            "committed_params": body.params + self.state.kept_params,
            "flops": body.flops + sum(flops),
            "committed_flops": body.flops
            + sum(compress(flops, [slot.stage == FOSSILIZED for slot in self.slots])),
            "reward": math.fsum(paid.values()),
        }
        per_slot = {
            "seed_grad_norm": epoch.seed_norms,
            "contribution": validation.contribution,
            "contribution_se": validation.contribution_se,
            "stage": [slot.stage for slot in self.slots],
            "blueprint": [slot.seed.blueprint for slot in self.slots],
            "alpha": [slot.seed.alpha for slot in self.slots],
        }
        return StepState(
            numbers=numbers,
            per_slot={name: list(map(float, values)) for name, values in per_slot.items()},
            components=paid,
            features=features(sight),
            categories=[slot.seed.blueprint for slot in self.slots],
            masks=self._masks(),
            lead=validation.lead,
        )
