"""docs/metrics.md: every recorded number in one sentence, by the code that records it; run this module to print it."""

from simic.agent.metrics import explanations
from simic.audit.audit import checks
from simic.envs.rewards import MODES, TERMS


def page() -> str:
    """The whole page; a test compares it with the file."""
    parts = [
        "# Metrics",
        "",
        "Written by `python -m simic.audit.metrics_page > docs/metrics.md`; a test keeps the two equal.",
        "",
        "## Updates (`telemetry/updates.parquet`)",
        "",
        "`…_by_head` and `…_by_part` are one column for each head or part, joined by `/`.",
        "",
        *_table(("metric", "meaning"), [(f"`{name}`", sentence) for name, sentence in explanations().items()]),
        "",
        "## Reward components (`components/…` in `telemetry/steps.parquet`)",
        "",
        "They sum to the reward of the step (check P5). Accuracies are points, 0 to 100.",
        "",
        *_table(("component", "modes", "meaning"), [_component(name) for name in TERMS]),
        "",
        "## Audit checks",
        "",
        "`live` checks also run while training does and can stop it (`train.stop_on`).",
        "",
        *_table(
            ("id", "worst", "when", "question", "finding when", "source"),
            [
                (c.id, c.severity, "live" if c.live else "after", c.question, c.threshold, c.source)
                for c in sorted(checks(), key=lambda check: check.id)
            ],
        ),
    ]
    return "\n".join(parts) + "\n"


def _component(name: str) -> tuple[str, str, str]:
    modes = ", ".join(mode for mode, terms in MODES.items() if name in terms)
    document = TERMS[name].__doc__ or ""
    return f"`{name}`", modes, " ".join(document.strip().split("\n\n")[0].split())


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    print(page(), end="")
