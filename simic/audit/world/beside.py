"""A host of the environment beside its reference: weights, answers and all that is told of a step, compared."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from simic.agent.spec import Observation
from simic.audit.reference.world import life
from simic.audit.reference.world.host import ReferenceHost, Told
from simic.audit.reference.world.masks import Masks
from simic.audit.reference.world.networks import part_of
from simic.audit.reference.world.validation import Answers, On
from simic.audit.world import rounding
from simic.audit.world.blocks import VALUES, Flat, Parts, flattened, remembered, unpacked
from simic.audit.world.ledger import Ledger
from simic.audit.world.witness import WorldWitness
from simic.envs.observations import columns
from simic.envs.records import StepInfo
from simic.growth.batch.population import Snapshot
from simic.growth.batch.rows import Rows

CLOSE_CALL = 1e-5  # lead of the best class over the next, relative to it, within which float32 may see it otherwise
FAINT = 1e-3  # share of a host's gradient below which one is faint
LEAST_SHARE = 1e-3  # of a block's norm: a smaller change is measured against this
Paid = tuple[Tensor, Tensor, Tensor]  # reward, terminated, truncated


@dataclass
class Beside:
    """Row ``place`` of the environment and its reference."""

    place: int
    host: ReferenceHost
    ledger: Ledger

    @property
    def where(self) -> str:
        """For the ledger."""
        host = self.host
        return f"iteration {host.iteration + 1}, step {host.step}, host {host.host_id} (row {self.place})"

    # --- weights ---

    def blocks(self) -> Iterator[tuple[str, str, Parts]]:
        """Every block that there is: its name here and in a snapshot, and the parts whose parameters it holds."""
        body, host = self.host.world.body, self.host
        parts = [*((f"segments.{k}.", part) for k, part in enumerate(body.segments)), ("head.", body.head)]
        yield "host", "host", parts
        for k, slot in enumerate(host.slots):
            if slot.alive:
                kind = slot.seed.blueprint
                yield f"seed.{k}", f"seed.{k}.{kind}", [("", part_of(body, k, kind))]
                yield f"gate.{k}", f"gate.{k}", [("", body.gates[k])]

    def drawn(self, snapshot: Snapshot) -> None:
        """Compare first weights."""
        for name, store, parts in self.blocks():
            self._first(name, snapshot.stores[store], parts)

    def trained(self, before: Snapshot, after: Snapshot, known: set[str]) -> None:
        """Compare one epoch, from ``before`` on for the blocks that were ``known`` then, and take over its result."""
        learning = self.host.learning()
        shaken = cache(lambda: rounding.trained(self.host, self.place, [*self.blocks()], before.stores, known))
        for name, store, parts in self.blocks():
            if store not in after.stores:
                self.ledger.note("weights that there should be", f"{self.where}, {name}", math.inf)
            elif name in known and store in before.stores:
                start = before.stores[store].param[self.place].double()
                self._epoch(name, start, after.stores[store], parts, learning.get(name, False), shaken)
            elif learning.get(name, False):  # a seed that learns in the step in which it germinates
                start = torch.cat([value.flatten() for value in self.host.fresh[name].values()])
                self._epoch(name, start, after.stores[store], parts, True, shaken)
            else:
                self._first(name, after.stores[store], parts)

    def _first(self, name: str, rows: Rows, parts: Parts) -> None:
        kind, slot = _split(name)
        where = f"{self.where}{slot}"
        own = flattened(self.host.block(name), self.host.memories[name])[VALUES]
        # What was fitted may be large, as the scale of a feature that hardly varies: of it a share is compared.
        scale = max(1.0, float(own.norm())) if any(part.fitted for _, part in parts) else 1.0
        self.ledger.tensors(f"first weights of the {kind}", where, rows.param[self.place], own, scale)
        for moment in rows.moments.values():
            self.ledger.note(f"fresh optimiser of the {kind}", where, float(moment[self.place].abs().max()))
        self._adopt(name, rows, parts)

    def _epoch(
        self,
        name: str,
        start: Tensor,
        after: Rows,
        parts: Parts,
        moves: bool,
        shaken: Callable[[], dict[str, Flat]],
    ) -> None:
        kind, slot = _split(name)
        where, groups, faint = f"{self.where}{slot}", self._groups(name), self._faint(name)
        memory = self.host.memories[name]
        for part, own in flattened(self.host.block(name), memory).items():
            if part == VALUES:
                theirs = after.param[self.place]
                size = max(float((own - start).norm()), LEAST_SHARE * float(start.norm()))
                what = f"change of the {kind} in an epoch" if moves else f"{kind}s that stay"
            else:
                theirs, size = after.moments[part][self.place], float(own.norm()) or 1.0
                what = f"optimiser's {part} of the {kind}" if moves else f"optimisers that stay: {part} of the {kind}"
            self.ledger.tensors(what, where, theirs, own, size / faint, groups, lambda part=part: shaken()[name][part])
        self.ledger.number(f"optimiser's steps of the {kind}", where, float(after.step[self.place]), memory.steps)
        self._adopt(name, after, parts)

    def _faint(self, name: str) -> float:
        """How much a deviation of a block counts: 1, and less the more its gradient disappears beside its host's.

        Such a gradient is a small difference of large numbers, and rounding is a large part of it.
        """
        epoch, moments = self.host.epoch, self.host.memories[name].moments
        if name == "host" or epoch is None:
            return 1.0
        first = next(iter(moments.values()))
        norm = math.sqrt(sum(float(value.square().sum()) for value in first.values()))
        limit = FAINT * epoch.host_norm
        return norm / limit if 0.0 < norm < limit else 1.0

    def _groups(self, name: str) -> list[str]:
        """What a block shares with others: blueprint, stage and operator of the seeds that learn with it."""
        _, _, own = name.partition(".")
        slots = self.host.slots
        places = [int(own)] if own else [k for k, slot in enumerate(slots) if slot.learns]
        stages = [f"{life.STAGES[slots[k].stage]} {life.OPERATORS[slots[k].seed.operator]}" for k in places]
        kinds = [list(self.host.world.body.blueprints[k])[slots[k].seed.blueprint] for k in places]
        return [*stages, *kinds]

    def _adopt(self, name: str, rows: Rows, parts: Parts) -> None:
        self.host.block(name).update(unpacked(rows.param[self.place], parts))
        self.host.memories[name] = remembered(rows, self.place, parts)

    # --- answers ---

    def settled(self, witness: WorldWitness, on: On, own: Answers) -> Answers:
        """The reference's own answers, but where two classes are too close to call those of the environment."""
        theirs = witness.correct(self.place, on)
        where = f"{self.where}, seeds on: {sorted(on) or 'none'}"
        if theirs is None:
            self.ledger.note("networks that validation runs", where, 1.0)
            return own
        if theirs.shape != own.correct.shape:
            self.ledger.note("answers to validation samples", f"{where}: {len(theirs)} of them", math.inf)
            return own
        differs = theirs.double() != own.correct
        close = own.lead < CLOSE_CALL
        self.ledger.note("answers to validation samples", where, float((differs & ~close).sum()))
        return Answers(torch.where(close, theirs.double(), own.correct), own.loss, own.lead)

    # --- what is told ---

    def compare(self, told: Told, observation: Observation, info: StepInfo, paid: Paid | None) -> None:
        """All that telemetry and the policy get."""
        found = vars(info)
        for name, expected in told.numbers.items():
            if name != "reward":
                self._numbers(name, [float(found[name][self.place])], [float(expected)])
        for name, values in told.per_slot.items():
            self._numbers(name, found[name][self.place].tolist(), values)
        self.ledger.note("hosts that the governor rolled back", self.where, float(info.panicked[self.place]))
        self.ledger.note("rows that are no experience", self.where, float(~info.valid[self.place]))
        self._features(told, observation)
        self._masks(told.masks, observation)
        if paid is not None:
            self._paid(told, info, paid)

    def _numbers(self, name: str, found: list[float], expected: list[float]) -> None:
        """Norms of gradients, which may be large, are compared relative to themselves where they are above 1."""
        scales = [max(1.0, value) if name.endswith("_grad_norm") else 1.0 for value in expected]
        if len(found) == len(expected):
            found, expected = ([v / s for v, s in zip(values, scales, strict=True)] for values in (found, expected))
        self.ledger.numbers(name, self.where, found, expected)

    def _features(self, told: Told, observation: Observation) -> None:
        found = observation.features[self.place].tolist()
        names = [name for name, _ in columns(len(self.host.slots), len(self.host.trials))]
        if len(found) != len(told.features):
            self.ledger.note("observation", f"{len(found)} features, not {len(told.features)}", math.inf)
            return
        for name, value, expected in zip(names, found, told.features, strict=True):
            self.ledger.number("observation", f"{self.where}, {name}", value, expected)
        self.ledger.numbers("categories", self.where, observation.categories[self.place].tolist(), told.categories)

    def _masks(self, expected: Masks, observation: Observation) -> None:
        masks = {"op": expected.op, "slot": expected.slot, "blueprint": expected.blueprint, **expected.others}
        missing = masks.keys() ^ observation.masks.keys()
        self.ledger.note("heads with a mask", f"{self.where}: {', '.join(sorted(missing))}", len(missing))
        for head in masks.keys() & observation.masks.keys():
            found, own = observation.masks[head][self.place], torch.tensor(masks[head])
            wrong = float((found != own).sum()) if found.shape == own.shape else math.inf
            self.ledger.note(f"mask of {head}", self.where, wrong)

    def _paid(self, told: Told, info: StepInfo, paid: Paid) -> None:
        missing = told.components.keys() ^ info.components.keys()
        self.ledger.note("terms of the reward", f"{self.where}: {', '.join(sorted(missing))}", len(missing))
        for name in told.components.keys() & info.components.keys():
            value = float(info.components[name][self.place])
            self.ledger.number(f"reward: {name}", self.where, value, told.components[name])
        reward, terminated, truncated = (values[self.place] for values in paid)
        self.ledger.number("reward", self.where, float(reward), told.numbers["reward"])
        self.ledger.note("end of the episode", self.where, float(bool(terminated) != told.terminated))
        self.ledger.note("end of the episode", self.where, float(bool(truncated) != told.truncated))


def _split(name: str) -> tuple[str, str]:
    """``host``, ``seed`` or ``gate``, and the slot in words."""
    kind, _, slot = name.partition(".")
    return kind, f", slot {slot}" if slot else ""
