"""A real run, small: prepare, headroom, train under live checks, evaluate, audit; then its record is altered."""

import json
import shutil
from dataclasses import replace
from functools import reduce
from operator import getitem
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from markupsafe import escape

from simic import seals
from simic.audit import figures, record
from simic.audit.audit import checks, examine
from simic.audit.findings import Status, Verdict
from simic.audit.replay import RunFiles, replaying
from simic.errors import SimicError
from simic.evaluation import result
from simic.growth.life.vocabulary import Op, Stage
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.telemetry import starts
from simic.telemetry.rows import FindingRow
from simic.training.resume import LOST_BEST

from .defects import put
from .settings import small
from .synthetic import Plant, with_needs_alone
from .synthetic import result as of

# What holds for any sound run, however short: replay, arithmetic of the reward, legality, records, hashes, revision.
MUST_PASS = ("R1", "X9", "Z1", "Z2")
MUST_PASS += tuple(check.id for check in checks(is_gym=False) if check.layer == "record")


def statuses(workspace):
    verdict = Verdict.from_json((workspace.reports / "findings.json").read_bytes())
    return {result.check: result for result in verdict.results}


def test_every_check_gave_a_result_and_the_sound_ones_pass(workspace, live):
    results = statuses(workspace)
    assert set(results) == {check.id for check in checks(is_gym=False)}
    for name in MUST_PASS:
        assert results[name].status is Status.PASS, (name, results[name].measured)
    assert results["F1"].status is not Status.NOT_EVALUATED
    assert results["R3"].status is Status.NOT_EVALUATED  # needs 5 updates
    assert not [finding for finding in live.findings if finding.severity == "critical"]


def test_report_shows_the_run(workspace):
    page = (workspace.reports / "report.html").read_text(encoding="utf-8")
    [start] = starts.read(workspace.telemetry / "run.json")
    assert f"<h1>Audit of {start.name}</h1>" in page and escape(start.command) in page
    manifest = json.loads((workspace.checkpoints / "latest" / "manifest.json").read_text())
    assert manifest["params_sha256"] in page and manifest["scalars"]["chain"] in page
    # Floors of the learning curve are those on the validation tasks, not on the held-out ones.
    assert (
        f"static (never grows) {result.read_headroom(workspace.headroom).validation['static']:.1f}"
        in page
    )


@pytest.fixture
def copy(workspace, tmp_path):
    shutil.copytree(workspace.root, tmp_path / "copy")
    return Workspace(tmp_path / "copy")


@pytest.mark.parametrize("override", ["train.ppo.learning_rate=0.01", "train.price=1.0"])
def test_other_params_than_those_trained_with_are_found(workspace, override):
    finding = of(stages.recorded(small(override), workspace), "X6")
    assert finding.status is Status.FINDING
    assert any("differ from params.yaml" in str(row["file"]) for row in finding.evidence)


def test_an_edited_result_is_found_and_fails_after_the_report_is_written(copy, monkeypatch):
    """Through the stage: headroom.json is read, and is what evaluation.json was computed from."""
    monkeypatch.setattr(figures, "panels_of", lambda run, sound: ())
    content = json.loads(copy.headroom.read_bytes())
    content["test_pct"][0] = [score + 1.0 for score in content["test_pct"][0]]
    copy.headroom.write_text(json.dumps(content), encoding="utf-8")
    (copy.reports / "report.html").unlink()
    with pytest.raises(SimicError, match=r"audit\.fail_on = 'medium': \d+ findings, worst"):
        stages.audit(small("audit.fail_on=medium", "audit.replay=false"), copy)
    assert (copy.reports / "report.html").exists()
    assert statuses(copy)["X8"].status is Status.FINDING


def test_code_that_was_changed_in_any_start_is_on_the_first_line(copy):
    """Judge the code of every start and resume, not that of the audit."""
    [start] = starts.read(copy.telemetry / "run.json")
    (copy.telemetry / "run.json").unlink()
    for code, files in (("abc-dirty", ["extensions/maze.py", "simic/agent/ppo.py"]), ("def", [])):
        changes = {"code": code, "changed_files": files}
        starts.note(copy.telemetry / "run.json", start.model_copy(update=changes))
    seals.write(copy.root, seals.identify(copy.root, "train", small()))
    record = stages.recorded(small(), copy)
    sentence = examine(record, "x").summary.what
    assert sentence.startswith(
        "Own code takes part (extensions/maze.py). The code was changed (simic/agent/ppo.py). "
        "The code changed in 1 of 1 resumes. "
    )
    assert of(record, "X6").status is Status.PASS
    (copy.telemetry / "run.json").write_text("[{}]")
    with pytest.raises(SimicError, match="not the starts of a run"):
        stages.recorded(small(), copy)


# --- what is recomputed: every altered number is found ---

CHECKS = [check for check in checks(is_gym=False) if check.id.startswith("C")]


def test_rows_that_are_missing_are_found_and_stop_nothing(run):
    """Steps, a whole iteration's, updates: what is left is examined by every check."""
    steps, updates = run.steps, run.updates
    gaps = [
        replace(run, steps=steps.where(np.arange(len(steps)) != 25)),
        replace(run, steps=steps.where(steps.column("iteration") != 1)),
        replace(run, updates=updates.where(updates.column("iteration") != 2)),
        replace(run, episodes=run.episodes.where(run.episodes.column("iteration") != 2)),
    ]
    for gap in gaps:
        names = [result.check for result in examine(gap, "gap").findings]
        assert set(names) & {"C1", "C5"}


@pytest.mark.parametrize("check", checks(is_gym=False), ids=lambda check: check.id)
def test_a_check_reads_nothing_but_what_it_needs(check, run):
    if check.id == "X7":
        return  # looks at whatever tables there are
    bare = check.run(with_needs_alone(run, check.needs))
    assert bare.status is check.run(run).status, bare.measured


NEEDS = [(check.id, need) for check in CHECKS for need in check.needs]


@pytest.mark.parametrize(("name", "need"), NEEDS, ids=[f"{name}-{need}" for name, need in NEEDS])
def test_without_what_it_needs_a_check_proves_nothing(name, need, run):
    outcome = of(Plant(run).without(need), name)
    assert outcome.status is Status.NOT_EVALUATED and need in outcome.measured


def test_the_run_has_what_the_rules_are_about(run):
    """Guard against checks that hold because nothing happened."""
    ops, stage = run.steps.column("effective_op"), run.steps.column("stage")
    assert {int(Op.GERMINATE), int(Op.PRUNE), int(Op.FOSSILIZE)} <= set(np.unique(ops))
    assert set(np.unique(stage)) >= set(range(Stage.DORMANT, Stage.PRUNED + 1))


def add(place, amount):
    return lambda values: values.__setitem__(place, values[place] + amount)


PLAIN = [
    ("C1", "steps", "reward", add((3, 2), 0.01)),
    ("C1", "episodes", "return", add((1, 0), 0.01)),
    ("C1", "episodes", "committed_accuracy", add((0, 1), 0.5)),
    ("C1", "episodes", "germinated", add((2, 3), 1)),
    ("C5", "updates", "env_steps", add(-1, 1)),
    ("C5", "updates", "env_steps", put(1, 0)),
    ("C5", "updates", "steps", add(0, 1)),
    ("C5", "updates", "samples", add(-1, 1)),
    ("C5", "updates", "updates", add(-1, 1)),
    ("C5", "updates", "entropy_coef", add(-1, 1e-3)),
    ("C5", "updates", "learning_rate", add(0, 1e-5)),
    ("C6", "updates", "validation_accuracy", add(-1, 1.0)),
    ("C6", "validations", "score", add((0, 0), 5.0)),
    ("C7", "episodes", "task", put((0, 0), 20)),
    ("C7", "validations", "task", put((0, 0), 0)),
    ("C7", "episodes", "task", add((3, 1), -1)),
]


@pytest.mark.parametrize(
    ("name", "table", "column", "change"), PLAIN, ids=[f"{p[0]}-{p[2]}" for p in PLAIN]
)
def test_an_altered_number_is_found(name, table, column, change, run):
    finding = of(Plant(run).column(table, column, change).run, name)
    assert (finding.status, finding.severity) == (Status.FINDING, "critical"), finding.measured


def test_a_swapped_checkpoint_is_found(run):
    latest = run.checkpoints["latest"]
    assert run.checkpoints["best"].manifest.iteration in (2, 4)
    swapped = replace(latest, manifest=latest.manifest.model_copy(update={"iteration": 3}))
    assert (
        of(replace(run, checkpoints={**run.checkpoints, "latest": swapped}), "C6").status
        is Status.FINDING
    )


def test_a_best_checkpoint_that_was_lost_on_the_way_is_no_finding_and_no_pass(run):
    lost = FindingRow(iteration=1, check=LOST_BEST, severity="medium", message="damaged")
    provenance = replace(run.provenance, origin=replace(run.provenance.origin, findings=(lost,)))
    assert of(replace(run, provenance=provenance), "C6").status is Status.NOT_EVALUATED


@pytest.mark.parametrize("name", ["ppo/adam.step", "normalizers/observation.count"])
def test_another_number_in_the_checkpoint_is_found(name, run):
    latest = run.checkpoints["latest"]
    tensors = {**latest.tensors, name: 0.9 * latest.tensors[name]}
    checkpoints = {**run.checkpoints, "latest": replace(latest, tensors=tensors)}
    assert of(replace(run, checkpoints=checkpoints), "C5").status is Status.FINDING


def edited(run, path, change):
    """Change one value of the evaluation."""
    tree = run.evaluation.model_dump(mode="json")
    *way, place = (int(name) if name.isdigit() else name for name in path.split("/"))
    node = reduce(getitem, way, tree)
    node[place] = change(node[place])
    return replace(run, evaluation=result.Evaluation.model_validate(tree))


def test_schedules_are_those_of_the_length_that_training_had_then(run):
    """Without a horizon they fall over all iterations; made longer, the earlier updates stay as they were."""
    train = run.params.train.model_copy(update={"horizon": None})
    ppo = train.ppo
    steps = np.array([0, 1 / 1, 2 / 3, 1.0])  # two iterations at first, then four
    coefficients = ppo.entropy_coef + steps * (ppo.entropy_coef_final - ppo.entropy_coef)
    longer = replace(run, params=run.params.model_copy(update={"train": train}))
    longer = Plant(longer).column("updates", "entropy_coef", lambda _: coefficients)
    longer = longer.column(
        "updates", "learning_rate", lambda rates: np.full_like(rates, ppo.learning_rate)
    ).run
    for lengths, status in (
        (((0, 2), (2, 4)), Status.PASS),
        (((0, 4),), Status.FINDING),
        (((3, 4),), Status.PASS),  # earlier starts were lost: nobody knows
    ):
        origin = replace(run.provenance.origin, lengths=lengths)
        provenance = replace(run.provenance, origin=origin)
        assert of(replace(longer, provenance=provenance), "C5").status is status, lengths


CLAIMS = ("controller_trainings", "test_samples", "eval_seeds", "episode_steps")
CLAIMS += ("standings/held_out/random_search/1", "checkpoint_iteration")


@pytest.mark.parametrize("path", CLAIMS)
def test_a_claim_that_does_not_follow_is_found(path, run):
    assert of(edited(run, path, lambda value: value + 1), "X8").status is Status.FINDING


def copied(splits, row):
    """Copy a training sample, changed by ``row``, into the validation split; nothing else is equal."""
    train = splits["train"].x.clone()
    val = splits["val"].x.clone()
    train[7] = row(train[7])
    val[3] = train[7]
    return {"train": replace(splits["train"], x=train), "val": replace(splits["val"], x=val)}


CLIP = 5.0
ROWS = [
    (lambda row: row, Status.FINDING),
    (lambda row: row.flatten().index_fill(0, torch.tensor(0), CLIP).view_as(row), Status.FINDING),
    (lambda row: torch.full_like(row, CLIP), Status.PASS),  # equal by the clipping, perhaps
    (lambda row: (100 * row).long(), Status.FINDING),  # text
]


@pytest.mark.parametrize(("row", "status"), ROWS)
def test_a_sample_in_two_splits_is_found(row, status, run):
    shared = copied(run.splits["tasks of training"], row)
    splits = run.splits | {"outside tasks 0": shared}
    assert of(replace(run, splits=splits), "C11").status is status


def test_splits_of_outside_tasks_are_read_too(tmp_path, monkeypatch):
    shared = SimpleNamespace(
        train=1, val=2, test=3, outside=(SimpleNamespace(train=4, val=5, test=6),)
    )
    monkeypatch.setattr(record, "load_held_out", lambda _: shared)
    monkeypatch.setattr(record, "load_split", lambda _, name: name)
    assert record.read_splits(tmp_path)["outside tasks 0"] == {"train": 4, "val": 5, "test": 6}


def test_a_replay_of_growth_differs_where_the_record_was_edited(run, workspace):
    """In another number of processes than trained."""
    assert (
        run.evaluation.machine.group == 8
    )  # of two policies on eight hosts each, half are computed together
    files = RunFiles(workspace.prepared, workspace.telemetry, workspace.checkpoints)
    altered = run
    for policy in ("learned", "learned_sampled"):
        path = f"policies/{policy}/per_seed/val_accuracy_pct"
        altered = edited(altered, path, lambda values: [value + 0.5 for value in values])
    altered = Plant(altered).column("updates", "state_ended", put(slice(None), "0" * 64)).run
    with replaying(altered, files) as results:
        training, evaluation = results()
    assert (training.outcome, training.differences) == ("differs", ("state after",))
    assert evaluation.outcome == "differs"
    assert all(name.endswith("val_accuracy_pct") for name in evaluation.differences)
