"""The figures of the report: learning, health of the updates, growth of a network, comparison of policies."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simic.agent.ppo import EARLY_STOP
from simic.audit.drawing import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY, legend_below, new_figure
from simic.errors import printable
from simic.evaluation.endpoints import ALL_AT_ONCE, COMMON, ORACLE_TASK, PPO, RULES, compared
from simic.evaluation.page import GROUPS
from simic.evaluation.result import LEARNED, Evaluation, Standings, Timeline
from simic.evaluation.statistics import Interval, pareto_front
from simic.growth.life.vocabulary import Stage

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


def policy_look(name: str) -> tuple[str, str, str]:
    """Return label, colour and marker of a policy; its own name and ink where it has none."""
    return POLICIES.get(name, (printable(name), INK, "o"))


class Validation(NamedTuple):
    """Hold the mean score of validation episodes after so many iterations; the highest chooses the best checkpoint."""

    iterations: int
    score: float
    best: bool


def _axis(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def learning(
    iterations: Values,
    committed: Values,
    floors: Mapping[str, float],
    validations: Sequence[Validation] = (),
    trainings: int = 1,
    words: tuple[str, str, str] | None = None,
) -> Figure:
    """Draw committed validation accuracy per iteration: mean, middle half and range over hosts ``[N, E]``, with floors;
    and the validations, a ring around the one that chose the best checkpoint.
    """
    figure, [plot] = new_figure(3.2)
    low, q1, q3, high = np.nanquantile(committed, [0.0, 0.25, 0.75, 1.0], axis=1)
    plot.fill_between(iterations, low, high, color=BLUE, alpha=0.14, linewidth=0)
    plot.fill_between(iterations, q1, q3, color=BLUE, alpha=0.28, linewidth=0)
    mean = np.nanmean(committed, axis=1)
    used = plot.plot(iterations, mean, color=BLUE, marker="o", markersize=3, label="this run, mean")
    for style, (name, value) in zip(("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))), floors.items(), strict=False):
        label, colour, _ = policy_look(name)
        used.append(plot.axhline(value, color=colour, linestyle=style, linewidth=1.3, label=label))
    for each in validations:
        plot.plot([each.iterations], [each.score], "D", color=INK, markersize=5)
        if each.best:
            plot.plot([each.iterations], [each.score], "o", color=INK, markersize=11, markerfacecolor="none")
    across = f"iteration ({trainings:,} host trainings each)"
    _axis(plot, *(words or ("Committed validation accuracy", across, "accuracy (points)")))
    legend_below(figure, used)
    return figure


def returns(means: Mapping[str, Interval]) -> Figure:
    """Draw the mean return of everyone that played, with its interval."""
    figure, [plot] = new_figure(0.6 + 0.35 * len(means))
    for place, (name, mean) in enumerate(reversed([*means.items()])):
        label, colour, marker = policy_look(name)
        plot.plot([mean.low, mean.high], [place, place], color=colour, linewidth=1.6)
        plot.plot([mean.estimate], [place], marker, color=colour, markersize=6, label=label)
    plot.set_yticks(range(len(means)), [policy_look(name)[0] for name in reversed([*means])])
    _axis(plot, "Mean return", "return", "")
    return figure


def health(iterations: Values, series: Mapping[str, Values], target_kl: float | None) -> Figure:
    """Draw KL, explained variance, clip fraction and gradient norm before clipping over iterations."""
    figure, axes = new_figure(5.4, [1.0] * len(HEALTH))
    plots = dict(zip(HEALTH, axes, strict=True))
    for name, plot in plots.items():
        title, unit = HEALTH[name]
        _axis(plot, title, "iteration" if plot is axes[-1] else "", unit)
        if name in series and np.isfinite(series[name]).any():
            plot.plot(iterations, series[name], color=BLUE, marker="o", markersize=2.5)
        else:
            plot.text(0.5, 0.5, "not recorded", transform=plot.transAxes, ha="center", va="center", color=INK)
    if target_kl is not None:
        kl = plots["approx_kl"]
        kl.axhline(EARLY_STOP * target_kl, color=RED, linestyle="--", linewidth=1.1)
        kl.margins(y=0.2)
        kl.annotate(
            "early stop", (1.0, EARLY_STOP * target_kl), xycoords=("axes fraction", "data"), xytext=(-2, 3),
            textcoords="offset points", ha="right", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
    plots["explained_variance"].axhline(0.0, color=INK, linewidth=0.8)
    return figure


def entropy(iterations: Values, heads: Mapping[str, Values]) -> Figure:
    """Draw the entropy of each head over that of a uniform choice, where it had a choice."""
    figure, [plot] = new_figure(3.2)
    used = _lines(plot, iterations, heads)
    _axis(plot, "Normalised entropy of each action head", "iteration", "share of the maximum")
    plot.set_ylim(-0.03, 1.03)
    legend_below(figure, used, columns=3)
    return figure


def rewards(iterations: Values, components: Mapping[str, Values]) -> Figure:
    """Draw each reward component per episode, mean over hosts, the largest first, and their sum."""
    figure, [plot] = new_figure(3.2)
    total = np.sum(list(components.values()), axis=0)
    ordered = sorted(components, key=lambda name: -float(np.nanmean(np.abs(components[name]))))
    plot.axhline(0.0, color=INK, linewidth=0.8)
    used = plot.plot(iterations, total, color=INK, linewidth=2.2, label="total")
    used += _lines(plot, iterations, {name: components[name] for name in ordered if components[name].any()})
    _axis(plot, "Reward per episode by component", "iteration", "reward")
    legend_below(figure, used)
    return figure


def _lines(plot: Axes, iterations: Values, series: Mapping[str, Values]) -> list[Line2D]:
    """Draw one line for each of up to eight series; return them."""
    return [
        line
        for colour, (name, values) in zip(COLOURS, series.items(), strict=False)
        for line in plot.plot(iterations, values, color=colour, marker="o", markersize=2.5, label=printable(name))
    ]


# --- one episode -----------------------------------------------------------------------------------------------------


def growth(timeline: Timeline) -> Figure:
    """Draw slots × steps with stages and decisions above, live and committed accuracy below, on one time axis."""
    slots = len(timeline.stages[0])
    figure, [lanes, accuracy] = new_figure(2.9 + 0.42 * slots, [0.42 * slots + 0.3, 2.0])
    stages = np.array(timeline.stages)
    for slot in range(slots):
        for start, stop in _runs(stages[:, slot]):
            _lane(lanes, slot, start, stop, timeline)
    steps = np.arange(len(timeline.stages)) + 1
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
    legend_below(figure, used + _stage_key(stages), columns=4)
    return figure


def _runs(stages: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return half-open ranges of equal stage, without DORMANT."""
    edges = np.flatnonzero(np.diff(stages)) + 1
    bounds = [0, *edges.tolist(), len(stages)]
    return [(a, b) for a, b in pairwise(bounds) if stages[a] != Stage.DORMANT]


def _lane(plot: Axes, slot: int, start: int, stop: int, timeline: Timeline) -> None:
    """Draw one bar: colour and letter of the stage, and the blueprint where there is one, and room."""
    stage = Stage(timeline.stages[start][slot])
    fill, ink, letter = STAGES[stage]
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


def _stage_key(stages: NDArray[np.int64]) -> list[Line2D]:
    present = [stage for stage in STAGES if (stages == stage).any()]
    return [
        Line2D([], [], marker="s", linestyle="none", markersize=8, color=STAGES[stage][0],
               label=f"{STAGES[stage][2]} {stage.name.lower()}")
        for stage in present
    ]  # fmt: skip


# --- evaluation ------------------------------------------------------------------------------------------------------


RESULT_COLOURS = {PPO: BLUE, **dict.fromkeys(RULES.values(), GREEN), ALL_AT_ONCE: PINK}


def result(standings: Mapping[str, Standings]) -> Figure:
    """Draw for each group of tasks the score of PPO and of those beside it, with intervals, the lowest first."""
    rows = [sorted(compared(found).items(), key=lambda each: each[1].estimate) for found in standings.values()]
    figure, axes = new_figure(0.6 + sum(0.35 + 0.24 * len(each) for each in rows), [*map(len, rows)])
    for plot, (group, found), placed in zip(axes, standings.items(), rows, strict=True):
        for row, (name, score) in enumerate(placed):
            colour = RESULT_COLOURS.get(name, GREY)
            plot.plot([score.low, score.high], [row, row], color=colour, linewidth=4, solid_capstyle="butt", alpha=0.45)
            plot.plot([score.estimate], [row], "o", color=colour, markersize=6)
            text = f"{score.estimate:.1f}"
            plot.annotate(text, (1.0, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5)
        plot.set_yticks(range(len(placed)), [name for name, _ in placed])
        plot.set_ylim(-0.6, len(placed) - 0.4)
        _axis(plot, f"{GROUPS[group].capitalize()} ({found.tasks})", "", "")
        plot.grid(True, axis="x")
        plot.grid(False, axis="y")
    axes[-1].set_xlabel("score on test splits (points)")
    return figure


GAP = (COMMON, ORACLE_TASK, "tuned_rule", "patient", "blind", LEARNED)


def gap(standings: Mapping[str, Standings]) -> Figure:
    """Draw for each kind of tasks a line from the best common schedule to the oracle per task, and policies on it."""
    rows = [(group, kind, scores) for group, found in standings.items() for kind, scores in found.by_kind.items()]
    figure, [plot] = new_figure(1.2 + 0.28 * len(rows))
    looks = {}
    for name in GAP:
        if any(name in scores for *_, scores in rows):
            _, colour, marker = policy_look(name)
            size = 14 if name in (COMMON, ORACLE_TASK) else 7  # the ends are taller than what may lie on them
            looks[name] = {"color": colour, "marker": marker, "markersize": size, "linestyle": "none"}
    for row, (_, _, scores) in enumerate(rows):
        plot.plot([scores[COMMON], scores[ORACLE_TASK]], [row, row], color=GREY, linewidth=2.5, zorder=1)
        for name, look in looks.items():
            if name in scores:
                plot.plot([scores[name]], [row], zorder=2, markeredgewidth=2, **look)
    used = [Line2D([], [], label=policy_look(name)[0], markeredgewidth=2, **look) for name, look in looks.items()]
    names = [printable(kind) + (" *" if group == "held_out_kinds" else "") for group, kind, _ in rows]
    plot.set_yticks(range(len(rows)), names)
    plot.set_ylim(len(rows) - 0.5, -0.5)
    _axis(plot, "From the common schedule to the oracle", "score on test (points); * never trained on", "")
    plot.grid(True, axis="x")
    plot.grid(False, axis="y")
    plot.xaxis.set_major_locator(MaxNLocator(nbins=8))
    legend_below(figure, used)
    return figure


def pareto(evaluation: Evaluation) -> Figure:
    """Draw test accuracy (mean, 95 % interval) against parameters of the committed network, and the Pareto front."""
    figure, [plot] = new_figure(2.6 + 0.17 * len(evaluation.policies) / 2)
    points = {name: (p.params, p.test_accuracy_pct.estimate) for name, p in evaluation.policies.items()}
    front = pareto_front(points)
    plot.plot(*zip(*[points[name] for name in front], strict=True), color=GREY, linewidth=1.0, drawstyle="steps-post")
    used = []
    for name, policy in evaluation.policies.items():
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
    _axis(plot, title, "parameters of the committed network", "test accuracy (points)")
    plot.grid(True, axis="x")
    legend_below(figure, used)
    return figure
