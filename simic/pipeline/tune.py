"""Search params of training for the best validation score with Optuna; a trial is a training, and a run in MLflow.

Values, scores and states of trials are in .simic/tune.db. A search that ended in the middle, whatever ended it, goes on
with the trial that was running, from its last checkpoint. Validation plays other episodes than the final evaluation.
"""

import json
import math
import threading
from collections.abc import Callable

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from simic import durable, params, rng, seals
from simic.errors import SimicError
from simic.params import Options, Params, Range
from simic.pipeline import engine, tracking
from simic.pipeline import overrides as writer
from simic.pipeline.paths import Workspace, sqlite_uri
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training import trainer
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer, RunInfo
from simic.training.session import open_session

Say = Callable[[str], None]
FAILURE = "failure"  # an attribute of a trial: why it failed
WIDTH = 12  # of a column

optuna.logging.set_verbosity(optuna.logging.ERROR)


def search(workspace: Workspace, say: Say) -> None:
    """Run the trials that ``tune.trials`` lacks; write the params with the best values: tuned.yaml.

    Args:
        workspace: With prepared data; the caller holds its lock.
        say: Called with lines for the user.

    Raises:
        SimicError: The space is empty, a value of it is not legal, or no trial was finished.
    """
    tree = params.load(workspace.params)
    _check(tree, workspace)
    # Of these data, params and code: a search of other settings has trials of its own.
    identity = seals.identify(workspace.root, "train", tree)
    space = tree.tune.model_dump(mode="json", include={"space"})
    name = params.digest(identity.sha256, space)[:16]
    workspace.state.mkdir(exist_ok=True)
    storage = RDBStorage(sqlite_uri(workspace.trials))
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(),
        load_if_exists=True,
    )
    tags = {"simic.search": name, **engine.provenance(workspace)}
    while (trial := _next(study, storage, tree)) is not None:
        _run(trial, study, tree, workspace, tags)
        say(_row(study.trials[trial.number]))
    _report(study, workspace, say)


def _check(tree: Params, workspace: Workspace) -> None:
    """Try each value, and both ends of each range, as an override."""
    if not tree.tune.space:
        raise SimicError(
            "tune.space is empty: must name params of training, for example"
            " {train.ppo.learning_rate: {low: 1e-4, high: 1e-2, log: true}}"
        )
    for key, options in tree.tune.space.items():
        values = (options.low, options.high) if isinstance(options, Range) else options
        for value in values:
            try:
                params.load(workspace.params, _overrides({key: value}))
            except SimicError as error:
                raise SimicError(f"tune.space: {error}") from None


def _next(study: optuna.Study, storage: BaseStorage, tree: Params) -> Trial | None:
    """Take up the trial that an earlier process left, or begin the next; None where all are done."""
    trials = study.trials
    running = [trial.number for trial in trials if trial.state == TrialState.RUNNING]
    if not running and len(trials) >= tree.tune.trials:
        return None
    # A sampler of its own for each: what it draws hangs on the trials before, and not on who ran them.
    number = running[0] if running else len(trials)
    seed = rng.bits(rng.key(tree.rng_seed, rng.Purpose.TRIAL, number))
    study.sampler = optuna.samplers.TPESampler(seed=int(seed) & 0x7FFFFFFF)
    if not running:
        return study.ask()
    study_id = storage.get_study_id_from_name(study.study_name)
    return Trial(study, storage.get_trial_id_from_study_id_trial_number(study_id, number))


def _run(
    trial: Trial, study: optuna.Study, tree: Params, workspace: Workspace, tags: dict[str, str]
) -> None:
    """Train with the values of a trial, and record how it ended."""
    values = {key: _draw(trial, key, options) for key, options in tree.tune.space.items()}
    work = workspace.trial_root / params.digest(study.study_name, trial.number)[:16]
    # What is left of trials that ended.
    for folder in workspace.trial_root.glob("*"):
        if folder != work:
            durable.remove_directory(folder)
    try:
        changed = params.load(workspace.params, _overrides(values))
        pruning = Pruning(trial, study.trials[trial.number])
        log = tracking.RunLogger(workspace, changed, {**tags, "simic.trial": str(trial.number)})
        with open_session(changed, work, workspace.prepared) as session:
            score = trainer.train(session, (pruning, log), pruning.stop).best_score
        study.tell(trial, score)
    except Interrupted:
        study.tell(trial, state=TrialState.PRUNED)
    except SimicError as error:
        # Values that do not go together, or a training that broke down, say nothing against others.
        trial.set_user_attr(FAILURE, str(error))
        study.tell(trial, state=TrialState.FAIL)
    durable.remove_directory(work)


def _draw(trial: Trial, key: str, options: Range | Options) -> params.Scalar:
    if not isinstance(options, Range):
        return trial.suggest_categorical(key, options)
    if isinstance(options.low, int) and isinstance(options.high, int):
        return trial.suggest_int(key, options.low, options.high, log=options.log)
    return trial.suggest_float(key, options.low, options.high, log=options.log)


class Pruning(Observer):
    """Report validations of a trial, and stop it where its best is below the median of the trials before."""

    def __init__(self, trial: Trial, begun: FrozenTrial) -> None:
        self.stop = threading.Event()
        self._trial = trial
        self._reported = begun.intermediate_values.keys()

    def on_start(self, info: RunInfo) -> None:
        # It may have ended between a verdict and its record.
        self._judge()

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        if math.isnan(update.validation_accuracy):
            return
        # An iteration that is done again has the same score.
        if update.iteration not in self._reported:
            self._trial.report(update.validation_accuracy, update.iteration)
        self._judge()

    def _judge(self) -> None:
        if self._trial.should_prune():
            self.stop.set()


def _overrides(values: dict[str, params.Scalar]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _report(study: optuna.Study, workspace: Workspace, say: Say) -> None:
    """Print all trials, the best first, and write its params."""
    done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    if not done:
        raise SimicError(f"no trial was finished; the last one: {_row(study.trials[-1])}")
    ranked = sorted(study.trials, key=lambda trial: (trial.state, -_score(trial)))
    say("\n".join(["", "".join(word.ljust(WIDTH) for word in ("trial", "state", "score"))]))
    for trial in ranked:
        say(_row(trial))
    changes = _overrides(study.best_params)
    durable.replace_file(workspace.tuned, writer.edited(workspace.params, changes))
    say(f"\n{workspace.tuned.name} has the values of trial {study.best_trial.number}; to train and")
    say(f"evaluate with them: simic run --params {workspace.tuned.name}")


def _score(trial: FrozenTrial) -> float:
    """Find the best validation of a trial; -inf where there was none."""
    return max(trial.intermediate_values.values(), default=-math.inf)


def _row(trial: FrozenTrial) -> str:
    cells = (str(trial.number), trial.state.name.lower(), f"{_score(trial):.5g}")
    values = ", ".join(f"{key}={value}" for key, value in trial.params.items())
    failure = trial.user_attrs.get(FAILURE)
    return (
        "".join(cell.ljust(WIDTH) for cell in cells) + values + (f": {failure}" if failure else "")
    )
