"""Run the five stages: params in, files out. DVC, Prefect and the CLI call these."""

import functools
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from simic import durable, seals
from simic.agent import export
from simic.data import prepare as data
from simic.data.batches import data_hash, read_meta
from simic.envs import gym_env
from simic.errors import SimicError
from simic.params import Params
from simic.pipeline import dvc_record
from simic.pipeline.display import beside, shown
from simic.pipeline.paths import Workspace
from simic.telemetry import publish
from simic.telemetry.curves import METRICS_FILE
from simic.training import card, checkpoint, kept_iteration, machine, trainer
from simic.training.interrupts import stop_on_signals
from simic.training.learned import Learned
from simic.training.observers import Observer
from simic.training.session import Session, open_session

if TYPE_CHECKING:
    from simic.audit.record import RunRecord


def prepare(params: Params, workspace: Workspace) -> None:
    """Read the task's data, check it, split it: data/prepared."""
    # Before anything is made: outputs belong to the code and inputs that were there at the beginning.
    identity = seals.identify(workspace.root, "prepare", params)
    if params.prepare.is_gym:
        gym_env.prepare(params.prepare.gym, params.rng_seed, workspace.prepared)
    else:
        data.prepare(
            params.prepare, params.rng_seed, workspace.prepared, seals.raw_data(workspace.root)
        )
    seals.write(workspace.root, identity)


def train(
    params: Params,
    workspace: Workspace,
    observers: Sequence[Observer] = (),
    stop: threading.Event | None = None,
    fresh: bool = False,
) -> None:
    """Train the controller in its work directory, resuming where an earlier process stopped, and publish the result:
    checkpoints/, models/, telemetry/. The work directory stays: training that is finished is published again, not done
    again, and can be made longer.

    Args:
        params: Of the run.
        workspace: In which it runs; the caller holds its lock.
        observers: Hear of every iteration, beside the display.
        stop: Ends training after its step, once it is set.
        fresh: Throw an unfinished training away.

    Raises:
        Interrupted: Training was asked to stop, and its state is saved.
    """
    # The identity names the work directory, so that other settings never meet these checkpoints.
    identity = seals.identify(workspace.root, "train", params)
    work = workspace.work(identity.sha256)
    stop = stop or threading.Event()
    code = dvc_record.code_revision(workspace.root)
    # Asked once, at the start: what is edited later is not what trains.
    changed = dvc_record.changed_files(workspace.root)
    with (
        stop_on_signals(stop),
        open_session(
            params, work, workspace.prepared, fresh, code=code, changed_files=changed
        ) as session,
    ):
        shown_to = beside(observers, params.runtime.progress, baseline_scores(params, workspace))
        counters = trainer.train(session, shown_to, stop)
        # Without a validation there is no best one, and the latest stands for it.
        best = counters.best_iteration or counters.iteration
        _publish(session, workspace, best, counters.iteration)
        seals.write(workspace.root, identity)


def baseline_scores(params: Params, workspace: Workspace) -> dict[str, float]:
    """Look up the scores that headroom measured for these params and data, to show beside those of training: on the
    validation tasks, or for a single data set on the held-out ones. Empty without such a headroom.
    """
    from simic.evaluation import endpoints, gym_evaluation, result

    # Floors of other data or settings beside the curve would mislead.
    if not seals.holds(workspace.root, "headroom", params):
        return {}
    if params.prepare.is_gym:
        return gym_evaluation.floors(workspace.headroom)
    headroom = result.read_headroom(workspace.headroom)
    if headroom.validation:
        return headroom.validation
    standings = next(iter(headroom.standings.values())).policies
    # A single data set has no validation tasks: its held-out scores are all there is.
    names = ("static", endpoints.COMMON, endpoints.ORACLE_TASK)
    return {name: standings[name].score.estimate for name in names if name in standings}


def _publish(session: Session, workspace: Workspace, best: int, latest: int) -> None:
    # Checkpoints first: what is published later can be made again from them.
    extent = session.recorder.flush()
    session.checkpoints.publish(
        workspace.checkpoints, best, latest, publish.links(session.work_dir, extent)
    )
    saved = session.checkpoints.read(best)
    learned = Learned.of(saved)
    meta = read_meta(workspace.prepared)
    # The card says that nothing was evaluated yet; the audit writes the one with results.
    if session.params.prepare.is_gym:
        text = card.gym_card(learned, saved.manifest, meta, card.NOT_EVALUATED)
    else:
        text = card.growth_card(learned, saved.manifest, meta, card.validated(saved.manifest))
    with durable.new_directory(workspace.models) as models:
        learned.save(models / "policy")
        export.export_policy(
            learned.policy,
            learned.normalizers.observation,
            models / "program",
            session.env.masked,
            getattr(session.env, "layout", None),  # of growth: docs/observations.md
        )
        durable.write_synced(models / card.FILE, text.encode())
    publish.publish(
        session.work_dir, extent, workspace.telemetry, kept_iteration.published(session.params)
    )


def headroom(params: Params, workspace: Workspace) -> None:
    """Measure floors, rules and a search over schedules on the held-out tasks, before anything is learned, or take
    what comes with simic for the same data and settings: reports/headroom.json.
    """
    identity = seals.identify(workspace.root, "headroom", params)
    # All is measured in memory, and replaces the old file in one step.
    if params.prepare.is_gym:
        from simic.evaluation import gym_evaluation

        machine.configure(params.runtime)
        with shown(params.runtime.progress, "headroom", "") as progress:
            report = gym_evaluation.measure(params, workspace.prepared, progress)
    else:
        from simic.evaluation import shipped
        from simic.evaluation.headroom import measure

        report = shipped.find(params, data_hash(workspace.prepared))
        if report is None:
            with shown(params.runtime.progress, "headroom") as progress:
                report = measure(
                    params, workspace.prepared, machine.configure(params.runtime), progress
                )
    durable.replace_file(workspace.headroom, report.to_json().encode())
    seals.write(workspace.root, identity)


def evaluate(params: Params, workspace: Workspace) -> None:
    """Evaluate the trained policy on the held-out tasks, beside what headroom has: reports/evaluation.json and
    metrics.json; and export the best network that the first policy grew: reports/grown.
    """
    if params.prepare.is_gym:
        _evaluate_gym(params, workspace)
        return
    from simic.evaluation import endpoints, result
    from simic.evaluation import evaluate as evaluation
    from simic.evaluation.export_best import Account, export_best
    from simic.evaluation.policies import actors
    from simic.evaluation.scoring import EvaluationSetup, Performance

    identity = seals.identify(workspace.root, "evaluate", params)
    # Rules and schedules were measured there: the policy meets the same hosts and is compared with them.
    headroom = result.read_headroom(_own_headroom(params, workspace))
    device = machine.configure(params.runtime)
    saved = _evaluated_checkpoint(params, workspace)
    policies = params.evaluate.policies
    learned = Learned.of(saved, device)
    # In episodes of other lengths and on outside tables only the first policy plays: nobody reads the others there.
    one_policy = params.model_copy(
        update={"evaluate": params.evaluate.model_copy(update={"policies": policies[:1]})}
    )
    players_in = functools.partial(actors, one_policy, learned=learned)
    elsewhere = evaluation.elsewhere(params, workspace.prepared, device, players_in, headroom)
    setup = EvaluationSetup.open(params, workspace.prepared, device, len(policies))
    with (
        durable.new_directory(workspace.grown) as grown,
        shown(params.runtime.progress, "evaluate", "policies") as progress,
    ):
        players = actors(params, setup.env, learned)
        ended = count(1)

        def on_end(name: str, performance: Performance) -> None:
            """Export the best network of the first policy named, the trained one by default."""
            progress("played to the end", next(ended), len(players))
            # Inside, as the environment still holds the networks: they are gone when the next policies play.
            if name == policies[0]:
                source = f"{params.evaluate.checkpoint} checkpoint (iteration {learned.iteration})"
                grown_by = f"the policy {name} of the {source}"
                account = Account(grown_by)
                export_best(
                    setup.env,
                    performance.rows,
                    performance.turns,
                    setup.held_out,
                    workspace.prepared,
                    account,
                    grown,
                )

        # The two files change together, since the audit derives one from the other.
        report = evaluation.evaluate(setup, players, headroom, params, saved, on_end, elsewhere)
        metrics = json.dumps(endpoints.metrics(report), indent=2) + "\n"
        durable.replace_files(
            {workspace.evaluation: report.to_json().encode(), workspace.metrics: metrics.encode()}
        )
    seals.write(workspace.root, identity)


def _evaluate_gym(params: Params, workspace: Workspace) -> None:
    """Evaluate on a Gymnasium environment, where nothing is grown: reports/grown says so."""
    from simic.evaluation import gym_evaluation

    # Before anything is read, so that files which change meanwhile do not get the seal.
    identity = seals.identify(workspace.root, "evaluate", params)
    headroom = gym_evaluation.read_headroom(_own_headroom(params, workspace))
    machine.configure(params.runtime)
    saved = _evaluated_checkpoint(params, workspace)
    with shown(params.runtime.progress, "evaluate", "policies") as progress:
        report = gym_evaluation.evaluate(params, saved, headroom, progress)
    # DVC expects each output of the stage, so that the folder is made where nothing grows too.
    with durable.new_directory(workspace.grown) as grown:
        durable.write_synced(
            grown / "README.md", b"A Gymnasium environment: no network was grown.\n"
        )
    durable.replace_files(
        {
            workspace.evaluation: report.to_json().encode(),
            workspace.metrics: gym_evaluation.metrics(report).encode(),
        }
    )
    seals.write(workspace.root, identity)


def _evaluated_checkpoint(params: Params, workspace: Workspace) -> checkpoint.Checkpoint:
    """Read the checkpoint to evaluate; SimicError where it is not what train made: it may be that of another run."""
    return checkpoint.read_published(
        unchanged(workspace, workspace.checkpoints), params.evaluate.checkpoint
    )


def _own_headroom(params: Params, workspace: Workspace) -> Path:
    """Locate headroom.json; SimicError where it was not measured by this code, with these params and data."""
    path = unchanged(workspace, workspace.headroom)
    if path.exists() and not seals.holds(workspace.root, "headroom", params):
        raise SimicError(
            f"{path}: of other data, params or code than these; run simic headroom first"
        )
    return path


def explain(params: Params, workspace: Workspace, task: str, step: int) -> str:
    """Describe why the evaluated policy decided as it did; nothing is written.

    Args:
        params: Of the run, for the machine.
        workspace: With the evaluation and the checkpoint.
        task: Name of the task.
        step: Of the episode.
    """
    refuse_gym(params, "explain")
    from simic.evaluation import explain as explaining
    from simic.evaluation import result

    # The checkpoint that was evaluated, whatever params.yaml names by now.
    evaluation = result.read(unchanged(workspace, workspace.evaluation))
    device = machine.configure(params.runtime)
    saved = checkpoint.read_published(
        unchanged(workspace, workspace.checkpoints), evaluation.checkpoint
    )
    return explaining.explain(
        evaluation, saved, workspace.prepared, params.runtime, device, task, step
    )


def refuse_gym(params: Params, command: str) -> None:
    """Raise SimicError where a command is about hosts that grow, and the task is another."""
    if params.prepare.is_gym:
        raise SimicError(
            f"prepare.task = 'gym': simic {command} is for tasks on which networks are grown"
        )


def audit(params: Params, workspace: Workspace) -> None:
    """Check the run, play parts of it again, and write the reports, the model card, findings and their numbers."""
    from simic.audit.replay import RunFiles, replaying

    identity = seals.identify(workspace.root, "audit", params)
    # Damaged files may end in any error of a reader: the seals then say what is damaged.
    with (
        seals.explain_damage(workspace.root, params),
        shown(params.runtime.progress, "audit", "steps") as progress,
        ExitStack() as replays,
    ):
        # While parts of the run are played again, the checks go on, and what they import is loaded.
        run = recorded(params, workspace)
        if params.audit.replay:
            files = RunFiles(workspace.prepared, workspace.telemetry, workspace.checkpoints)
            run = replace(run, replays=replays.enter_context(replaying(run, files)))
        from simic.audit.report import write_report

        write_report(run, workspace.reports)
        progress("checked", 1, 1)
    seals.write(workspace.root, identity)


def recorded(params: Params, workspace: Workspace) -> "RunRecord":
    """Read all that the run has published; what is not there is left out."""
    from simic.audit.provenance import trace
    from simic.audit.record import RunRecord, read_splits
    from simic.evaluation import gym_evaluation, result

    # What is missing stays None: a check that needs it says so, and the report is still made.
    provenance, checkpoints = trace(params, workspace.root)
    files = {
        "reports/metrics.json": workspace.metrics,
        "telemetry/metrics.json": workspace.telemetry / METRICS_FILE,
    }
    run = replace(
        RunRecord.from_published(params, workspace.telemetry),
        provenance=provenance,
        checkpoints=checkpoints,
        metrics={
            place: json.loads(file.read_bytes()) for place, file in files.items() if file.exists()
        },
    )
    # Results.
    if params.prepare.is_gym:
        headroom = (
            gym_evaluation.read_headroom(workspace.headroom)
            if workspace.headroom.exists()
            else None
        )
        evaluation = (
            gym_evaluation.read(workspace.evaluation) if workspace.evaluation.exists() else None
        )
        run = replace(run, gym_headroom=headroom, gym=evaluation)
    else:
        headroom = result.read_headroom(workspace.headroom) if workspace.headroom.exists() else None
        evaluation = result.read(workspace.evaluation) if workspace.evaluation.exists() else None
        run = replace(run, headroom=headroom, evaluation=evaluation)
    if not workspace.prepared.exists():
        return run
    # Data.
    meta = read_meta(workspace.prepared)
    if params.prepare.is_gym:
        return replace(run, meta=meta)
    splits = read_splits(workspace.prepared)
    return replace(run, meta=meta, splits=splits)


def unchanged(workspace: Workspace, path: Path) -> Path:
    """Give the path of a stage's output; SimicError where it has changed since it was sealed. A missing one is left
    to its reader.
    """
    if path.exists():
        seals.refuse_changed(workspace.root, path.relative_to(workspace.root).as_posix())
    return path


STAGES: dict[str, Callable[..., None]] = {
    "prepare": prepare,
    "headroom": headroom,
    "train": train,
    "evaluate": evaluate,
    "audit": audit,
}


def fingerprint(params: Params, workspace: Workspace) -> str:
    """Compute the identity of training with these params, data and code, which names its work directory."""
    return seals.identify(workspace.root, "train", params).sha256
