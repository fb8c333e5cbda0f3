"""The headroom that comes with simic: used for its data and settings alone, and what this code measures."""

from pathlib import Path

import numpy as np
import pytest

from simic import params
from simic.data.prepare import prepare
from simic.errors import SimicError
from simic.evaluation import headroom, shipped
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.training import machine
from tests import standard

ROOT = Path(__file__).parents[2]
DEFAULT = params.load(ROOT / "params.yaml", ["runtime.device=cpu"])
FILE = shipped.file_of(DEFAULT)
DATA = shipped.read(FILE).report.data_sha256


def test_it_is_used_for_the_default_run_and_says_where_it_comes_from():
    report = shipped.find(DEFAULT, DATA)
    assert report is not None
    assert report.source.startswith("comes with simic; measured by torch")
    # Where it says nothing else, it is what was measured.
    assert report.model_copy(update={"source": ""}) == shipped.read(FILE).report


@pytest.mark.parametrize(
    "change",
    [
        "rng_seed=2",
        "headroom.shipped=false",
        "headroom.search_tasks=191",
        "headroom.policies=[static]",
        "train.host_optimizer.learning_rate=0.004",
        "train.lifecycle.param_budget=3.0",
        "train.batches_per_epoch=7",
        "train.price=0.1",
        "evaluate.epochs=[12]",
        "evaluate.eval_seeds=500",
    ],
)
def test_it_is_not_used_with_another_setting(change):
    assert shipped.find(params.load(ROOT / "params.yaml", [change]), DATA) is None


@pytest.mark.parametrize("change", ["train.iterations=3", "train.ppo.epochs=1", "runtime.cores=1"])
def test_settings_that_no_headroom_depends_on_change_nothing(change):
    assert shipped.find(params.load(ROOT / "params.yaml", [change]), DATA) is not None


def test_it_is_not_used_for_other_data_or_rules(monkeypatch):
    assert shipped.find(DEFAULT, DATA[::-1]) is None
    monkeypatch.setattr(shipped, "tuned_rules", lambda params: None)
    assert shipped.find(DEFAULT, DATA) is None


@pytest.mark.parametrize("content", [b"", b"{}", FILE.read_bytes()[:1000]])
def test_a_damaged_file_is_named(tmp_path, monkeypatch, content):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    (tmp_path / FILE.name).write_bytes(content)
    with pytest.raises(SimicError, match="not a shipped headroom"):
        shipped.find(DEFAULT, DATA)


def test_what_was_measured_is_written_and_found_again(tmp_path, monkeypatch):
    whole = shipped.read(FILE)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    shipped.write(tmp_path / FILE.name, DEFAULT, whole.machine, whole.report)
    assert (tmp_path / FILE.name).read_bytes() == FILE.read_bytes()


# The held-out tasks of known kinds come first, so that their hosts have the numbers that they have in the whole bank;
# and one of these has six classes, so that hosts have as many outputs.
TASKS = 96
SMALL = standard.Prepare(
    task="suite",
    suite={
        "name": "tables",
        "instances": {"train": 4, "val": 2, "held_out": TASKS, "held_out_kinds": 2, "outside": 1},
    },
)


def test_a_part_that_is_measured_now_is_equal(tmp_path):
    """Hosts that are computed in other company differ in last bits, and some hosts by some samples for that."""
    prepare(SMALL, 1, tmp_path / "prepared", tmp_path)
    report = shipped.find(DEFAULT, DATA)
    assert report is not None
    tree = DEFAULT.model_copy(update={"runtime": DEFAULT.runtime.model_copy(update={"cores": 1})})
    setup = EvaluationSetup.open(tree, tmp_path / "prepared", machine.configure(tree.runtime), 2)
    assert setup.env.host.params == report.host.params
    names = [task.name for task in setup.held_out.tasks][:TASKS]
    assert names == [report.tasks[row].name for row in report.rows[:TASKS]]
    of_length = report.others["6 epochs"]
    actors = headroom.hand_rules(("static", "tuned_rule"), setup.env, report.tuned)
    for name, performance in play_for_score(setup, actors, 6):
        now = np.array(performance.score.test_accuracy_pct[:TASKS])
        then = np.array(of_length.policies[name].test_accuracy_pct[:TASKS])
        assert np.mean(np.abs(now - then) < 0.5) > 0.8, (name, now - then)
        assert abs((now - then).mean()) < 0.5
