"""Decide whether the policy of a run is better than MLflow's champion, for `simic promote`."""

import simic.pipeline.mlflow_settings  # noqa: F401 - before mlflow  # isort: skip
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from simic.audit.findings import Verdict
from simic.envs.rewards import score
from simic.errors import SimicError
from simic.evaluation import gym_evaluation, result
from simic.evaluation.gym_evaluation import GymEvaluation
from simic.evaluation.intervals import Interval, Values, paired_difference, rows_by_task
from simic.evaluation.result import LEARNED, Evaluation
from simic.params import Params
from simic.pipeline import tracking
from simic.pipeline.tracking import CHALLENGER, CHAMPION, Store

# What two evaluations must share, so that they met the same hosts on the same tasks.
SHARED = ("data_sha256", "rng_seed", "eval_seeds", "rows", "episode_steps", "host")


@dataclass(frozen=True)
class PromotionDecision:
    """Hold a challenger beside the champion, and what speaks against its promotion."""

    challenger: ModelVersion
    champion: ModelVersion | None
    # In points, or returns; above 0 where the challenger is better.
    difference: Interval | None
    # What the difference was measured on.
    evidence: Mapping[str, float | int | str]
    objections: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """Write it for a terminal."""
        champion = "none yet" if self.champion is None else f"version {self.champion.version}"
        lines = [f"challenger  version {self.challenger.version}", f"champion    {champion}"]
        if self.difference is not None:
            lines.append(f"difference  {self.in_words}")
        lines += [f"{name:<11} {value}" for name, value in self.evidence.items()]
        against = "; ".join(self.objections)
        return [*lines, f"decision    {f'not promoted: {against}' if against else 'promoted'}"]

    @property
    def in_words(self) -> str:
        """Write the difference with its interval."""
        if self.difference is None:
            return "the first"
        interval = self.difference
        return f"{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def not_better(difference: Interval) -> tuple[str, ...]:
    """Say what speaks against a challenger with this difference to the champion; nothing where it is better."""
    if difference.low > 0:
        return ()
    return (
        f"the interval over the champion is not above 0 (its lower end is {difference.low:+.2f})",
    )


def decide(params: Params, store: Store, run: str | None = None) -> PromotionDecision:
    """Compare the policy of a run with the champion by their recorded evaluations; no alias is moved.

    Args:
        params: those of the project; their price is that of both policies.
        store: with the registry.
        run: name or id of an MLflow run; None: the run of the version with the alias ``challenger``.

    Raises:
        SimicError: there is no such version, or the two cannot be compared.
    """
    # Who competes.
    client, experiment_id = store
    name = tracking.registered_name(params.prepare.dataset)
    champion = tracking.version_with(client, name, CHAMPION)
    challenger = find_challenger(client, experiment_id, name, run)
    refuse_champion(challenger, champion)
    # What speaks against the challenger: its audit, then the champion.
    objections = tuple(audit_reasons(client, challenger))
    difference = None
    if champion is not None:
        difference = compare(params, client, challenger, champion)
        objections += not_better(difference)
    return PromotionDecision(challenger, champion, difference, {}, objections)


def refuse_champion(challenger: ModelVersion, champion: ModelVersion | None) -> None:
    """Raise SimicError where the challenger is the champion already."""
    if champion is not None and champion.version == challenger.version:
        raise SimicError(
            f"version {challenger.version} of {challenger.name} is the champion already"
        )


def find_challenger(
    client: MlflowClient, experiment_id: str, name: str, run: str | None
) -> ModelVersion:
    """Find the version of a run by its name or id, or the one with the alias.

    Args:
        client: Of the store.
        experiment_id: Of this project, in which runs are looked for.
        name: Of the registered model.
        run: Name or id of an MLflow run; None: the version with the alias ``challenger``.

    Raises:
        SimicError: There is none.
    """
    # Without a name the alias decides: an audit that refutes the record has taken it away.
    if run is None:
        challenger = tracking.version_with(client, name, CHALLENGER)
        if challenger is None:
            raise SimicError(
                f"{name}: no version is the challenger; a finished run with a sound record is: simic run"
            )
        return challenger
    # Runs may be named as the terminal named them; of versions MLflow knows the id alone.
    versions = {
        version.run_id: version for version in client.search_model_versions(f"name = '{name}'")
    }
    infos = [
        found.info for found in client.search_runs([experiment_id]) if found.info.run_id in versions
    ]
    # The newest first; runs have the times of their trainings, so versions tell.
    infos.sort(key=lambda info: int(versions[info.run_id].version), reverse=True)
    for info in infos:
        if run in (info.run_name, info.run_id):
            return versions[info.run_id]
    names = ", ".join(info.run_name or info.run_id for info in infos[:5])
    raise SimicError(
        f"run {run!r}: has no version of {name}; there are {names or 'none: run simic run'}"
    )


def audit_reasons(client: MlflowClient, version: ModelVersion) -> list[str]:
    """Say what the audit of a version's run has against it."""
    with tempfile.TemporaryDirectory(prefix="simic-promote-") as folder:
        # The findings that were logged with the run: the workspace may have another run by now.
        path = _download(client, version, "findings.json", folder)
        try:
            verdict = Verdict.from_json(path.read_bytes())
        except ValueError:
            raise SimicError(
                f"findings.json of version {version.version}: damaged, or of another version of simic; "
                "run simic audit again"
            ) from None
    # A result that is withheld counts for nothing; grave findings need a human.
    reasons = [f"its result is withheld ({', '.join(verdict.unsound)})"] if verdict.unsound else []
    grave = [
        finding.check for finding in verdict.findings if finding.severity in ("critical", "high")
    ]
    return [
        *reasons,
        *([f"its audit has critical or high findings ({', '.join(grave)})"] if grave else []),
    ]


def compare(
    params: Params, client: MlflowClient, challenger: ModelVersion, champion: ModelVersion
) -> Interval:
    """Compare the recorded evaluations of two versions on the same held-out tasks, task by task.

    Only validation splits decide: what is chosen by a test split can no longer be reported with it. In a Gymnasium
    environment returns of the same episodes are compared.

    Args:
        params: Those of the project; their price is that of both policies.
        client: Of the store, from which both evaluations are downloaded.
        challenger: The version that may become champion.
        champion: The present one.

    Returns:
        The paired difference of scores in points, or of returns, above 0 where the challenger is better.

    Raises:
        SimicError: The two were not evaluated alike.
    """
    first = recorded_evaluation(params, client, challenger)
    second = recorded_evaluation(params, client, champion)
    # Otherwise the difference would be one of tasks and not of policies.
    other = [
        field for field in SHARED if getattr(first, field, None) != getattr(second, field, None)
    ]
    if other:
        raise SimicError(
            f"version {challenger.version} was evaluated with another {', '.join(other)} than the champion, version "
            f"{champion.version}: run simic run with the champion's data and params, or take its alias away in MLflow"
        )
    return paired_difference(scores(first, params), scores(second, params))


def recorded_evaluation(
    params: Params, client: MlflowClient, version: ModelVersion
) -> Evaluation | GymEvaluation:
    """Read the evaluation that the run of a version logged.

    Args:
        params: Say which kind of task it is.
        client: Of the store.
        version: Of a registered model.

    Raises:
        SimicError: It has none of the learned policy.
    """
    # From the run and not the workspace, which may hold the results of another run by now.
    with tempfile.TemporaryDirectory(prefix="simic-promote-") as folder:
        path = _download(client, version, "evaluation.json", folder)
        evaluation = gym_evaluation.read(path) if params.prepare.is_gym else result.read(path)
    if LEARNED not in evaluation.policies:
        raise SimicError(
            f"version {version.version}: policy {LEARNED!r} was not evaluated: name it in evaluate.policies"
        )
    return evaluation


def _download(client: MlflowClient, version: ModelVersion, file: str, folder: str) -> Path:
    """Download a file that the run of a version logged; SimicError where it is not where MLflow has noted it."""
    run_id = version.run_id or ""
    try:
        return Path(client.download_artifacts(run_id, file, folder))
    except (MlflowException, OSError) as error:
        # Raises by itself where it is MLflow that does not answer.
        place = client.get_run(run_id).info.artifact_uri
        raise SimicError(
            f"{file} of version {version.version} is not at {place}: {tracking.describe(error)}. "
            "Where the project was moved, move it back, or take the alias of that version away in MLflow"
        ) from None


def scores(evaluation: Evaluation | GymEvaluation, params: Params) -> Values:
    """Score the learned policy on each held-out task ``[T]``, in points, or return it of each episode."""
    # Episodes are paired by seed, hosts by task: the interval needs independent pairs.
    if isinstance(evaluation, GymEvaluation):
        return np.array(evaluation.policies[LEARNED].per_seed.returns)
    hosts = evaluation.policies[LEARNED].per_seed
    bare = evaluation.host.params
    # The price of the present params for both: a policy may have been trained at another one.
    points = score(
        np.array(hosts.val_accuracy_pct), np.array(hosts.params) - bare, bare, params.train.price
    )
    return np.array(
        [points[rows].mean() for rows in rows_by_task(dict(enumerate(evaluation.rows)))]
    )
