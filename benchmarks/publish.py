"""Publish a finished workspace's controller as package data: simic/published/SUITE, which `simic grow` uses.

    python -m benchmarks.publish WORKSPACE SUITE [--best-of SEEDS]

Everything written is read from the workspace: its policy, checkpoint, reports, prepared data and wall times. The same
workspace gives the same bytes.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from simic import durable
from simic.data.batches import Meta, data_hash, read_meta
from simic.errors import SimicError, exit_with_message
from simic.evaluation import controllers, endpoints, result
from simic.evaluation.controllers import Publication
from simic.evaluation.page import GROUPS, interval
from simic.pipeline.paths import Workspace
from simic.telemetry import timing
from simic.training import card, checkpoint
from simic.training.checkpoint import Manifest
from simic.training.learned import CARD_FILE, WEIGHTS_FILE, Learned

MOST_BYTES = 2_000_000  # of a controller with its card
CARD = "CARD.md"
ROWS = (
    result.LEARNED,
    endpoints.TUNED,
    endpoints.PATIENT,
    endpoints.COMMON,
    endpoints.ORACLE_TASK,
    "blind",
    "static",
)


@dataclass(frozen=True)
class Finished:
    """A workspace after `simic run`, whose parts belong together."""

    learned: Learned
    manifest: Manifest
    evaluation: result.Evaluation
    headroom: result.HeadroomReport
    meta: Meta
    minutes: float  # of training


def read(workspace: Workspace, suite: str) -> Finished:
    """Read a workspace; SimicError naming what is missing, or what is of another run than the policy."""
    evaluation = result.read(workspace.evaluation)
    headroom = result.read_headroom(workspace.headroom)
    learned = Learned.load(workspace.models / "policy")
    meta = read_meta(workspace.prepared)
    manifest = checkpoint.read_published(workspace.checkpoints, str(evaluation.checkpoint)).manifest
    # Parts of two runs fit together as files: their records alone tell them apart.
    if meta.task != "suite" or meta.source.split(" + ")[0] != f"suite {suite}":
        raise SimicError(f"{workspace.prepared}: data of {meta.source}, not of suite {suite}")
    if {manifest.iteration, evaluation.checkpoint_iteration} != {learned.iteration}:
        raise SimicError(
            f"{workspace.evaluation}: of the policy after {evaluation.checkpoint_iteration} iterations; "
            f"models/policy is the one after {learned.iteration}: run simic evaluate with evaluate.checkpoint=best"
        )
    for name, run in (("evaluation", evaluation), ("headroom", headroom), ("checkpoint", manifest)):
        if run.data_sha256 != data_hash(workspace.prepared):
            raise SimicError(
                f"{workspace.root}: its {name} is of other data than {workspace.prepared}; simic run"
            )
    seconds = sum(row.seconds for row in timing.read(workspace.telemetry / timing.TIMING_FILE))
    return Finished(learned, manifest, evaluation, headroom, meta, seconds / 60)


def publish(workspace: Workspace, suite: str, seeds: int = 1) -> Path:
    """Write the suite's folder anew, whole or not at all; SimicError where it would be too large.

    Args:
        workspace: of the run.
        suite: that it was trained on.
        seeds: trainings of which it was chosen by validation.
    """
    run = read(workspace, suite)
    policy = workspace.models / "policy"
    publication = Publication(suite=suite, sample_shape=run.meta.shape)
    # The card alone changes: weights stay the bytes of the run.
    card = durable.checked((policy / CARD_FILE).read_bytes())
    card["published"] = publication.model_dump(mode="json")
    files = {
        WEIGHTS_FILE: (policy / WEIGHTS_FILE).read_bytes(),
        CARD_FILE: durable.with_checksum(card),
        CARD: text(run, publication, seeds).encode(),
    }
    # Before anything is written, as everybody who installs simic gets it.
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        raise SimicError(
            f"controller of suite {suite}: {size} bytes, at most {MOST_BYTES}: train a smaller policy"
        )
    with durable.new_directory(controllers.PUBLISHED / suite) as folder:
        for name, content in files.items():
            durable.write_synced(folder / name, content)
    return controllers.PUBLISHED / suite


def text(run: Finished, publication: Publication, seeds: int) -> str:
    train = run.learned.train
    machine = run.manifest.machine
    headroom = run.headroom
    priced = f", less {headroom.price:g} for each time the host's parameters were added,"
    # The usual length first, as it is the one that is read.
    lengths = {f"{run.evaluation.episode_steps} epochs": run.evaluation.standings}
    lengths |= {name: other.standings for name, other in run.evaluation.others.items()}
    groups = "\n\n".join(
        _scores(run, f"{length}, {standings.tasks} {GROUPS[group]}", standings)
        for length, by_group in lengths.items()
        for group, standings in by_group.items()
    )
    chosen = f", the best of {seeds} seeds by validation" if seeds > 1 else ""
    return f"""# A controller of growth, trained on suite {publication.suite}

Use: `simic grow DATA --policy {publication.suite}`, or without `--policy` where it fits. Written by
`python -m benchmarks.publish`.

## Data
{card.data_used(run.meta, run.evaluation.data_sha256)}

## Training
One training, rng_seed {run.manifest.params["rng_seed"]}{chosen}: {train.iterations} iterations of {train.envs} \
hosts; kept is iteration {run.learned.iteration}. \
Cost: {run.evaluation.controller_trainings} host trainings, validation included, in {run.minutes:.1f} \
minutes on {machine.device} ({machine.cpu_capability}, {machine.cores} cores, torch \
{machine.libraries["torch"]}). The common schedule was the best of {len(headroom.schedules)} on tasks of \
training, which cost {headroom.common_cost} host trainings more.

## Scores
Test accuracy in points{priced if headroom.price else ""} on tasks that it was not trained on, with 95 % intervals over
tasks. A row costs one training of a host; the oracle per task takes the best schedule of each task, found by training
with all of them. `blind` is this controller without sight of the host, `static` the host alone.

{groups}

## Limits
{card.limits(run.learned, publication.sample_shape)}
"""


def _scores(run: Finished, title: str, standings: result.Standings) -> str:
    common = run.headroom.schedules[run.headroom.common]
    names = {result.LEARNED: "this controller", endpoints.COMMON: f"{endpoints.COMMON}: {common}"}
    lines = [
        f"{title}:",
        "",
        "| policy | score | over the rule | over the common schedule | parameters |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in ROWS:
        # Params decide which policies there are.
        if name not in standings.policies:
            continue
        row = standings.policies[name]
        over_rule = "–" if row.over_rule is None else interval(row.over_rule)
        lines.append(
            f"| {names.get(name, name)} | {interval(row.score).lstrip('+')} | {over_rule} | "
            f"{interval(row.over_common)} | {row.params:,.0f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace", type=Path)
    parser.add_argument("suite")
    parser.add_argument("--best-of", type=int, default=1)
    options = parser.parse_args(arguments)
    print(publish(Workspace(options.workspace), options.suite, options.best_of))


if __name__ == "__main__":
    with exit_with_message("publish"):
        main()
