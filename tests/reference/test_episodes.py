"""How far a replayed episode may be from the recorded one."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.reference import episodes
from tests.reference.comparison import ComparisonLog
from tests.reference.epochs import Answers, validate
from tests.reference.host import StepState
from tests.reference.life import FOSSILIZED, HOLDING, Slot

SAMPLES = 256
FLIP = 100.0 / SAMPLES  # points
SAID: dict[str, float] = dict.fromkeys(
    (*episodes.DECIDED, *episodes.DRIFTING, *episodes.SCORES, "reward"), 1.0
)


@pytest.mark.parametrize(
    ("flipped", "drift", "close", "explained"),
    [
        (2, 0.0, 0, True),
        (3, 0.0, 20, False),  # a host that has not drifted answers as it did
        (3, 4e-4, 1, True),
        (8, 4e-4, 6, True),
        (9, 4e-4, 6, False),  # more than are close
    ],
)
def test_samples_flip_where_the_loss_drifted_and_classes_are_close(
    flipped: int, drift: float, close: int, explained: bool
) -> None:
    lead = torch.ones(SAMPLES)
    lead[:close] = 0.9 * episodes.LEAD_PER_DRIFT * 4e-4
    slots: dict[str, list[float]] = {
        name: [] for name in (*episodes.DECIDED_SLOTS, episodes.SEED_NORM)
    }
    slots |= {"contribution": [50.0], "contribution_se": [1.0]}
    told = StepState(SAID, slots, dict.fromkeys(episodes.DECIDED_COMPONENTS, 0.0), [], [], {}, lead)
    recorded: dict[str, Any] = SAID | {
        f"components.{name}": 0.0 for name in episodes.DECIDED_COMPONENTS
    }
    recorded |= {
        column: np.zeros(0) for column in (*episodes.DECIDED_SLOTS.values(), episodes.SEED_NORM)
    }
    recorded |= {
        "contribution": np.array([50.0]),
        "contribution_se": np.array([1.0]),
        "val_loss": 1.0 + drift,
    }
    recorded["live_accuracy"] = 1.0 + flipped * FLIP
    log = ComparisonLog({"live_accuracy": episodes.FLIPPED * FLIP + 1e-4, "val_loss": 1e-3})
    episodes._compare_step(log, told, recorded, 0, "here")
    assert [line.kind for line in log.comparisons() if not line.ok] == (
        [] if explained else ["live_accuracy"]
    )


def test_a_sample_is_close_where_it_is_in_any_of_the_three_networks() -> None:
    kept = Slot(stage=FOSSILIZED)
    tried = Slot(stage=HOLDING)
    for slot in (kept, tried):
        slot.seed.alpha = 1.0
    leads = {
        frozenset({0, 1}): [0.1, 5.0, 5.0, 5.0],
        frozenset(): [5.0, 0.2, 5.0, 5.0],
        frozenset({0}): [5.0, 5.0, 0.3, 5.0],
    }
    measured = validate(
        [kept, tried],
        lambda on: Answers(torch.ones(4), 0.5, torch.tensor(leads.get(on, [5.0] * 4))),
    )
    assert measured.lead.tolist() == pytest.approx([0.1, 0.2, 0.3, 5.0])
