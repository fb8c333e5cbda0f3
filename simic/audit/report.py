"""report.html, report.md, findings.json: one file each, no network, the same bytes for the same run."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from simic import durable
from simic.audit import audit, card, drawing, figures
from simic.audit.findings import PROOF, Result, Status, Verdict, failing, percent
from simic.audit.record import RunRecord
from simic.errors import SimicError
from simic.evaluation import endpoints
from simic.evaluation.endpoints import COMMON, ORACLE_TASK
from simic.evaluation.page import GROUPS
from simic.evaluation.result import LEARNED, Case, Evaluation, Importance, PolicyComparison
from simic.evaluation.statistics import CONFIDENCE, Interval
from simic.growth.life.vocabulary import Action
from simic.params import PolicyName

MAX_BYTES = 5_000_000
FLOORS = ("static", "random_legal", "heuristic", "fixed_schedule")


@dataclass(frozen=True)
class Panel:
    """One figure, drawn and in words."""

    name: str
    title: str
    description: str
    rendered: str

    @property
    def inline(self) -> Markup:
        """For the page."""
        return Markup(drawing.svg_element(self.rendered, self.name, self.title, self.description))

    @property
    def document(self) -> str:
        """For a file."""
        return drawing.svg_file(self.rendered)


def write_report(run: RunRecord, folder: Path) -> Verdict:
    """Audits a run and writes its reports; SimicError afterwards where findings reach ``audit.fail_on``."""
    trained = run.provenance.params_sha256 if run.provenance else None
    verdict = audit.examine(run, (trained or "unknown")[:12])
    write(run, verdict, folder)
    grave = failing(verdict.results, run.params.audit.fail_on)
    if grave:
        raise SimicError(
            f"audit.fail_on = {run.params.audit.fail_on!r}: {len(grave)} findings, worst {worst(grave)}; "
            f"see {folder / 'report.html'}"
        )
    return verdict


def write(run: RunRecord, verdict: Verdict, folder: Path) -> None:
    """Writes reports, model card, certificate and ``figures/*.svg`` into ``folder``, all or none; SimicError where that
    fails.
    """
    panels = panels_of(run)
    files = {
        "report.html": html(run, verdict, panels),
        "report.md": markdown(run, verdict),
        "findings.json": verdict.to_json(),
        card.FILE: card.model_card(run, verdict),
        **{f"figures/{panel.name}.svg": panel.document for panel in panels},
    }
    if len(files["report.html"].encode()) > MAX_BYTES:
        raise SimicError(f"report.html: {len(files['report.html'].encode())} bytes; allowed are {MAX_BYTES}")
    if run.certificate is not None:
        files["certificate.json"] = run.certificate.to_json()
    try:
        durable.replace_files({folder / name: text.encode() for name, text in files.items()})
        for stray in {*(folder / "figures").glob("*.svg")} - {folder / name for name in files}:  # of an earlier run
            stray.unlink()
    except OSError as error:
        raise SimicError(f"{error.filename}: cannot be written: {error.strerror}; earlier reports are kept") from None


def html(run: RunRecord, verdict: Verdict, panels: Sequence[Panel]) -> str:
    """The report as one page; scripts, network and foreign styles are refused by its content security policy."""
    style = _templates().get_template("report.css").render().strip()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = (
        _templates()
        .get_template("report.html")
        .render(**_content(run, verdict), style=Markup(style), style_sha256=digest, panels={p.name: p for p in panels})
    )
    return page.rstrip() + "\n"


def markdown(run: RunRecord, verdict: Verdict) -> str:
    """The same without figures."""
    return _templates().get_template("report.md").render(**_content(run, verdict)).rstrip() + "\n"


def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("simic.audit"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"interval": interval, "count": count, "cell": cell}
    return environment


def _content(run: RunRecord, verdict: Verdict) -> dict[str, object]:
    evaluation = run.evaluation
    return {
        "run": run,
        "verdict": verdict,
        "refuted": verdict.refuted,
        "proof": [result for layer in PROOF for result in verdict.results if result.layer == layer],
        "sound": not any(verdict.counts()[severity] for severity in ("critical", "high")),
        "lines": lines(run, verdict),
        "findings": verdict.findings,
        "told": _told(run),
        "unevaluated": verdict.with_status(Status.NOT_EVALUATED),
        "passed": [result for result in verdict.with_status(Status.PASS) if result.layer not in PROOF],
        "evaluation": evaluation,
        "policies": _policies(evaluation) if evaluation else (),
        "label": _label,
        "confidence": percent(CONFIDENCE),
        "standings": evaluation.standings if evaluation and not verdict.refuted else {},
        "groups": GROUPS,
        "importance": _by_importance(evaluation) if evaluation else (),
        "cases": enumerate(evaluation.cases) if evaluation else (),
        "provenance": provenance_rows(run),
    }


def _told(run: RunRecord) -> list[tuple[int, str, str, str]]:
    """What was found while it trained: iterations done, severity, check, message."""
    columns = (
        [run.told.column(name).tolist() for name in ("iteration", "severity", "check", "message")]
        if len(run.told)
        else []
    )
    return [(iteration + 1, *rest) for iteration, *rest in zip(*columns, strict=True)]


def _policies(evaluation: Evaluation) -> list[str]:
    known = [name for name in figures.POLICIES if name in evaluation.policies]
    return known + sorted(evaluation.policies.keys() - set(known))


def _by_importance(evaluation: Evaluation) -> list[tuple[str, Importance]]:
    """The group that matters most first."""
    return sorted(evaluation.importance.items(), key=lambda item: -item[1].lost.estimate)


def _label(policy: str) -> str:
    return figures.policy_look(policy)[0]


def interval(value: Interval | None, form: str = "{:.2f}") -> str:
    """``75.10 [74.20, 76.00]``."""
    if value is None:
        return "–"
    return f"{form.format(value.estimate)} [{form.format(value.low)}, {form.format(value.high)}]"


def count(value: float) -> str:
    """Three significant digits with a unit prefix: 1.23 M."""
    for limit, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (limit if prefix != ' k' else 1e3):.3g}{prefix}"
    return f"{value:,.0f}"


def cell(value: float | int | str) -> str:
    """One value of an evidence table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- the verdict in five lines ---------------------------------------------------------------------------------------


def lines(run: RunRecord, verdict: Verdict) -> tuple[str, ...]:
    """What was found, what was reached, against whom, how training went, what the claim rests on."""
    reached = _withheld(verdict) if verdict.refuted else _reached(run.evaluation)
    return (_found(verdict), *reached, _trained(run), f"{_rests_on(run.evaluation)} {_proven(verdict)}")


def _withheld(verdict: Verdict) -> tuple[str, str]:
    return (
        f"Accuracy: withheld, since the record does not hold ({', '.join(verdict.refuted)}).",
        "Comparison: withheld.",
    )


def _proven(verdict: Verdict) -> str:
    held = sum(result.layer in PROOF and result.status is Status.PASS for result in verdict.results)
    return f"Proof: {held} checks of the record hold; {'certified' if verdict.certified else 'not certified'}."


def _found(verdict: Verdict) -> str:
    grave = [f"{number} {severity}" for severity, number in verdict.counts().items() if number]
    passed = len(verdict.with_status(Status.PASS))
    unknown = len(verdict.with_status(Status.NOT_EVALUATED))
    found = ", ".join(grave) if grave else "none"
    unseen = f", {len(verdict.unseen)} of them critical ({', '.join(verdict.unseen)})" if verdict.unseen else ""
    return f"Findings: {found}. {passed} checks passed, {unknown} could not be evaluated{unseen}."


def _reached(evaluation: Evaluation | None) -> tuple[str, str]:
    if evaluation is None or LEARNED not in evaluation.policies:
        return ("Accuracy: the trained policy was not evaluated.", "Comparison: none.")
    policy = evaluation.policies[LEARNED]
    reached = (
        f"Accuracy: {interval(policy.test_accuracy_pct)} points on the test split with {policy.params:,.0f} "
        f"parameters, {policy.growth_ratio:.2f} times as many as the bare host."
    )
    others = [c for c in evaluation.comparisons if c.second not in get_args(PolicyName)]
    if not others:
        return reached, "Comparison: no baseline was evaluated."
    reached = f"{_closed(evaluation)} {reached}"
    hardest = min(others, key=lambda comparison: comparison.difference_pct.estimate)
    static = evaluation.comparison(LEARNED, "static")
    said = [_against(static)] if static else []
    if static is None or hardest.second != "static":
        said.append(f"strongest baseline: {_against(hardest)}")
    return reached, "Comparison: " + "; ".join(said) + "."


def _closed(evaluation: Evaluation) -> str:
    """The primary endpoint in words."""
    score, gap = endpoints.said(evaluation)
    return f"Gap: {gap}. Score: {score}."


def _against(comparison: PolicyComparison) -> str:
    d = comparison.difference_pct
    meaning = "better" if d.low > 0 else "worse" if d.high < 0 else "no difference shown"
    return f"{d.estimate:+.2f} points [{d.low:+.2f}, {d.high:+.2f}] against {_label(comparison.second)}, {meaning}"


def _trained(run: RunRecord) -> str:
    if not len(run.updates):
        return "Training: no update is recorded."
    steps = f", {int(run.updates.column('env_steps')[-1]):,} environment steps" if "env_steps" in run.updates else ""
    accuracy = ""
    if len(run.episodes):
        mean = np.nanmean(run.episodes.column("committed_accuracy"), axis=1)
        accuracy = f"; committed validation accuracy {mean[0]:.1f} in the first iteration, {mean[-1]:.1f} in the last"
    return f"Training: {len(run.updates)} updates{steps}{accuracy}."


def _rests_on(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "Evidence: no evaluation, so nothing can be claimed."
    return (
        f"Evidence: {evaluation.eval_seeds} paired evaluation seeds of one training run. Claims concern this "
        f"checkpoint, not training with other rng seeds.{_cost(evaluation)}"
    )


def _cost(evaluation: Evaluation) -> str:
    """The controller's own training is part of what a controlled training costs."""
    trainings = evaluation.controller_trainings
    return f" The controller was trained by {trainings:,} host trainings." if trainings is not None else ""


def provenance_rows(run: RunRecord) -> list[tuple[str, str]]:
    """Name and value; "not recorded" where unknown."""
    found = run.provenance
    if found is None:
        return []
    origin = found.origin
    dirty = {True: "with uncommitted changes", False: "clean", None: "state not recorded"}[origin.code_dirty]
    rows: list[tuple[str, object]] = [
        ("params sha256", found.params_sha256),
        ("data sha256", found.data_sha256),
        ("dvc.lock sha256", found.lock_sha256),
        *((f"checkpoint {name} sha256", digest) for name, digest in found.checkpoint_sha256.items()),
        ("hash chain of the training state, last link", found.state_chain),
        ("code revision", f"{origin.code_revision}, {dirty}" if origin.code_revision else None),
        ("resumes", origin.resumes),
        *((name, version) for name, version in found.versions.items()),
        *found.hardware.items(),
    ]
    return [(name, "not recorded" if value is None else str(value)) for name, value in rows]


# --- figures ---------------------------------------------------------------------------------------------------------


def panels_of(run: RunRecord) -> list[Panel]:
    """Every figure that this run has data for."""
    makers = (_gap, _importance, _learning, _health, _entropy, _rewards, _forest, _pareto)
    return [*(panel for panel in (make(run) for make in makers) if panel is not None), *_growth(run)]


def _panel(name: str, title: str, description: str, figure: Figure) -> Panel:
    return Panel(name, title, description, drawing.render(figure))


def _gap(run: RunRecord) -> Panel | None:
    if run.evaluation is None or LEARNED not in run.evaluation.policies:
        return None
    standings = run.evaluation.standings
    said = [
        f"{kind}: common {scores[COMMON]:.1f}, learned {scores[LEARNED]:.1f}, oracle {scores[ORACLE_TASK]:.1f}"
        for found in standings.values()
        for kind, scores in found.by_kind.items()
    ]
    return _panel(
        "gap", "How much of the gap is closed, by kind of task", "; ".join(said) + ".", figures.gap(standings)
    )


def _learning(run: RunRecord) -> Panel | None:
    if not len(run.episodes):
        return None
    iterations = run.episodes.column("iteration").astype(float)
    committed = run.episodes.column("committed_accuracy")
    policies = run.evaluation.policies if run.evaluation else {}
    floors = {name: policies[name].val_accuracy_pct for name in FLOORS if name in policies}
    mean = np.nanmean(committed, axis=1)
    levels = ", ".join(f"{_label(name)} {value:.1f}" for name, value in floors.items())
    description = (
        f"Mean over hosts from {mean[0]:.1f} in the first to {mean[-1]:.1f} points in the last iteration, best "
        f"{mean.max():.1f}; dark band: middle half of the hosts, light band: all. Lines: {levels or 'no baselines'}."
    )
    title = "Committed validation accuracy per iteration"
    return _panel("learning", title, description, figures.learning(iterations, committed, floors))


def _health(run: RunRecord) -> Panel | None:
    names = ("approx_kl", "explained_variance", "clip_fraction", "grad_norm")
    series = {name: run.updates.column(name) for name in names if name in run.updates}
    if not series:
        return None
    iterations = run.updates.column("iteration").astype(float)
    last = ", ".join(f"{name} {values[-1]:.3g}" for name, values in series.items())
    figure = figures.health(iterations, series, run.params.train.ppo.target_kl)
    return _panel("health", "Health of the updates", f"In the last update: {last}.", figure)


def _entropy(run: RunRecord) -> Panel | None:
    heads = run.updates.below("entropy_by_head")
    if not heads:
        return None
    order = {name: index for index, name in enumerate(Action._fields)}
    heads = {name: heads[name] for name in sorted(heads, key=lambda h: (order.get(h, len(order)), h))}
    said = [(name, values[np.isfinite(values)]) for name, values in heads.items()]
    last = ", ".join(f"{name} {values[-1]:.2f}" if values.size else f"{name} not measured" for name, values in said)
    iterations = run.updates.column("iteration").astype(float)
    return _panel(
        "entropy", "Entropy of each action head", f"Last measured: {last}.", figures.entropy(iterations, heads)
    )


def _rewards(run: RunRecord) -> Panel | None:
    parts = run.steps.below("components")
    if not parts:
        return None
    iterations, valid = run.steps.column("iteration"), run.steps.column("valid")
    axis = np.unique(iterations)
    sums = {
        name: np.array([np.where(valid, values, 0.0)[iterations == i].sum(axis=0).mean() for i in axis])
        for name, values in parts.items()
    }
    last = ", ".join(f"{name} {values[-1]:+.2f}" for name, values in sums.items())
    figure = figures.rewards(axis.astype(float), sums)
    return _panel("rewards", "Reward by component", f"Per episode in the last iteration: {last}.", figure)


def _importance(run: RunRecord) -> Panel | None:
    if run.evaluation is None or not run.evaluation.importance:
        return None
    said = [f"{group}: {interval(found.lost, '{:+.1f}')}" for group, found in _by_importance(run.evaluation)]
    figure = figures.importance(run.evaluation.importance)
    return _panel("importance", "Which observations decide", f"Points lost: {'; '.join(said)}.", figure)


def _growth(run: RunRecord) -> list[Panel]:
    """One for each host that is shown."""
    return [
        _panel(
            f"growth-{number}",
            f"How the host {'won' if case.gain > 0 else 'lost'}",
            f"Decisions: {_decisions(case) or 'none, the network never grew'}.",
            figures.growth(case.timeline),
        )
        for number, case in enumerate(run.evaluation.cases if run.evaluation else ())
    ]


def _decisions(case: Case) -> str:
    return "; ".join(f"step {d.step + 1} {d.op.lower()} slot {d.slot}" for d in case.timeline.decisions)


def _forest(run: RunRecord) -> Panel | None:
    evaluation = run.evaluation
    if evaluation is None or not evaluation.comparisons:
        return None
    description = "; ".join(_against(comparison) for comparison in evaluation.comparisons) + "."
    return _panel("forest", "Learned policy against the others", description, figures.forest(evaluation))


def _pareto(run: RunRecord) -> Panel | None:
    if run.evaluation is None:
        return None
    policies = run.evaluation.policies.items()
    said = [f"{_label(n)} {p.test_accuracy_pct.estimate:.1f} points, {p.params:,.0f} parameters"
            for n, p in policies]  # fmt: skip
    return _panel("pareto", "Accuracy against size", "; ".join(said) + ".", figures.pareto(run.evaluation))


def worst(results: Sequence[Result]) -> str:
    """One line for a terminal: the gravest finding."""
    found = Verdict(run="", results=tuple(results)).findings
    return f"{found[0].severity}: {found[0].check} {found[0].title}: {found[0].measured}" if found else "no findings"
