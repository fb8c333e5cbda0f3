"""The exported network on the held-out samples: its weights in the reference, and its program in torch alone."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from simic.certify.bank import NoReference, Samples
from simic.certify.comparison import ComparisonLog
from simic.certify.epochs import answers, points
from simic.certify.life import HOLDING, OPERATORS, Seed, Slot
from simic.certify.networks import Weights, anatomy, part_of
from simic.params import Host

CLOSE_CALL = 1e-5  # lead of the best class over the next, relative to it, within which float32 may see it otherwise
ROUNDED_PCT = 1e-4  # accuracies are recorded with four decimals


def certify_grown(
    folder: Path, samples: Samples, classes: int, accuracy: float, params: int, log: ComparisonLog
) -> None:
    """Compare the network's answers to the test samples with the ``accuracy`` (points) and size that evaluation claims
    for its host. NoReference for a network of the user's own.
    """
    structure, where = json.loads((folder / "structure.json").read_text(encoding="utf-8")), folder.name
    if structure["host"] is None:
        raise NoReference(f"{folder}: grew in a network of the user's own, which the reference does not know")
    body = anatomy(Host.model_validate(structure["host"]), tuple(structure["input_shape"]), structure["classes"])
    tensors = {name: value.double() for name, value in load_file(folder / "weights.safetensors").items()}
    weights = Weights(tensors, [None] * body.slots, [None] * body.slots)
    slots, trained = [Slot() for _ in range(body.slots)], dict(tensors)
    for record in structure["seeds"]:
        k = record["slot"]
        kind = list(body.blueprints[k]).index(record["blueprint"])
        seed = Seed(blueprint=kind, operator=OPERATORS.index(record["operator"]), alpha=record["alpha"])
        slots[k] = Slot(HOLDING, seed=seed)
        for lead, place in (("seed", weights.seeds), ("gate", weights.gates)):
            start = f"joints.{k}.{lead}."
            place[k] = {name.removeprefix(start): x for name, x in tensors.items() if name.startswith(start)}
        for name in part_of(body, k, kind).fitted:
            del trained[f"joints.{k}.seed.{name}"]
    own = answers(body, weights, slots, frozenset(k for k, slot in enumerate(slots) if slot.acts), samples, classes)
    program = torch.export.load(folder / "network.pt2").module()
    with torch.no_grad():
        right = (program(samples.x.float())[:, :classes].argmax(1) == samples.y).double()
    differ = (right != own.correct) & (own.lead >= CLOSE_CALL)
    log.note("answers of exported weights and program", where, float(differ.sum()))
    size = sum(value.numel() for value in trained.values())
    log.number("parameters of the exported network", where, size, structure["params"])
    log.number("parameters that evaluation counts", where, params, structure["params"])
    slack = ROUNDED_PCT + 100.0 * float((own.lead < CLOSE_CALL).double().mean())
    for what, correct in (("weights", own.correct), ("program", right)):
        log.note(f"accuracy of the exported {what}", where, max(0.0, abs(points(correct) - accuracy) - slack))
