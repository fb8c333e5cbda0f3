"""Damage is met by going back and saying so; other settings and another holder are refused by name."""

import shutil
import sys
from pathlib import Path

import pytest
from small_runs import (
    assert_same_run,
    findings_of,
    flip,
    recorded,
    rewritten,
    run,
    small_params,
    telemetry_of,
    updates_of,
)

from simic.data.prepare import prepare
from simic.errors import SimicError
from simic.telemetry import starts, timing
from simic.telemetry.naming import run_name
from simic.training.checkpoint import read
from simic.training.session import open_session
from simic.training.trainer import train
from tests.standard import Prepare


def resumed(work, prepared, params=None):
    with open_session(params or small_params(), work, prepared) as session:
        start = session.state.counters.iteration
        train(session)
    return start


def edit(path: Path) -> None:
    """Change the policy, and every checksum with it."""
    checkpoint = read(path)
    rewritten(
        checkpoint,
        {
            name: x + 1 if name.startswith("ppo/policy.") else x
            for name, x in checkpoint.tensors.items()
        },
    )


@pytest.mark.parametrize(
    ("damage", "severity", "message"),
    [
        (
            lambda path: flip(path / "state.safetensors", 3000),
            "medium",
            "000004/state.safetensors: damaged",
        ),
        (edit, "high", "not those that the hash chain of this run has"),
    ],
)
def test_a_damaged_or_edited_checkpoint_is_set_aside_reported_and_done_again(
    damage, severity, message, copied, finished, prepared
):
    damage(copied / "checkpoints" / "000004")
    assert resumed(copied, prepared) == 3
    [finding] = findings_of(copied)
    assert (finding.check, finding.severity) == (
        "damaged_checkpoint",
        severity,
    ) and message in finding.message
    assert (copied / "checkpoints" / "damaged-000004").exists()
    redone, expected = (
        read(copied / "checkpoints" / "000004"),
        read(finished / "checkpoints" / "000004"),
    )
    assert redone.manifest.scalars == expected.manifest.scalars, "the hash chain is among them"
    assert (redone.path / "state.safetensors").read_bytes() == (
        expected.path / "state.safetensors"
    ).read_bytes()
    assert recorded(copied) == recorded(finished)
    [_, start] = starts.read(copied / "run.json")
    assert (start.start_iteration, start.findings) == (3, [finding])


STARTED_AS = {
    "simic run -S 'a=b c'": ["python", "/x/.venv/bin/simic", "run", "-S", "a=b c"],
    "python -m prefect.engine": ["/usr/bin/python3", "-m", "prefect.engine"],
    "python": [],
}


def test_every_start_of_a_run_has_its_name_and_its_command(prepared, tmp_path, monkeypatch):
    work = tmp_path / "0123456789abcdef"
    for command in STARTED_AS.values():
        monkeypatch.setattr(sys, "orig_argv", command)
        with open_session(small_params(), work, prepared):
            pass
    runs = [(start.name, start.command) for start in starts.read(work / "run.json")]
    assert runs == [(run_name(work.name), words) for words in STARTED_AS]


@pytest.mark.parametrize("lost", ["checkpoints", "telemetry"])
def test_if_none_is_good_nothing_is_thrown_away(lost, copied, prepared):
    """Also where no checkpoint is from before the telemetry that is damaged."""
    if lost == "telemetry":
        flip(copied / "telemetry" / "000001.safetensors", 1000)
    for path in (copied / "checkpoints").iterdir() if lost == "checkpoints" else ():
        flip(path / "state.safetensors", 500)
    log = telemetry_of(copied)
    for _ in range(2):  # asking again is no consent to start anew
        with pytest.raises(
            SimicError, match=r"none of the 3 checkpoints is usable; .*; start over with --fresh"
        ):
            resumed(copied, prepared)
    assert telemetry_of(copied) == log
    assert sorted(path.name for path in (copied / "checkpoints").iterdir()) == [
        "000002",
        "000003",
        "000004",
    ]


def test_telemetry_damaged_before_a_checkpoint_is_made_again_from_an_earlier_one(
    copied, finished, prepared
):
    flip(copied / "telemetry" / "000002.safetensors", 1000)
    assert resumed(copied, prepared) == 2
    for finding in findings_of(copied):
        assert "000002.safetensors: damaged, but checkpoint " in finding.message
    assert [finding.iteration for finding in findings_of(copied)] == [4, 3]
    assert recorded(copied) == recorded(finished)


def best_of(work) -> int:
    return read(work / "checkpoints" / "000004").manifest.best_iteration


@pytest.fixture(scope="module")
def improving(prepared, tmp_path_factory):
    """A finished run whose best checkpoint is not its last one, validated after every iteration."""
    for seed in range(1, 20):
        work = tmp_path_factory.mktemp("improving")
        params = small_params({"keep_last": 4}, validate_every=1).model_copy(
            update={"rng_seed": seed}
        )
        run(work, prepared, params=params)
        if best_of(work) < 4:
            return work, params
    raise AssertionError("no seed has one")


@pytest.mark.parametrize("damage", ["flip", "remove", "other"])
def test_a_damaged_best_checkpoint_is_met_at_the_resume_and_the_next_best_takes_its_place(
    damage, improving, prepared, tmp_path
):
    source, params = improving
    work = Path(shutil.copytree(source, tmp_path / "work"))
    best = best_of(work)
    path = work / "checkpoints" / f"{best:06d}"
    if damage == "flip":
        flip(path / "state.safetensors", 3000)
    else:
        shutil.rmtree(path)
        if damage == "other":
            shutil.copytree(work / "checkpoints" / "000004", path)
    scores = {row.iteration + 1: row.validation_accuracy for row in updates_of(work)}
    del scores[best]
    expected = max(scores, key=lambda iteration: (scores[iteration], -iteration))
    with open_session(params, work, prepared) as session:
        counters = train(session)
    assert (counters.best_iteration, counters.best_score) == (expected, scores[expected])
    [finding] = findings_of(work)
    assert (finding.check, finding.iteration) == ("best_checkpoint_lost", best)
    assert f"the best of the others is after {expected} iterations" in finding.message
    longer = params.model_copy(update={"train": params.train.model_copy(update={"iterations": 5})})
    with open_session(longer, work, prepared) as session:
        after = train(session)
    last = updates_of(work)[-1].validation_accuracy
    assert after.best_score == max(last, scores[expected])


@pytest.mark.parametrize("number", [b"", b"1"])
def test_damaged_starts_and_times_are_told_and_the_run_goes_on(number, copied, finished, prepared):
    starts_file, times = copied / "run.json", copied / "timing.jsonl"
    content = starts_file.read_bytes()
    starts_file.write_bytes(
        content.replace(b'"start_iteration": 0', b'"start_iteration": ' + number)
    )
    times.write_bytes(b"".join(times.read_bytes().splitlines(keepends=True)[1:]))
    assert resumed(copied, prepared) == 4
    [start] = starts.read(starts_file)
    assert [finding.check for finding in start.findings] == ["wall_times_lost", "starts_lost"]
    assert (copied / "damaged-run.json").exists()
    assert len(timing.read(times)) == 4
    assert recorded(copied) == recorded(finished)


def test_fresh_starts_anew_and_gives_the_same_run(copied, finished, prepared):
    flip(copied / "checkpoints" / "000004" / "state.safetensors", 3000)
    with open_session(small_params(), copied, prepared, fresh=True) as session:
        assert session.state.counters.iteration == 0
        assert session.checkpoints.numbers() == []
        train(session)
    assert_same_run(copied, finished)


def test_other_params_are_refused_naming_fields_and_both_values_and_so_are_other_data(
    copied, prepared, tmp_path
):
    with pytest.raises(SimicError) as error:
        resumed(copied, prepared, small_params(batch_size=32, validate_every=1))
    assert "train.batch_size (64 → 32)" in str(error.value)
    assert "validate_every" not in str(error.value), "harmless: it does not change what is trained"
    assert "\n" not in str(error.value)
    prepare(Prepare(samples=400), 2, tmp_path / "other", tmp_path)
    with pytest.raises(SimicError, match="prepared data"):
        resumed(copied, tmp_path / "other")


def test_harmless_changes_are_listed_and_another_machine_is_declared_inexact(copied, prepared):
    assert resumed(copied, prepared, small_params({"threads": 2}, iterations=5)) == 4
    changes, machine = findings_of(copied)
    assert (changes.check, changes.severity) == ("resumed_with_changes", "info")
    assert "train.iterations (4 → 5)" in changes.message
    assert read(copied / "checkpoints" / "000005").manifest.iteration == 5
    assert (machine.check, machine.severity) == ("inexact_resume", "medium")
    assert machine.evidence == {"threads": "1 → 2"}
    machine_before = read(copied / "checkpoints" / "000004").manifest.machine
    machine_after = machine_before.model_copy(
        update={"libraries": machine_before.libraries | {"torch": "9"}, "cores": 2, "group": 2}
    )
    assert machine_before.differences(machine_after) == {
        "torch": f"{machine_before.libraries['torch']} → 9"
    }  # groups are taken over
