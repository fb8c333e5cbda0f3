"""The search for params: legal spaces alone, and a search that is killed is the search that never was."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from simic import params
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import stages, tracking, tune
from simic.pipeline.paths import Workspace, sqlite_uri
from tests.conftest import Simic
from tests.helpers import FORKING, ROOT

SPACE = {
    "train.ppo.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "train.ppo.epochs": {"low": 1, "high": 3},
    "train.policy.core": ["gru", "none"],
}
SMALL = [
    "prepare.task=gym", "prepare.gym.id=tests.gym_toys:Maze-v0", "train.envs=4", "train.episode_steps=8",
    "train.iterations=2", "train.validate_every=1", "train.horizon=null", "tune.trials=3", "runtime.threads=1",
    "train.policy={encoder_units: 8, core_units: 8, head_units: 8}",
]  # fmt: skip


def project(workspace: Workspace, space: dict[str, Any], *overrides: str) -> Workspace:
    """Prepare the task, and write params with this space."""
    tree = params.load(ROOT / "params.yaml", [*SMALL, *overrides])
    stages.prepare(tree, workspace)
    values = tree.model_dump(mode="json")
    values["tune"]["space"] = space
    workspace.params.write_text(yaml.safe_dump(values, sort_keys=False))
    return workspace


def search_and_die(root: Path) -> None:
    """End without a word between the last score of the second trial and the checkpoint behind it."""
    judged = 0
    judge = tune.Pruning.on_iteration

    def dying(self: tune.Pruning, *result: Any) -> None:
        nonlocal judged
        judged += 1
        judge(self, *result)
        if judged == 4:
            os._exit(9)

    tune.Pruning.on_iteration = dying
    tune.search(Workspace(root), print)


def trials(workspace: Workspace) -> list[tuple]:
    """What the store has of each trial, but times."""
    storage = sqlite_uri(workspace.trials)
    [summary] = optuna.get_all_study_summaries(storage)
    return [
        (trial.number, trial.state.name, trial.params, trial.intermediate_values, trial.values)
        for trial in optuna.load_study(study_name=summary.study_name, storage=storage).trials
    ]


def test_a_search_that_is_killed_goes_on_as_if_it_had_not_been(
    workspace: Workspace, tmp_path: Path
) -> None:
    project(workspace, SPACE)
    killed = Workspace(Path(shutil.copytree(workspace.root, tmp_path / "killed")))
    lines: list[str] = []
    tune.search(workspace, lines.append)
    process = FORKING.Process(target=search_and_die, args=(killed.root,))
    process.start()
    process.join(120)
    assert process.exitcode == 9
    assert [trial[1] for trial in trials(killed)] == ["COMPLETE", "RUNNING"]
    tune.search(killed, print)
    assert trials(killed) == trials(workspace)
    assert [state for _, state, *_ in trials(killed)] == ["COMPLETE"] * 3
    assert not any(killed.trial_root.iterdir())

    # A run of MLflow for each trial, with the params that were drawn.
    store = tracking.connect(killed)
    runs = store.client.search_runs([store.experiment_id])
    assert sorted(run.data.tags["simic.trial"] for run in runs) == ["0", "1", "2"]
    rates = {float(run.data.params["train.ppo.learning_rate"]) for run in runs}
    assert rates == {trial[2]["train.ppo.learning_rate"] for trial in trials(killed)}

    # The best one's values and nothing else are changed, in a file that loads.
    best = max(trials(killed), key=lambda trial: trial[4])
    tuned = params.load(killed.tuned)
    assert killed.tuned.read_bytes() == workspace.tuned.read_bytes()
    values = [f"{key}={value}" for key, value in best[2].items()]
    assert tuned == params.load(killed.params, values)
    assert sum(line.startswith("0 ") for line in lines) == 2  # as it ended, and in the table


def test_more_trials_go_on_and_a_trial_whose_values_do_not_go_together_fails_alone(
    workspace: Workspace,
) -> None:
    space = {"train.envs": [4, 6], "train.ppo.minibatches": [2, 4]}
    project(workspace, space, "train.iterations=1", "train.envs=12", "train.ppo.minibatches=2")
    lines: list[str] = []
    tune.search(workspace, print)
    before = trials(workspace)
    workspace.params.write_text(workspace.params.read_text().replace("trials: 3", "trials: 6"))
    tune.search(workspace, lines.append)
    assert trials(workspace)[:3] == before and len(trials(workspace)) == 6
    states = {tuple(trial[2].values()): trial[1] for trial in trials(workspace)}
    assert states[6, 4] == "FAIL" and set(states.values()) == {"FAIL", "COMPLETE"}
    assert any("envs (6) must be a multiple of ppo.minibatches (4)" in line for line in lines)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "tune.space is empty: must name params of training"),
        ({"train.ppo.learning_rat": [0.1]}, "unknown key; did you mean train.ppo.learning_rate"),
        ({"train.ppo.clip_range": {"low": -1.0, "high": 1.0}}, "clip_range = -1.0: must be"),
        ({"train.policy.core": ["gru", "rnn"]}, "train.policy.core = 'rnn': must be"),
        ({"rng_seed": [1, 2]}, "tune.space.rng_seed"),
        ({"train.ppo.gamma": {"low": 0.9, "high": 0.5}}, "low must be below high"),
        ({"train.ppo.gamma": {"low": 0.0, "high": 0.5, "log": True}}, "with log above 0"),
        ({"train.ppo.gamma": []}, "tune.space.train.ppo.gamma"),
    ],
)
def test_a_space_that_is_not_legal_is_refused_before_any_trial(
    space: dict, message: str, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    values = Params().model_dump(mode="json")
    workspace.params.write_text(yaml.safe_dump(values | {"tune": {"space": space}}))
    with pytest.raises(SimicError) as refusal:
        tune.search(workspace, print)
    assert message in str(refusal.value)
    assert not workspace.trials.exists()


def test_without_optuna_the_command_names_the_extra(
    simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Callable[[str], Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "optuna" else found(name)
    )
    assert "optuna is not installed; pip install 'simic-grow[tune]'" in simic.refuses("tune")
