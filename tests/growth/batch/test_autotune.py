"""The threshold between two ways, and the table that comes of measuring."""

import pytest
import torch

from simic.growth.batch import autotune, thresholds
from simic.growth.batch.autotune import Trial, threshold


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([(1, 1.0, 2.0), (5, 2.0, 1.0)], 5),
        ([(1, 2.0, 1.0), (5, 2.0, 1.0)], 1),
        ([(1, 1.0, 2.0), (5, 1.0, 2.0)], 6),
        ([(1, 1.0, 2.0), (3, 3.0, 1.0), (5, 1.0, 1.5), (7, 4.0, 1.0)], 3),  # one exception does not decide
    ],
)
def test_the_threshold_takes_the_least_time_in_all(trials, expected):
    assert threshold([Trial("", size, below, above) for size, below, above in trials]) == expected


def test_the_table_holds_what_was_measured_and_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(autotune, "HOSTS", ((2, (2, 2), 4), (2, (2, 4), 4)))
    monkeypatch.setattr(autotune, "CONVOLUTIONS", ((2, 2, 4),))
    monkeypatch.setattr(autotune, "REPEATS", 1)
    table = autotune.measure(torch.device("cpu"))
    path = tmp_path / "own.json"
    autotune.write(table, path)
    assert thresholds.read(path) == table
    assert [trial["question"] for trial in table.measured] == ["apart", "apart", "dense"]
    assert all(value > 0 for trial in table.measured for key, value in trial.items() if key.endswith("seconds"))
    assert thresholds.of(str(path), torch.device("cpu")) == table.thresholds["cpu"]
