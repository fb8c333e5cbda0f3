"""The exported network on the held-out samples: its weights in the reference, and its program in torch alone."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from simic.certify.bank import NoReference, Samples
from simic.certify.comparison import ComparisonLog
from simic.certify.epochs import Answers, answers, points
from simic.certify.life import HOLDING, OPERATORS, Seed, Slot
from simic.certify.networks import Anatomy, Weights, anatomy, part_of
from simic.params import Host

CLOSE_CALL = 1e-5  # lead of the best class over the next, relative to it, within which float32 may see it otherwise
ROUNDED_PCT = 1e-4  # accuracies are recorded with four decimals


@dataclass(frozen=True)
class Exported:
    """Hold the content of ``structure.json`` and ``weights.safetensors``; ``params`` is what the former claims."""

    body: Anatomy
    weights: Weights
    slots: list[Slot]
    params: int

    @classmethod
    def read(cls, folder: Path) -> "Exported":
        """Read the files; NoReference for a network of the user's own."""
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
        """Count the trained parameters."""
        seeds = ((k, part_of(self.body, k, slot.seed.blueprint)) for k, slot in enumerate(self.slots) if slot.alive)
        fitted = {f"joints.{k}.seed.{name}" for k, part in seeds for name in part.fitted}
        return sum(value.numel() for name, value in self.weights.host.items() if name not in fitted)

    def answers(self, samples: Samples, classes: int) -> Answers:
        """Return the answers with all seeds, for a task of so many classes."""
        on = frozenset(k for k, slot in enumerate(self.slots) if slot.acts)
        return answers(self.body, self.weights, self.slots, on, samples, classes)


def certify_grown(
    folder: Path, samples: Samples, classes: int, accuracy: float, params: int, log: ComparisonLog
) -> None:
    """Compare the network's answers to the test samples with the ``accuracy`` (points) and size that evaluation claims
    for its host.
    """
    network, where = Exported.read(folder), folder.name
    own = network.answers(samples, classes)
    program = torch.export.load(folder / "network.pt2").module()
    with torch.no_grad():
        right = (program(samples.x.float())[:, :classes].argmax(1) == samples.y).double()
    differ = (right != own.correct) & (own.lead >= CLOSE_CALL)
    log.note("answers of exported weights and program", where, float(differ.sum()))
    log.number("parameters of the exported network", where, network.size, network.params)
    log.number("parameters that evaluation counts", where, params, network.params)
    slack = ROUNDED_PCT + 100.0 * float((own.lead < CLOSE_CALL).double().mean())
    for what, correct in (("weights", own.correct), ("program", right)):
        log.note(f"accuracy of the exported {what}", where, max(0.0, abs(points(correct) - accuracy) - slack))
