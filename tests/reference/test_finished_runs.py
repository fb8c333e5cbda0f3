"""Headroom, evaluation and exported network of whole small runs are what the reference computes from their files."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file, save_file

from simic.audit.audit import examine
from simic.audit.findings import Status
from simic.params import Params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from tests.gym_run import TREE, gym_run
from tests.pipeline.conftest import suite_run  # noqa: F401
from tests.pipeline.small_suite import tree
from tests.reference.finished_gym_run import FinishedGymRun
from tests.reference.finished_run import FinishedRun, part


class Finished(NamedTuple):
    workspace: Workspace
    run: FinishedRun


def subject(kind: type[FinishedRun], workspace: Workspace, params: Params) -> FinishedRun:
    run = stages.recorded(params, workspace)
    return kind(
        workspace.prepared, workspace.grown, workspace.telemetry, workspace.checkpoints, run
    )


@pytest.fixture(scope="module")
def growth(suite_run: Workspace) -> Finished:  # noqa: F811
    return Finished(suite_run, subject(FinishedRun, suite_run, tree()))


@pytest.mark.parametrize("name", ["evaluation", "headroom", "grown_network"])
def test_a_growth_run_is_what_the_reference_computes(name: str, growth: Finished) -> None:
    compared = part(getattr(growth.run, name))
    assert compared.lines and not compared.differences, compared


def test_validation_of_the_best_checkpoint_is_what_its_weights_decide(growth: Finished) -> None:
    compared = part(growth.run.episodes)
    assert compared.lines and not compared.differences, compared


def test_what_is_made_of_a_run_is_what_the_audit_recomputes(growth: Finished) -> None:
    """Returns, counts, the best checkpoint and all numbers of the evaluation."""
    results = {result.check: result for result in examine(growth.run.run, "run").results}
    recomputed = [result for result in results.values() if result.layer == "record"]
    assert [
        (result.check, result.measured) for result in recomputed if result.status is not Status.PASS
    ] == []
    assert {"C1", "C5", "C6", "X8"} <= {result.check for result in recomputed}


@pytest.mark.parametrize("name", ["episodes", "evaluation"])
def test_a_run_on_an_environment_is_what_the_reference_computes(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = subject(FinishedGymRun, gym_run(tmp_path_factory), TREE)
    compared = part(getattr(run, name))
    assert compared.lines and not compared.differences, compared


# --- a comparison that nothing can fail is none ---


def test_another_exported_network_differs(growth: Finished, tmp_path: Path) -> None:
    grown = Path(shutil.copytree(growth.workspace.grown, tmp_path / "grown"))
    tensors = load_file(grown / "weights.safetensors")
    save_file(
        {name: tensor * 0.5 for name, tensor in tensors.items()}, grown / "weights.safetensors"
    )
    assert part(replace(growth.run, grown=grown).grown_network).differences


def test_a_headroom_of_other_hosts_differs(growth: Finished) -> None:
    """Shift what hosts scored and reached statically; let hosts choose by what they score."""
    headroom = growth.run.run.headroom
    assert headroom is not None

    def shifted(values):
        return *values[1:], values[0]

    changed = {name: shifted(vars(headroom)[name]) for name in ("val_pct", "test_pct")}
    changed["choosing_val_pct"] = headroom.val_pct
    other = replace(growth.run.run, headroom=headroom.model_copy(update=changed))
    differing = {line.kind for line in part(replace(growth.run, run=other).headroom).differences}
    assert {"validation accuracy, third quartile", "test accuracy, third quartile"} <= differing


def test_other_weights_than_those_that_decided_differ(growth: Finished) -> None:
    run = growth.run.run
    assert run.checkpoints is not None
    best = run.checkpoints["best"]
    tensors = {
        name: -tensor if "heads" in name else tensor for name, tensor in best.tensors.items()
    }
    other = replace(run, checkpoints={**run.checkpoints, "best": replace(best, tensors=tensors)})
    differing = {line.kind for line in part(replace(growth.run, run=other).evaluation).differences}
    assert "decisions, mean, third quartile" in differing
