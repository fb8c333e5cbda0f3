"""The network that a run exported, run again from its files on the held-out samples: it has the accuracy that the
evaluation claims for the host it was.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from simic.audit.comparison import Comparison
from simic.audit.reference.world import bank
from simic.audit.world.laws import answers_as
from simic.audit.world.ledger import Ledger
from simic.evaluation.result import PerSeed

ROUNDED = 5e-5  # points: accuracies are recorded with four decimals
ALLOWED = {"accuracy of the exported weights": 5e-5, "accuracy of the exported program": 5e-5}


def certify_grown(grown: Path, prepared: Path, seeds: PerSeed, tasks: Sequence[int]) -> tuple[Comparison, ...]:
    """``grown`` was made of the host with the best validation accuracy among ``seeds``, which were evaluated on these
    held-out ``tasks``; NoReference for a network that the reference does not know.
    """
    ledger = Ledger(ALLOWED, {})
    host = max(range(len(tasks)), key=lambda place: seeds.val_accuracy_pct[place])
    held_out = bank.read_held_out(prepared)
    task, classes = tasks[host], held_out.task_classes[tasks[host]]
    samples = held_out.samples("test", task)
    answers_as(grown, samples, classes, seeds.test_accuracy_pct[host], f"evaluation seed {host}", ledger, ROUNDED)
    structure = json.loads((grown / "structure.json").read_text(encoding="utf-8"))
    ledger.number(
        "parameters that evaluation counts", f"evaluation seed {host}", seeds.params[host], structure["params"]
    )
    return ledger.comparisons()
