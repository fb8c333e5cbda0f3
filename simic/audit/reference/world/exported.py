"""A grown network from the files it was exported to, run by the reference."""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from simic.audit.reference.world.bank import Samples
from simic.audit.reference.world.hosts import Anatomy, anatomy
from simic.audit.reference.world.life import HOLDING, OPERATORS, Seed, Slot
from simic.audit.reference.world.networks import Weights, part_of
from simic.audit.reference.world.refusal import NoReference
from simic.audit.reference.world.validation import Answers, answers
from simic.params import Host


@dataclass(frozen=True)
class Exported:
    """What ``structure.json`` and ``weights.safetensors`` hold; ``params`` is what the former claims."""

    body: Anatomy
    weights: Weights
    slots: list[Slot]
    params: int

    @classmethod
    def read(cls, folder: Path) -> "Exported":
        """NoReference for a network of the user's own."""
        structure = json.loads((folder / "structure.json").read_text(encoding="utf-8"))
        if structure["host"] is None:
            raise NoReference(f"{folder}: grew in a network of the user's own, which the reference does not know")
        body = anatomy(Host.model_validate(structure["host"]), tuple(structure["input_shape"]), structure["classes"])
        tensors = {name: value.double() for name, value in load_file(folder / "weights.safetensors").items()}
        weights = Weights(tensors, [None] * body.slots, [None] * body.slots)
        slots = [Slot() for _ in range(body.slots)]
        for record in structure["seeds"]:
            k = record["slot"]
            kind = list(body.blueprints[k]).index(record["blueprint"])
            seed = Seed(blueprint=kind, operator=OPERATORS.index(record["operator"]), alpha=record["alpha"])
            slots[k] = Slot(HOLDING, seed=seed)
            for lead, place in (("seed", weights.seeds), ("gate", weights.gates)):
                start = f"joints.{k}.{lead}."
                place[k] = {n.removeprefix(start): value for n, value in tensors.items() if n.startswith(start)}
        return cls(body, weights, slots, structure["params"])

    @property
    def size(self) -> int:
        """Parameters that are there, without what was fitted."""
        seeds = ((k, part_of(self.body, k, slot.seed.blueprint)) for k, slot in enumerate(self.slots) if slot.alive)
        fitted = {f"joints.{k}.seed.{name}" for k, part in seeds for name in part.fitted}
        return sum(value.numel() for name, value in self.weights.host.items() if name not in fitted)

    def answers(self, samples: Samples, classes: int) -> Answers:
        """With all of its seeds, of a task of so many classes."""
        on = frozenset(k for k, slot in enumerate(self.slots) if slot.acts)
        return answers(self.body, self.weights, self.slots, on, samples, classes)
