"""Summarize the result of a run in a few lines: for the terminal, the states of Prefect, the description in MLflow."""

from dataclasses import dataclass

from simic.audit.findings import Verdict, read_verdict
from simic.evaluation import endpoints, gym, result
from simic.pipeline.paths import Workspace
from simic.pipeline.stages import unchanged


@dataclass(frozen=True)
class RunSummary:
    """Say a run's result in words; ``alarming`` where nobody should use the policy as it is."""

    score: str
    gap: str
    verdict: str
    run: str
    next: str
    alarming: bool
    of_gym: bool = False  # who is compared are others, and no gap

    @property
    def said(self) -> dict[str, str]:
        compared = "against" if self.of_gym else "gap"
        words = {"score": self.score, compared: self.gap, "verdict": self.verdict}
        return {**words, "run": self.run, "next": self.next}

    @property
    def lines(self) -> list[str]:
        return [f"{name:<8} {text}" for name, text in self.said.items()]


def of(workspace: Workspace) -> RunSummary:
    """Summarize the finished run of a workspace."""
    verdict = read_verdict(workspace.reports)
    counts = verdict.counts()
    grave = counts["critical"] + counts["high"]
    named = f"{grave or 'no'} critical or high finding{'s' * (grave > 1)}"
    of_gym = result.schema_of(workspace.evaluation) == gym.SCHEMA
    if verdict.refuted:
        score = gap = f"withheld: the record does not hold ({', '.join(verdict.refuted)})"
    else:
        path = unchanged(workspace, workspace.evaluation)
        score, gap = gym.said(gym.read(path)) if of_gym else endpoints.said(result.read(path))
    return RunSummary(
        score,
        gap,
        named,
        verdict.run,
        _next(verdict, of_gym),
        bool(verdict.refuted or counts["critical"]),
        of_gym,
    )


def _next(verdict: Verdict, of_gym: bool) -> str:
    """Say what a careful user does now."""
    if verdict.refuted:
        return "simic doctor says what is damaged; do not use the numbers before this is settled"
    if verdict.counts()["critical"] or verdict.counts()["high"]:
        return "read the findings at the top of the report; each says what to change"
    use = "models/program runs without simic" if of_gym else "simic grow DATA uses the policy"
    return f"{use}; simic promote makes it champion; commit dvc.lock to keep the run"
