"""Write the files of an audit: report.html, report.md, findings.json, audit_metrics.json, model card, figures;
equal bytes for equal runs, no network.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import ValidationError

from simic import durable
from simic.audit import audit, card, figures
from simic.audit.drawing import Panel
from simic.audit.findings import Status, Verdict, failing, percent
from simic.audit.provenance import Provenance
from simic.audit.record import RunRecord, Table
from simic.errors import AuditFailed, SimicError, as_markdown, printable
from simic.evaluation.endpoints import COMMON, ORACLE_TASK
from simic.evaluation.gym_evaluation import RANDOM
from simic.evaluation.intervals import CONFIDENCE, Interval
from simic.evaluation.page import GROUPS
from simic.evaluation.result import LEARNED, Evaluation
from simic.params import Params

UNNAMED = "not recorded"
SHORT_GROUPS = GROUPS | {
    "held_out": "known kinds",
    "held_out_kinds": "new kinds",
    "outside": "outside the suite",
}


def write_report(run: RunRecord, folder: Path) -> Verdict:
    """Audit a run and write its reports; AuditFailed afterwards where findings reach ``audit.fail_on``."""
    # The files come before the failure: who is stopped by a finding needs the report that explains it.
    name = run.provenance.origin.name if run.provenance else None
    verdict = audit.examine(run, name or UNNAMED)
    write(run, verdict, folder)
    grave = failing(verdict.findings, run.params.audit.fail_on)
    if grave:
        worst = f"{grave[0].severity}: {grave[0].check} {grave[0].title}: {grave[0].measured}"
        raise AuditFailed(
            f"audit.fail_on = {run.params.audit.fail_on!r}: {len(grave)} findings, worst {worst}; "
            f"see {folder / 'report.html'}"
        )
    return verdict


def write(run: RunRecord, verdict: Verdict, folder: Path) -> None:
    """Write all files into ``folder``, or none; SimicError where that fails.

    Args:
        run: the whole record.
        verdict: that of the run; it decides whether results are shown.
        folder: of the reports; figures of an earlier run are removed from it.
    """
    # A figure of results that are withheld would say what the text does not.
    panels = figures.panels_of(run, sound=not verdict.unsound)
    # Everything is rendered before the first file is replaced.
    files = {
        "report.html": html(run, verdict, panels),
        "report.md": markdown(run, verdict),
        "findings.json": verdict.to_json(),
        "audit_metrics.json": verdict.metrics(),
        card.FILE: card.model_card(run, verdict),
        **{f"figures/{panel.name}.svg": panel.document for panel in panels},
    }
    try:
        # Old figures go last: a failure may leave one too many, and never one too few.
        durable.replace_files({folder / name: text.encode() for name, text in files.items()})
        for stray in {*(folder / "figures").glob("*.svg")} - {
            folder / name for name in files
        }:  # of an earlier run
            stray.unlink()
    except OSError as error:
        raise SimicError(
            f"{folder}: cannot be written: {error.strerror}; earlier reports are kept"
        ) from None


def html(run: RunRecord, verdict: Verdict, panels: Sequence[Panel]) -> str:
    """Render the report as one page; its content security policy refuses scripts, network and foreign styles.

    Args:
        run: the whole record.
        verdict: that of the run.
        panels: the figures, found by their names in the template.
    """
    # The hash of the stylesheet is the only style that the policy of the page allows: rendered once, hashed, embedded.
    templates = _templates(_for_html)
    style = templates.get_template("report.css").render().strip()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    shown = {
        "style": Markup(style),
        "style_sha256": digest,
        "panels": {panel.name: panel for panel in panels},
    }
    return (
        templates.get_template("report.html").render(**_content(run, verdict), **shown).rstrip()
        + "\n"
    )


def markdown(run: RunRecord, verdict: Verdict) -> str:
    """Render the report as Markdown, without figures."""
    return (
        _templates(_for_markdown)
        .get_template("report.md")
        .render(**_content(run, verdict))
        .rstrip()
        + "\n"
    )


def _templates(finalize: Any) -> Environment:
    # A name that a template misspells raises an error; by default it would leave a blank in the report.
    environment = Environment(
        loader=PackageLoader("simic.audit"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "interval": interval,
        "count": count,
        "cell": cell,
        "label": lambda name: figures.policy_look(name)[0],
    }
    return environment


def _for_html(value: Any) -> Any:
    """Remove control characters from text; jinja escapes markup."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _for_markdown(value: Any) -> Any:
    """Escape Markdown in text."""
    # Markup was made by this module; all other text may come from a user's data or params.
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return as_markdown(value)


def _content(run: RunRecord, verdict: Verdict) -> dict[str, object]:
    """Gather what the templates show; results are withheld where the record does not hold."""
    # One switch for all results: the templates see None and cannot show a withheld number by accident.
    sound = not verdict.unsound
    evaluation = run.evaluation if sound else None
    nothing = (
        "The policy was not evaluated." if sound else "Withheld, since the record does not hold."
    )
    evaluated = evaluation.policies.keys() if evaluation else set[str]()
    return {
        "verdict": verdict,
        "about": _about(_sealed(run.provenance)),
        "is_gym": run.params.prepare.is_gym,
        "nothing": nothing,
        # Checks.
        "findings": verdict.findings,
        "unevaluated": verdict.with_status(Status.NOT_EVALUATED),
        "passed": [
            result for result in verdict.with_status(Status.PASS) if result.layer == "learning"
        ],
        "record": verdict.of_layer("record") + verdict.of_layer("replay"),
        "live_findings": _rows(run.live_findings),
        "validations": figures.validations(run),
        # Results.
        "outcome": _outcome(run, verdict),
        "evaluation": evaluation,
        "played": run.gym if sound else None,
        # Known policies in a fixed order, then a user's own by name: equal runs give equal bytes.
        "policies": [name for name in figures.POLICIES if name in evaluated]
        + sorted(evaluated - figures.POLICIES.keys()),
        "standings": evaluation.standings if evaluation else {},
        "source": run.headroom.source if run.headroom else "",
        "by_length": _by_length(evaluation) if evaluation else (),
        "cases": list(enumerate(evaluation.cases)) if evaluation else (),
        "confidence": percent(CONFIDENCE),
        "groups": GROUPS,
        "short_groups": SHORT_GROUPS,
        "provenance": provenance_rows(run),
    }


def _rows(table: Table) -> list[dict[str, object]]:
    columns = [values.tolist() for values in table.columns.values()]
    return [dict(zip(table.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _outcome(run: RunRecord, verdict: Verdict) -> str:
    """Say whether the learned policy is above the hand rule, or where there is none the common schedule, or random
    actions in a Gymnasium environment: ``above``, ``level``, ``below``; ``unknown`` where it did not play, ``withheld``
    where the record does not hold.
    """
    if verdict.unsound or (run.gym is None and run.evaluation is None):
        return "withheld"
    if run.gym is not None:
        over = next(
            (pair.difference for pair in run.gym.comparisons if pair.second == RANDOM), None
        )
    else:
        assert run.evaluation is not None  # the other kind of run
        learned = next(iter(run.evaluation.standings.values())).policies.get(LEARNED)
        over = learned and (learned.over_rule or learned.over_common)
    if over is None:
        return "unknown"
    # An interval that contains 0 is level, whatever the estimate: only the interval speaks.
    return "above" if over.low > 0 else "below" if over.high < 0 else "level"


def _by_length(evaluation: Evaluation) -> list[dict[str, object]]:
    """Place the learned policy beside the hand rule, by length of episodes and group, the shortest first."""
    # The usual length is one row among the others, so that all are read in one table.
    lengths = [(evaluation.episode_steps, evaluation.standings)]
    lengths += [(result.epochs, result.standings) for result in evaluation.others.values()]
    # A row for each group that the learned policy played.
    rows: list[dict[str, object]] = []
    for epochs, standings in sorted(lengths, key=lambda length: length[0]):
        for group, of_group in standings.items():
            names = {
                "learned": LEARNED,
                "rule": of_group.rule,
                "common": COMMON,
                "oracle": ORACLE_TASK,
            }
            scores = {column: of_group.policies.get(name or "") for column, name in names.items()}
            if scores["learned"] is not None:
                rows.append({"epochs": epochs, "group": group, "tasks": of_group.tasks, **scores})
    # With one length the table would repeat the one above it.
    return rows if len(lengths) > 1 else []


def interval(value: Interval | None, form: str = "{:.2f}", unit: float = 1.0) -> Markup:
    """Format an interval: ``75.10 [74.20, 76.00]``, multiplied by ``unit``.

    Args:
        value: estimate and both ends; None, where there is none, is a dash.
        form: how each of the three numbers is formatted.
        unit: what they are multiplied by first: 100 makes percent of shares.
    """
    if value is None:
        return Markup("–")
    estimate, low, high = (
        form.format(unit * number) for number in (value.estimate, value.low, value.high)
    )
    return Markup(f"{estimate} [{low}, {high}]")


def count(value: float) -> str:
    """Format a count with three significant digits and a unit prefix: 1.23 M."""
    # Thousands begin at 10 k: a count of four digits is exact and as short.
    for limit, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (limit if prefix != ' k' else 1e3):.3g}{prefix}"
    return f"{value:,.0f}"


def cell(value: object) -> str:
    """Format one value of an evidence table, or the parameters of a task, which may be nested."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {cell(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(cell, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- provenance ------------------------------------------------------------------------------------------------------


def _sealed(provenance: Provenance | None) -> Params | None:
    """Read the params that the stages sealed; None where they are not valid."""
    # Keys with a dot are single values of a section; only whole sections can be read as params.
    parts = (
        {}
        if provenance is None
        else {key: value for key, value in provenance.params.items() if "." not in key}
    )
    try:
        return Params.model_validate(parts) if parts else None
    except ValidationError:  # a seal that was edited, which X6 says
        return None


def _about(params: Params | None) -> str:
    """Name task, host, reward and seed in one line."""
    if params is None:
        return "params not recorded"
    prepare = params.prepare
    train = params.train
    # Hosts, suites and rewards are of growth alone.
    if prepare.is_gym:
        return f"environment {prepare.gym.id} · rng_seed {params.rng_seed}"
    task = f"suite {prepare.suite.name}" if prepare.task == "suite" else f"task {prepare.task}"
    host = f"{train.host.family}/{train.host.preset}"
    return f"{task} · host {host} · reward {train.reward.mode} · rng_seed {params.rng_seed}"


def provenance_rows(run: RunRecord) -> list[tuple[str, str]]:
    """List the provenance by name; "not recorded" where unknown."""
    provenance = run.provenance
    if provenance is None:
        return []
    # Start and code, then hashes, then the machine.
    origin = provenance.origin
    rows: dict[str, object] = {
        "training started": origin.started and f"{origin.started:%Y-%m-%d %H:%M:%S} UTC",
        "command": origin.command,
        "resumes": origin.resumes,
        "code revision": origin.code_revision,
        "changed files": ", ".join(origin.changed_files) or "none",
        "changed since": ", ".join(provenance.code_changed_since) or "nothing",
        "headroom": (run.headroom and run.headroom.source) or "measured in this run",
        **{
            f"code and extensions of {stage} sha256": digest
            for stage, digest in provenance.code_sha256.items()
        },
        "params sha256": provenance.params_sha256,
        "data sha256": provenance.data_sha256,
        **{
            f"checkpoint {name} sha256": digest
            for name, digest in provenance.checkpoint_sha256.items()
        },
        "hash chain of the training state, last link": provenance.state_chain,
        **provenance.versions,
        **provenance.hardware,
    }
    return [(name, UNNAMED if value is None else str(value)) for name, value in rows.items()]
