"""Run `simic promote` and `simic rollback`: which version is MLflow's champion, of networks and of policies."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simic import durable
from simic.data.own import predict
from simic.data.own.readers import most_bytes
from simic.errors import SimicError
from simic.evaluation.floors import UNEVEN
from simic.evaluation.intervals import Interval, paired_difference
from simic.params import Params
from simic.pipeline import promote as policies
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.pipeline.promote import PromotionDecision
from simic.pipeline.tracking import CHALLENGER, CHAMPION, DATA_TAG, ModelVersion, Store
from simic.serving import history, request_rows
from simic.serving.networks import NetworkModel

# Of a version that was retrained: the newest time of a request that it was trained on, the first time of those that
# were kept for its comparison, and the hash of the file with these.
ROWS_UNTIL_TAG = "simic.rows_until"
NEWEST_FROM_TAG = "simic.newest_from"
NEWEST_TAG = "simic.newest"
NEWEST = "data/newest.parquet"
# With fewer rows an interval of a mean of zeros and ones is not to be trusted.
LEAST_ROWS = 100


def register(workspace: Workspace, folder: Path, name: str) -> ModelVersion:
    """Register a network: the first of a name becomes the champion, each later one the challenger.

    Args:
        workspace: Says where MLflow's store is.
        folder: That ``simic grow`` saved, or ``recommended`` in it.
        name: Of the data.
    """
    with _registry(workspace) as store:
        version = tracking.register_network(store, folder, tracking.registered_name(name))
        # There is nobody that the first could be compared with.
        champion = tracking.version_with(store.client, version.name, CHAMPION)
        if champion is None:
            history.move(workspace, store, version, "promote", "the first", {})
        elif champion.version != version.version:
            tracking.give_alias(store.client, version, CHALLENGER)
        return store.client.get_model_version(version.name, str(version.version))


def promote(
    params: Params, workspace: Workspace, challenger: str | None = None, rows: Path | None = None
) -> PromotionDecision:
    """Make a challenger the champion of its registered model if it is better than the present one.

    Args:
        params: Those of the project, for policies.
        workspace: Says where MLflow's store is.
        challenger: A registered model of networks, whose challenger is meant, or the name or id of a policy's run;
            None: the challenger among the project's policies.
        rows: Labelled rows that neither network was trained on; None: those that the retraining kept.

    Raises:
        SimicError: There is no such challenger, the two cannot be compared, or MLflow does not answer.
    """
    with _registry(workspace) as store:
        # The name of a registered model is one of networks, unless it is that of the policies.
        policy = tracking.registered_name(params.prepare.dataset)
        champion = challenger and tracking.version_with(store.client, challenger, CHAMPION)
        if champion and champion.name != policy:
            decision = _decide(workspace, store, champion, rows)
        elif rows is not None:
            raise SimicError(f"--on {rows}: is for networks; policies are compared on their tasks")
        else:
            decision = policies.decide(params, store, None if champion else challenger)
        # Aliases move last, so that nothing is half promoted.
        if not decision.objections:
            evidence = dict(decision.evidence)
            version = decision.challenger
            history.move(workspace, store, version, "promote", decision.in_words, evidence)
    return decision


def rollback(workspace: Workspace, name: str, reason: str) -> list[str]:
    """Give the alias champion back to the version that had it before.

    Args:
        workspace: Says where MLflow's store is, and has the history.
        name: Of the registered model.
        reason: Why, for the history.

    Returns:
        Lines for a terminal.
    """
    with _registry(workspace) as store:
        champion = tracking.version_with(store.client, name, CHAMPION)
        if champion is None:
            raise SimicError(f"{name}: no registered model with a champion")
        # The history knows whom the champion followed; MLflow does not.
        before = history.predecessor(workspace, name, str(champion.version))
        version = store.client.get_model_version(name, before)
        history.move(workspace, store, version, "rollback", reason, {})
    return [f"champion    version {before}", f"before      version {champion.version}"]


@contextmanager
def _registry(workspace: Workspace) -> Iterator[Store]:
    """Open the store for one that moves aliases; what a killed one left is settled first."""
    lock = durable.locked(workspace.state / "promotion.lock", "promotes")
    with lock, tracking.answering():
        store = tracking.connect(workspace)
        history.settle(workspace, store)
        yield store


def _decide(
    workspace: Workspace, store: Store, champion: ModelVersion, rows: Path | None
) -> PromotionDecision:
    """Compare the challenger of a model with its champion on labelled rows that neither has seen."""
    challenger = tracking.version_with(store.client, champion.name, CHALLENGER)
    if challenger is None:
        raise SimicError(
            f"{champion.name}: no version is the challenger; simic retrain or register makes one"
        )
    unseen = rows or _newest(workspace, challenger, champion)
    if not unseen.exists():
        raise SimicError(
            f"{unseen}: no such file; dvc checkout may bring it back, or name another, --on FILE"
        )
    models = list[NetworkModel]()
    with tempfile.TemporaryDirectory(prefix="simic-promote-") as scratch:
        # A copy: a retraining may replace the file meanwhile.
        copy = Path(shutil.copy(unseen, scratch))
        digest = durable.sha256(copy)
        if rows is None and digest != challenger.tags[NEWEST_TAG]:
            raise SimicError(
                f"{unseen}: not the rows that version {challenger.version} was not trained on; "
                "dvc checkout brings them back, or name others, --on FILE"
            )
        # A network knows the file that it was trained on too well.
        for version in (challenger, champion):
            if version.tags.get(DATA_TAG) == digest:
                raise SimicError(
                    f"{unseen}: version {version.version} was trained on it; name rows that it has not seen"
                )
            place = Path(scratch) / str(version.version)
            place.mkdir()
            folder = tracking.download(store.client, version, place)
            models.append(NetworkModel(folder, str(version.version)))
        difference, evidence = compare(models[0], models[1], copy)
    evidence["sha256"] = digest
    objections = policies.not_better(difference)
    return PromotionDecision(challenger, champion, difference, evidence, objections)


def _newest(workspace: Workspace, challenger: ModelVersion, champion: ModelVersion) -> Path:
    """Find the rows that the retraining of the challenger kept for this; the champion must not know them either."""
    newest = workspace.production_of(champion.name) / NEWEST
    # A network that was registered by hand has no such rows.
    if NEWEST_TAG not in challenger.tags:
        raise SimicError(
            f"version {challenger.version}: needs labelled rows that neither it nor the champion was trained on, "
            "--on FILE"
        )
    if champion.tags.get(ROWS_UNTIL_TAG, "") >= challenger.tags[NEWEST_FROM_TAG]:
        raise SimicError(
            f"version {champion.version}, the champion, was trained on rows of {newest}; retrain, or --on FILE"
        )
    return newest


def compare(
    challenger: NetworkModel, champion: NetworkModel, rows: Path
) -> tuple[Interval, dict[str, float | int | str]]:
    """Compare the answers of two networks to the same labelled rows, row by row.

    Where the rarest class has less than half the rows of the commonest, every class counts as much.

    Args:
        challenger: That may become champion.
        champion: The present one.
        rows: A table with the columns of both and the label.

    Returns:
        The paired difference of accuracies in points, above 0 where the challenger is better, and what it rests on.

    Raises:
        SimicError: The table cannot be read, or has too few rows.
    """
    # Both answer the same rows, those with a label, read as training read them.
    label = champion.terms.label
    try:
        table: Any = predict.read_table(rows, most_bytes())[0]
        if label in table:
            table = table[predict.as_text(table[label]).notna()]
        new, old = (
            model.saved.predict(table)["class"].to_numpy() for model in (challenger, champion)
        )
    except (OSError, ValueError) as error:
        raise SimicError(f"{rows.name}: cannot be read: {error}") from None
    if label not in table or len(table) < LEAST_ROWS:
        raise SimicError(
            f"{rows.name}: {len(table)} rows: must be {LEAST_ROWS} or more, with the column {label!r}"
        )
    # A right answer is worth 100 points, or what makes classes equal.
    classes = [*champion.terms.classes, *challenger.terms.classes]
    truth = request_rows.as_classes(table[label], classes).to_numpy(dtype=object)
    weights, measure = _weights(truth)
    scores = [weights * 100.0 * (answers == truth) for answers in (new, old)]
    evidence: dict[str, float | int | str] = {
        "rows": len(table),
        "no class": int((~np.isin(truth, classes)).sum()),
        "measure": measure,
        "new": round(float(scores[0].mean()), 2),
        "old": round(float(scores[1].mean()), 2),
    }
    return paired_difference(scores[0], scores[1]), evidence


def _weights(truth: NDArray[np.object_]) -> tuple[NDArray[np.float64], str]:
    """Weigh rows, 1 in the mean, such that classes count as much where they are uneven."""
    # In this order: its place among the classes for each row, and the rows of each class.
    _, places, counts = np.unique(truth, return_inverse=True, return_counts=True)
    if counts.min() >= UNEVEN * counts.max():
        return np.ones(len(truth)), "accuracy"
    weights = len(truth) / (len(counts) * counts[places])
    return weights, "balanced accuracy"
