"""The figures of a report, each drawn from the run's record with a description in words."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simic.agent.ppo import EARLY_STOP
from simic.audit import drawing
from simic.audit.drawing import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY, Panel, legend_below, new_figure
from simic.audit.record import RunRecord
from simic.errors import printable
from simic.evaluation.endpoints import ALL_AT_ONCE, COMMON, ORACLE_TASK, PPO, RULES, compared
from simic.evaluation.gym import PEER, RANDOM
from simic.evaluation.page import GROUPS
from simic.evaluation.result import LEARNED, Case, Evaluation, Timeline
from simic.evaluation.statistics import Interval, pareto_front
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.growth.networks.blueprints import blueprints_of

Values = NDArray[np.float64]

COLOURS = (BLUE, ORANGE, GREEN, RED, PINK, SKY, GREY, "#6a51a3")
# Label, colour, marker.
POLICIES = {
    "learned": ("learned (greedy)", BLUE, "o"),
    "learned_sampled": ("learned (sampled)", SKY, "s"),
    "static": ("static (never grows)", GREY, "X"),
    "random_legal": ("random", ORANGE, "v"),
    "blind": ("learned, blind", SKY, "d"),
    "tuned_rule": ("tuned rule", GREEN, "*"),
    "patient": ("patient rule", GREEN, "^"),
    COMMON: (COMMON, GREY, "|"),
    ORACLE_TASK: (ORACLE_TASK, INK, "|"),
}
FLOORS = ("static", "random_legal")
GYM_FLOORS = (RANDOM, PEER)
GAP = (COMMON, ORACLE_TASK, "tuned_rule", "patient", "blind", LEARNED)
RESULT_COLOURS = {PPO: BLUE, **dict.fromkeys(RULES.values(), GREEN), ALL_AT_ONCE: PINK}
# Fill, ink on it, letter: the letter says it without colour.
STAGES: dict[Stage, tuple[str, str, str]] = {
    Stage.GERMINATED: (PINK, "black", "G"),
    Stage.TRAINING: (ORANGE, "black", "T"),
    Stage.BLENDING: (SKY, "black", "B"),
    Stage.HOLDING: (BLUE, "white", "H"),
    Stage.FOSSILIZED: (GREEN, "white", "F"),
    Stage.PRUNED: (RED, "white", "P"),
    Stage.EMBARGOED: ("#c9ccd0", "black", "E"),
    Stage.RESETTING: ("#e4e6e8", "black", "R"),
}
DECISION_MARKERS = {
    "GERMINATE": ("^", "germinate"),
    "ADVANCE": (">", "advance"),
    "SET_ALPHA_TARGET": ("o", "set alpha"),
    "FOSSILIZE": ("*", "fossilize"),
    "PRUNE": ("x", "prune"),
}
# Title and unit.
HEALTH = {
    "approx_kl": ("Approximate KL (k3)", "nats"),
    "explained_variance": ("Explained variance of returns", "share"),
    "clip_fraction": ("Clipped ratios", "share"),
    "grad_norm": ("Gradient norm before clipping", "L2 norm"),
}
LANE_LETTERS = 48  # that fit side by side into the lane of a whole episode


class Drawn(NamedTuple):
    """Hold a figure with its title, and in words what it shows."""

    title: str
    description: str
    figure: Figure


class Validation(NamedTuple):
    """Hold the mean score of validation episodes after so many iterations; the highest chooses the best checkpoint."""

    iterations: int
    score: float
    best: bool


def panels_of(run: RunRecord) -> list[Panel]:
    """Draw every figure that the run has data for, in the report's style whatever matplotlib is set to."""
    with matplotlib.rc_context(drawing.STYLE):
        return [drawing.panel(name, *drawn) for name, drawn in drawings(run).items()]


def drawings(run: RunRecord) -> dict[str, Drawn]:
    """Draw every figure that the run has data for, by name."""
    drawn = {
        "result": _returns(run) or _result(run),
        "gap": _gap(run),
        "learning": _learning(run),
        "health": _health(run),
        "entropy": _entropy(run),
        "rewards": _rewards(run),
    }
    cases = run.evaluation.cases if run.evaluation else ()
    drawn |= {f"growth-{number}": growth(case) for number, case in enumerate(cases)}
    drawn["pareto"] = _pareto(run)
    return {name: each for name, each in drawn.items() if each is not None}


def policy_look(name: str) -> tuple[str, str, str]:
    """Return label, colour and marker of a policy; its own name and ink where it has none."""
    return POLICIES.get(name, (printable(name), INK, "o"))


def validations(run: RunRecord) -> list[Validation]:
    """Return the validations that were played."""
    if not len(run.updates):
        return []
    best = run.updates.column("best_iteration")[-1]
    scores = zip(run.updates.column("iteration") + 1, run.updates.column("validation_accuracy"), strict=True)
    return [Validation(int(done), float(score), bool(done == best)) for done, score in scores if np.isfinite(score)]


def _axis(axes: Axes, title: str, x: str, y: str, grid: Literal["x", "y", "both"] = "y") -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, axis=grid)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _lines(plot: Axes, iterations: Values, series: Mapping[str, Values]) -> list[Line2D]:
    """Draw one line for each of up to eight series; return them."""
    return [
        line
        for colour, (name, values) in zip(COLOURS, series.items(), strict=False)
        for line in plot.plot(iterations, values, color=colour, marker="o", markersize=2.5, label=printable(name))
    ]


def _last(series: Mapping[str, Values]) -> dict[str, float | None]:
    """Return the last finite value of each series."""
    return {name: next((float(x) for x in values[::-1] if np.isfinite(x)), None) for name, values in series.items()}


def _listed(values: Mapping[str, float | None], form: str) -> str:
    return ", ".join(
        f"{name} not measured" if value is None else f"{name} {value:{form}}" for name, value in values.items()
    )


# --- learning --------------------------------------------------------------------------------------------------------


def _learning(run: RunRecord) -> Drawn | None:
    """Draw what episodes reach per iteration: mean, middle half and range over hosts, with floors; and validations, a
    ring around the one that chose the best checkpoint.
    """
    gym = run.params.prepare.is_gym
    if not len(run.episodes):
        return None
    reached = run.episodes.column("return" if gym else "committed_accuracy")
    some = np.isfinite(reached).any(axis=1)  # of a Gymnasium environment: where an episode ended
    if not some.any():
        return None
    iterations, reached = run.episodes.column("iteration")[some] + 1.0, reached[some]
    low, q1, q3, high = np.nanquantile(reached, [0.0, 0.25, 0.75, 1.0], axis=1)
    mean, floors, played = np.nanmean(reached, axis=1), _floors(run), validations(run)
    figure, [plot] = new_figure(3.2)
    plot.fill_between(iterations, low, high, color=BLUE, alpha=0.14, linewidth=0)
    plot.fill_between(iterations, q1, q3, color=BLUE, alpha=0.28, linewidth=0)
    used = plot.plot(iterations, mean, color=BLUE, marker="o", markersize=3, label="this run, mean")
    for style, (name, value) in zip(("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))), floors.items(), strict=False):
        label, colour, _ = policy_look(name)
        used.append(plot.axhline(value, color=colour, linestyle=style, linewidth=1.3, label=label))
    plot.plot([each.iterations for each in played], [each.score for each in played], "D", color=INK, markersize=5)
    for each in played:
        if each.best:
            plot.plot([each.iterations], [each.score], "o", color=INK, markersize=11, markerfacecolor="none")
    if gym:
        _axis(plot, "Return of episodes that ended", "iteration", "return")
        title = "Return per iteration"
        said = (
            f"Mean over environments from {mean[0]:.4g} in the first to {mean[-1]:.4g} in the last iteration; dark "
            "band: middle half, light band: all. Diamonds: greedy validation; the ring is on the one that chose the "
            "checkpoint."
        )
    else:
        across = f"iteration ({run.params.train.envs:,} host trainings each)"
        _axis(plot, "Committed validation accuracy", across, "accuracy (points)")
        title = "Committed validation accuracy per iteration"
        levels = ", ".join(f"{policy_look(name)[0]} {value:.1f}" for name, value in floors.items())
        said = (
            f"Mean over hosts from {mean[0]:.1f} in the first to {mean[-1]:.1f} points in the last iteration, best "
            f"{mean.max():.1f}; dark band: middle half of the hosts, light band: all. "
            f"Lines: {levels or 'no baselines'}."
        )
        if played:
            said += " Diamonds: score of the validation episodes; the ring is on the one that chose the checkpoint."
    legend_below(figure, used)
    return Drawn(title, said, figure)


def _floors(run: RunRecord) -> dict[str, float]:
    """Return what PPO has to pass: scores on the validation tasks, or without these on the held-out hosts."""
    if run.gym is not None:
        played = run.gym.policies
        return {name: played[name].mean_return.estimate for name in GYM_FLOORS if name in played}
    if run.headroom is not None and run.headroom.validation:
        return {COMMON if name == "common" else name: value for name, value in run.headroom.validation.items()}
    policies = run.evaluation.policies.items() if run.evaluation else ()
    return {name: policy.val_accuracy_pct for name, policy in policies if name in FLOORS}


def _health(run: RunRecord) -> Drawn | None:
    """Draw KL, explained variance, clip fraction and gradient norm before clipping over iterations."""
    series = {name: run.updates.column(name) for name in HEALTH if name in run.updates}
    if not series:
        return None
    figure, axes = new_figure(5.4, [1.0] * len(HEALTH))
    plots = dict(zip(HEALTH, axes, strict=True))
    for name, plot in plots.items():
        title, unit = HEALTH[name]
        _axis(plot, title, "iteration" if plot is axes[-1] else "", unit)
        if name in series and np.isfinite(series[name]).any():
            iterations = run.updates.column("iteration") + 1.0
            plot.plot(iterations, series[name], color=BLUE, marker="o", markersize=2.5)
        else:
            plot.text(0.5, 0.5, "not recorded", transform=plot.transAxes, ha="center", va="center", color=INK)
    target_kl = run.params.train.ppo.target_kl
    if target_kl is not None:
        kl = plots["approx_kl"]
        kl.axhline(EARLY_STOP * target_kl, color=RED, linestyle="--", linewidth=1.1)
        kl.margins(y=0.2)
        kl.annotate(
            "early stop", (1.0, EARLY_STOP * target_kl), xycoords=("axes fraction", "data"), xytext=(-2, 3),
            textcoords="offset points", ha="right", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
    plots["explained_variance"].axhline(0.0, color=INK, linewidth=0.8)
    return Drawn("Health of the updates", f"Last measured: {_listed(_last(series), '.3g')}.", figure)


def _entropy(run: RunRecord) -> Drawn | None:
    """Draw the entropy of each head over that of a uniform choice, where it had a choice."""
    measured = run.updates.below("entropy_by_head")
    if not measured:
        return None
    order = [*Action._fields, *measured]
    heads = {name: measured[name] for name in sorted(measured, key=order.index)}
    figure, [plot] = new_figure(3.2)
    used = _lines(plot, run.updates.column("iteration") + 1.0, heads)
    title = "Normalised entropy of each action head"
    _axis(plot, title, "iteration", "share of the maximum")
    plot.set_ylim(-0.03, 1.03)
    legend_below(figure, used, columns=3)
    said = f"1 is uniform, 0 always the same, no dot: no choice. Last measured: {_listed(_last(heads), '.2f')}."
    return Drawn(title, said, figure)


def _rewards(run: RunRecord) -> Drawn | None:
    """Draw each reward component that was ever paid, per episode, mean over hosts, the largest first, and their sum."""
    parts = {name: values for name, values in run.steps.below("components").items() if values.any()}
    if not parts:
        return None
    iterations, valid = run.steps.column("iteration"), run.steps.column("valid")
    axis = np.unique(iterations)
    paid = {
        name: np.array([np.where(valid, values, 0.0)[iterations == i].sum(axis=0).mean() for i in axis])
        for name, values in parts.items()
    }
    ordered = sorted(paid, key=lambda name: -float(np.nanmean(np.abs(paid[name]))))
    figure, [plot] = new_figure(3.2)
    plot.axhline(0.0, color=INK, linewidth=0.8)
    used = plot.plot(axis + 1.0, np.sum(list(paid.values()), axis=0), color=INK, linewidth=2.2, label="total")
    used += _lines(plot, axis + 1.0, {name: paid[name] for name in ordered if paid[name].any()})
    _axis(plot, "Reward per episode by component", "iteration", "reward")
    legend_below(figure, used)
    return Drawn("Reward by component", f"Per episode in the last iteration: {_listed(_last(paid), '+.2f')}.", figure)


# --- one episode -----------------------------------------------------------------------------------------------------


def growth(case: Case) -> Drawn:
    """Draw slots × steps with stages and decisions above, live and committed accuracy below, on one time axis."""
    timeline = case.timeline
    slots, steps = len(timeline.stages[0]), np.arange(len(timeline.stages)) + 1
    figure, [lanes, accuracy] = new_figure(2.9 + 0.42 * slots, [0.42 * slots + 0.3, 2.0])
    stages = np.array(timeline.stages)
    for slot in range(slots):
        edges = np.flatnonzero(np.diff(stages[:, slot])) + 1
        for start, stop in pairwise([0, *edges.tolist(), len(stages)]):
            if stages[start, slot] != Stage.DORMANT:
                _lane(lanes, slot, start, stop, timeline)
    used = _decisions(lanes, timeline)
    lanes.set_yticks(range(slots), [f"slot {k}" for k in range(slots)])
    lanes.set_ylim(slots - 0.45, -0.75)
    lanes.set_title("Stages after each step, decisions above")
    lanes.tick_params(axis="x", labelbottom=False, length=0)
    lanes.spines["bottom"].set_visible(False)
    live, committed = (
        np.array([np.nan if value is None else value for value in values])
        for values in (timeline.live_accuracy_pct, timeline.committed_accuracy_pct)
    )
    used += accuracy.plot(steps, live, color=ORANGE, linestyle="--", linewidth=1.4, zorder=3, label="live")
    used += accuracy.plot(steps, committed, color=BLUE, label="committed")
    _axis(accuracy, "Validation accuracy", "step (host epoch)", "accuracy (points)")
    for step in timeline.rollback_steps:
        for plot in (lanes, accuracy):
            plot.axvline(step + 1, color=RED, linewidth=1.2, zorder=1.5)
    if timeline.rollback_steps:
        used.append(Line2D([], [], color=RED, linewidth=1.2, label="rollback"))
    lanes.set_xlim(0.3, len(steps) + 0.7)
    square = {"marker": "s", "linestyle": "none", "markersize": 8}
    present = {stage: look for stage, look in STAGES.items() if (stages == stage).any()}
    for stage, (fill, _, letter) in present.items():
        used.append(Line2D([], [], color=fill, label=f"{letter} {stage.name.lower()}", **square))
    legend_below(figure, used, columns=4)
    said = "; ".join(f"step {d.step + 1} {d.op.lower()} slot {d.slot}" for d in timeline.decisions)
    return Drawn(f"How the host {'won' if case.gain > 0 else 'lost'}", said or "No decision.", figure)


def _lane(plot: Axes, slot: int, start: int, stop: int, timeline: Timeline) -> None:
    """Draw one bar: colour and letter of the stage, and the blueprint where there is one, and room."""
    fill, ink, letter = STAGES[Stage(timeline.stages[start][slot])]
    plot.add_patch(Rectangle((start + 0.54, slot - 0.28), stop - start - 0.08, 0.56, facecolor=fill, linewidth=0))
    blueprint = timeline.blueprints[start][slot]
    room = (stop - start) / len(timeline.stages) * LANE_LETTERS
    texts = ([f"{letter} {printable(blueprint)}"] if blueprint is not None else []) + [letter]
    text = next((each for each in texts if len(each) <= room), "")
    plot.text((start + stop) / 2 + 0.5, slot, text, ha="center", va="center", fontsize=7.5, color=ink)


def _decisions(plot: Axes, timeline: Timeline) -> list[Line2D]:
    """Draw markers above the lanes, hollow where a gate refused; return the legend's entries."""
    used: dict[str, Line2D] = {}
    for decision in timeline.decisions:
        marker, label = DECISION_MARKERS[decision.op]
        refused = decision.refused_by_gate is not None
        face = "none" if refused else INK
        key = "refused by a gate" if refused else label
        style = {"marker": marker, "color": INK, "markerfacecolor": face, "markersize": 5, "linestyle": "none"}
        plot.plot([decision.step + 1], [decision.slot - 0.4], clip_on=False, **style)
        used.setdefault(key, Line2D([], [], label=key, **style))
    return list(used.values())


# --- evaluation ------------------------------------------------------------------------------------------------------


def _intervals(plot: Axes, rows: Sequence[tuple[str, Interval, str]], form: str) -> None:
    """Draw one row for each name with its interval and colour, from below, and its estimate beside it."""
    for row, (_, score, colour) in enumerate(rows):
        plot.plot([score.low, score.high], [row, row], color=colour, linewidth=4, solid_capstyle="butt", alpha=0.45)
        plot.plot([score.estimate], [row], "o", color=colour, markersize=6)
        text = f"{score.estimate:{form}}"
        plot.annotate(text, (1.0, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5)
    plot.set_yticks(range(len(rows)), [name for name, *_ in rows])
    plot.set_ylim(-0.6, len(rows) - 0.4)


def _returns(run: RunRecord) -> Drawn | None:
    """Draw the mean return of everyone that played a Gymnasium environment, with its interval."""
    if run.gym is None:
        return None
    means = {name: result.mean_return for name, result in run.gym.policies.items()}
    figure, [plot] = new_figure(0.6 + 0.35 * len(means))
    looks = {name: policy_look(name) for name in reversed(means)}
    _intervals(plot, [(label, means[name], colour) for name, (label, colour, _) in looks.items()], ".4g")
    _axis(plot, "Mean return", "return", "")
    said = ", ".join(f"{name} {x.estimate:.4g} [{x.low:.4g}, {x.high:.4g}]" for name, x in means.items())
    title = f"Return in {run.gym.eval_seeds} fresh episodes"
    return Drawn(title, f"{said}. Intervals: 95 % over episodes.", figure)


def _result(run: RunRecord) -> Drawn | None:
    """Draw for each group of tasks the score of PPO and of those beside it, with intervals, the lowest first."""
    if run.evaluation is None or LEARNED not in run.evaluation.policies:
        return None
    scores = {group: compared(found) for group, found in run.evaluation.standings.items()}
    heights = [*map(len, scores.values())]
    figure, axes = new_figure(0.6 + sum(0.35 + 0.24 * rows for rows in heights), heights)
    for plot, (group, of_group) in zip(axes, scores.items(), strict=True):
        placed = sorted(of_group.items(), key=lambda each: each[1].estimate)
        _intervals(plot, [(name, score, RESULT_COLOURS.get(name, GREY)) for name, score in placed], ".1f")
        _axis(plot, f"{GROUPS[group].capitalize()} ({run.evaluation.standings[group].tasks})", "", "", grid="x")
    axes[-1].set_xlabel("score on test splits (points)")
    said = [
        f"{GROUPS[group].capitalize()}: {_listed({name: x.estimate for name, x in of_group.items()}, '.1f')}"
        for group, of_group in scores.items()
    ]
    return Drawn("PPO beside those it is compared with", f"Intervals: 95 % over tasks. {'. '.join(said)}.", figure)


def _gap(run: RunRecord) -> Drawn | None:
    """Draw for each kind of tasks a line from the best common schedule to the oracle per task, and policies on it."""
    if run.evaluation is None or LEARNED not in run.evaluation.policies:
        return None
    rows = [
        (group, kind, scores)
        for group, found in run.evaluation.standings.items()
        for kind, scores in found.by_kind.items()
    ]
    figure, [plot] = new_figure(1.2 + 0.28 * len(rows))
    ends = np.array([(scores[COMMON], scores[ORACLE_TASK]) for *_, scores in rows])
    plot.hlines(range(len(rows)), ends[:, 0], ends[:, 1], color=GREY, linewidth=2.5, zorder=1)
    used = []
    for name in GAP:
        label, colour, marker = policy_look(name)
        points = [(scores[name], row) for row, (*_, scores) in enumerate(rows) if name in scores]
        size = 14 if name in (COMMON, ORACLE_TASK) else 7  # the ends are taller than what may lie on them
        look = {"color": colour, "marker": marker, "markersize": size, "linestyle": "none", "markeredgewidth": 2}
        if points:
            used += plot.plot(*zip(*points, strict=True), zorder=2, label=label, **look)
    names = [printable(kind) + (" *" if group == "held_out_kinds" else "") for group, kind, _ in rows]
    plot.set_yticks(range(len(rows)), names)
    plot.set_ylim(len(rows) - 0.5, -0.5)
    _axis(plot, "", "test score (points); * new kinds", "", grid="x")
    plot.xaxis.set_major_locator(MaxNLocator(nbins=8))
    # Of the whole figure: names of kinds may leave the plot little room.
    figure.suptitle("From the common schedule to the oracle", x=0.02, ha="left", fontsize=9.5, fontweight="bold")
    legend_below(figure, used)
    kept = kept_by_kind(run.evaluation)
    said = [
        f"{kind}: common {scores[COMMON]:.1f}, learned {scores[LEARNED]:.1f}, oracle {scores[ORACLE_TASK]:.1f}, "
        f"keeps {', '.join(f'{name} {count}' for name, count in kept[kind].most_common(3)) or 'nothing'}"
        for _, kind, scores in rows
    ]
    return Drawn("How much of the gap is closed, by kind of task", "; ".join(said) + ".", figure)


def kept_by_kind(evaluation: Evaluation) -> dict[str, Counter[str]]:
    """Count the blueprints that the learned policy fossilized on the tasks of each kind."""
    names = [item.name for item in blueprints_of(evaluation.host.family)]
    kept, living = defaultdict[str, Counter[str]](Counter), dict[int, str]()
    for row, actions in zip(evaluation.rows, evaluation.actions.get(LEARNED, ()), strict=False):
        for op, slot, kind, *_ in (map(int, action.split()) for action in actions):
            if op == Op.GERMINATE:
                living[slot] = names[kind]
            elif op == Op.FOSSILIZE:
                kept[evaluation.tasks[row].kind][living[slot]] += 1
    return kept


def _pareto(run: RunRecord) -> Drawn | None:
    """Draw test accuracy (mean, 95 % interval) against parameters of the committed network, and the Pareto front."""
    if run.evaluation is None:
        return None
    policies = run.evaluation.policies
    figure, [plot] = new_figure(2.6 + 0.17 * len(policies) / 2)
    points = {name: (p.params, p.test_accuracy_pct.estimate) for name, p in policies.items()}
    front = pareto_front(points)
    plot.plot(*zip(*[points[name] for name in front], strict=True), color=GREY, linewidth=1.0, drawstyle="steps-post")
    used = []
    for name, policy in policies.items():
        interval = policy.test_accuracy_pct
        label, colour, marker = policy_look(name)
        look = {"color": colour, "marker": marker, "markersize": 7, "linestyle": "none"}
        used.append(Line2D([], [], label=label + (" *" if name in front else ""), **look))
        plot.errorbar(
            policy.params, interval.estimate,
            yerr=[[interval.estimate - interval.low], [interval.high - interval.estimate]],
            elinewidth=1.2, capsize=2, **look,
        )  # fmt: skip
    title = "Accuracy against size (* on the Pareto front)"
    _axis(plot, title, "parameters of the committed network", "test accuracy (points)", grid="both")
    legend_below(figure, used)
    said = [
        f"{policy_look(name)[0]} {gained:.1f} points, {params:,.0f} parameters"
        for name, (params, gained) in points.items()
    ]
    return Drawn("Accuracy against size", "; ".join(said) + ".", figure)
