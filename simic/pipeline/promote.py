"""Run `simic promote`: the challenger of the registry against its champion; `decide` alone is the rule of the alias."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from simic import durable
from simic.audit.findings import Verdict
from simic.data.batches import read_meta
from simic.errors import SimicError
from simic.evaluation.promotion import CHALLENGER, CHAMPION, Contest, Entrant, contest
from simic.evaluation.result import Frozen
from simic.params import Params
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.registry import GYM
from simic.telemetry.rows import Severity


class Promotion(Frozen):
    """Keep what was compared and what follows from it: reports/promotion.json."""

    challenger: str
    champion: str | None  # null: there was none
    task: str
    contest: Contest
    findings: dict[Severity, int]  # of the challenger's audit, by severity
    refuted: tuple[str, ...]  # checks that withhold its verdict
    promoted: bool
    reasons: tuple[str, ...]

    def lines(self) -> list[str]:
        played, name = self.contest, "version "
        what = f"hosts each, {played.tasks} validation task{'s' * (played.tasks > 1)}"
        what = "episodes each" if self.task == GYM else what
        findings = ", ".join(f"{count} {severity}" for severity, count in self.findings.items() if count) or "none"
        return [
            f"challenger  {name}{self.challenger}",
            f"champion    {f'{name}{self.champion}' if self.champion else 'none yet: the floors stand in for it'}",
            f"played      {played.hosts} fresh {what}",
            *(
                f"difference  {each.difference.estimate:+.2f} points [{each.difference.low:+.2f}, "
                f"{each.difference.high:+.2f}] over {each.second}, {each.pairs} pairs"
                for each in played.compared
            ),
            f"findings    {findings}",
            f"decision    {'promoted' if self.promoted else 'not promoted'}: {'; '.join(self.reasons)}",
        ]


@contextmanager
def _answering() -> Iterator[None]:
    """Raise SimicError where MLflow does not answer."""
    try:
        yield
    except tracking.TROUBLE as error:
        raise SimicError(f"MLflow does not answer, try again when it does: {tracking.describe(error)}") from None


def promote(params: Params, workspace: Workspace, run: str | None = None) -> Promotion:
    """Compare the policy of ``run``, else the challenger, with the champion; decide, move the aliases, and keep the
    decision with the version, its run and in the workspace. SimicError where the two cannot be compared, or MLflow
    cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="simic-promote-") as scratch:
        with _answering():
            client, experiment_id = tracking.connect(workspace)
            name = tracking.registered_name(params.prepare.dataset)
            challenger, champion = _contestants(client, experiment_id, name, run)
            versions = {CHALLENGER: challenger, **({} if champion is None else {CHAMPION: champion})}
            fetched = {
                alias: tracking.download_policy(workspace, version, Path(scratch) / alias)
                for alias, version in versions.items()
            }
            audited = Path(client.download_artifacts(challenger.run_id or "", "findings.json", scratch)).read_bytes()
        entrants = [
            Entrant.load(f"{alias} ({named(version)})", fetched[alias], version.tags.get(tracking.DATA_TAG, ""))
            for alias, version in versions.items()
        ]
    try:
        verdict = Verdict.from_json(audited)
    except ValueError:
        raise SimicError(
            f"findings.json of {CHALLENGER} ({named(challenger)}): damaged, or of "
            "another version of simic; run simic audit again, which sends it anew"
        ) from None
    played = contest(params, workspace.prepared, entrants[0], entrants[1] if champion is not None else None)
    reasons = decide(played, verdict)
    promotion = Promotion(
        challenger=str(challenger.version),
        champion=str(champion.version) if champion is not None else None,
        task=read_meta(workspace.prepared).task,
        contest=played,
        findings=dict(verdict.counts()),
        refuted=verdict.refuted,
        promoted=not reasons,
        reasons=tuple(reasons) or ("every difference is above 0, and no finding is critical or high",),
    )
    durable.replace_file(workspace.promotion, promotion.to_json().encode())
    with _answering():
        _tell(client, challenger, promotion, workspace.promotion)
    return promotion


def named(version: ModelVersion) -> str:
    """Return how messages call a version."""
    return f"version {version.version} of {version.name}"


def _contestants(
    client: MlflowClient, experiment_id: str, name: str, run: str | None
) -> tuple[ModelVersion, ModelVersion | None]:
    """Return the challenger, or the version of the run with that name or id, and the champion, if there is one."""
    champion = tracking.version_with(client, name, CHAMPION)
    if run is not None:
        challenger = _version_of(client, experiment_id, name, run)
    else:
        challenger = tracking.version_with(client, name, CHALLENGER)
    if challenger is None:
        raise SimicError(
            f"{name}: no version is the challenger; the last finished run whose audit is not refuted is one: "
            "run simic run"
        )
    if champion is not None and challenger.version == champion.version:
        raise SimicError(f"{named(challenger)} is the champion already")
    return challenger, champion


def _version_of(client: MlflowClient, experiment_id: str, name: str, run: str) -> ModelVersion:
    """Return the version of a run; SimicError naming the newest runs that have one."""
    versions = {each.run_id: each for each in client.search_model_versions(f"name = '{name}'")}
    found = [each.info for each in client.search_runs([experiment_id]) if each.info.run_id in versions]
    for each in found:
        if run in (each.run_name, each.run_id):
            return versions[each.run_id]
    known = ", ".join(each.run_name or each.run_id for each in found[:5])
    raise SimicError(f"run {run!r}: has no version of {name}; there are {known or 'none: run simic run'}")


def _tell(client: MlflowClient, challenger: ModelVersion, promotion: Promotion, file: Path) -> None:
    """Keep the decision with the version and its run. A champion is a challenger no more."""
    name, number = challenger.name, str(challenger.version)
    tags = {
        "simic.promotion": "promoted" if promotion.promoted else "not promoted",
        "simic.promotion.reason": "; ".join(promotion.reasons),
        "simic.promotion.champion": promotion.champion or "none",
    }
    for key, value in tags.items():
        client.set_model_version_tag(name, number, key, value)
    client.log_artifact(challenger.run_id or "", str(file))
    if promotion.promoted:
        tracking.give_alias(client, challenger, CHAMPION)


def decide(played: Contest, verdict: Verdict) -> list[str]:
    """Return the reasons why the challenger is not promoted; none where it is."""
    reasons = [
        f"the interval over {each.second} is not above 0 (its lower end is {each.difference.low:+.2f})"
        for each in played.compared
        if each.difference.low <= 0
    ]
    if verdict.refuted:
        reasons.append(f"its verdict is withheld ({', '.join(verdict.refuted)})")
    grave = [finding.check for finding in verdict.findings if finding.severity in ("critical", "high")]
    if grave:
        reasons.append(f"its audit has critical or high findings ({', '.join(grave)})")
    return reasons
