"""Run `simic promote`: the challenger of the registry against its champion; `decide` alone is the rule of the alias."""

import tempfile
from pathlib import Path

from simic import durable
from simic.audit.findings import Verdict
from simic.data.batches import read_meta
from simic.errors import SimicError
from simic.evaluation.promotion import CHALLENGER, CHAMPION, Contest, Entrant, contest
from simic.evaluation.result import Frozen
from simic.params import Params
from simic.pipeline.mlflow_models import DATA_TAG
from simic.pipeline.mlflow_registry import Registry, named
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


def promote(params: Params, workspace: Workspace, run: str | None = None) -> Promotion:
    """Compare the policy of ``run``, else the challenger, with the champion; decide, move the aliases, and keep the
    decision with the version, its run and in the workspace. SimicError where the two cannot be compared.
    """
    registry = Registry(workspace, params.prepare.dataset)
    challenger, champion = registry.of_run(run) if run else registry.holder(CHALLENGER), registry.holder(CHAMPION)
    if challenger is None:
        raise SimicError(
            f"{registry.name}: no version is the challenger; the last finished run whose audit is not refuted is one: "
            "run simic run"
        )
    if champion is not None and challenger.version == champion.version:
        raise SimicError(f"{named(challenger)} is the champion already")
    entrants: list[Entrant] = []
    with tempfile.TemporaryDirectory(prefix="simic-promote-") as scratch:
        for alias, version in ((CHALLENGER, challenger), (CHAMPION, champion)):
            if version is not None:
                policy = registry.fetch(version, Path(scratch) / alias) / "policy"
                entrants.append(Entrant.load(f"{alias} ({named(version)})", policy, version.tags.get(DATA_TAG, "")))
        try:
            verdict = Verdict.from_json(registry.findings(challenger, Path(scratch)))
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
    tags = {
        "simic.promotion": "promoted" if promotion.promoted else "not promoted",
        "simic.promotion.reason": "; ".join(promotion.reasons),
        "simic.promotion.champion": promotion.champion or "none",
    }
    registry.decided(challenger, workspace.promotion, tags, promotion.promoted)
    return promotion


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
