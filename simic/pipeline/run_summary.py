"""Summarize the result of a run in a few lines: for the terminal, the states of Prefect, the description in MLflow."""

from dataclasses import dataclass

from simic.audit.findings import Summary, Verdict, read_verdict
from simic.evaluation import gym_evaluation, result
from simic.pipeline.paths import Workspace


@dataclass(frozen=True)
class RunSummary:
    """Say a run's result in words; ``alarming`` where nobody should use the policy as it is, ``passed`` where no grave
    finding speaks against it.
    """

    verdict: Summary
    headline: str  # in a few words
    run: str
    next: str
    alarming: bool
    passed: bool

    @property
    def sentences(self) -> dict[str, str]:
        """Give the four lines of the verdict, the run's name and what to do next."""
        return {**self.verdict.lines, "run": self.run, "next": self.next}

    @property
    def lines(self) -> list[str]:
        """Write each sentence behind its name."""
        return [f"{name:<8} {text}" for name, text in self.sentences.items()]


def of(workspace: Workspace) -> RunSummary:
    """Summarize the finished run of a workspace."""
    verdict = read_verdict(workspace.reports)
    counts = verdict.counts()
    # The headline of Prefect's state has room for a few words.
    grave = counts["critical"] + counts["high"]
    headline = f"{grave or 'no'} critical or high finding{'s' * (grave > 1)}"
    is_gym = result.schema_of(workspace.evaluation) == gym_evaluation.SCHEMA
    alarming = bool(verdict.unsound or counts["critical"])
    return RunSummary(
        verdict.summary,
        headline,
        verdict.run,
        _next(verdict, is_gym),
        alarming,
        not grave and not verdict.unsound,
    )


def _next(verdict: Verdict, is_gym: bool) -> str:
    """Say what a careful user does now."""
    # The gravest first: damaged files explain all other differences.
    layers = {finding.layer for finding in verdict.findings}
    if "X6" in verdict.unsound:
        return "do not use the numbers: simic doctor names the changed files; dvc checkout restores them"
    if "record" in layers:
        return (
            "do not use the numbers: they do not follow from the files; "
            "the report names the checks; repeat the stage"
        )
    if "replay" in layers:
        return "do not use the numbers: run simic audit again; other differences then mean that this machine errs"
    if verdict.counts()["critical"] or verdict.counts()["high"]:
        return "read the findings at the top of the report; each says what to change"
    # Nothing speaks against the policy any more: how to use it, share it and keep its record.
    use = "models/program runs without simic" if is_gym else "simic grow DATA uses the policy"
    return f"{use}; simic promote makes it champion; commit dvc.lock to keep the run"
