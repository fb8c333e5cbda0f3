"""The figures of a report, each drawn from the run's record with a description in words."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simic.audit import drawing
from simic.audit.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RED,
    SKY,
    Panel,
    legend_below,
    new_figure,
)
from simic.audit.record import RunRecord
from simic.errors import printable
from simic.evaluation.endpoints import ALL_AT_ONCE, COMMON, ORACLE_TASK, PPO, RULES, compared
from simic.evaluation.gym_evaluation import PEER, RANDOM
from simic.evaluation.intervals import Interval, pareto_front
from simic.evaluation.page import GROUPS
from simic.evaluation.result import LEARNED, Case, Evaluation, Timeline
from simic.growth.life.vocabulary import Op, Stage
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
MOST_KINDS = 20  # of tasks in one figure
LANE_LETTERS = 48  # that fit side by side into the lane of a whole episode


class Drawn(NamedTuple):
    """Hold a figure with its title, and in words what it shows."""

    title: str
    description: str
    figure: Figure


class ValidationPoint(NamedTuple):
    """Hold the mean score of validation episodes after so many iterations; the highest chooses the best checkpoint."""

    iterations: int
    score: float
    best: bool


def panels_of(run: RunRecord, sound: bool = True) -> list[Panel]:
    """Draw every figure that the run has data for, in the report's style whatever matplotlib is set to; without results
    where the record is not ``sound``.
    """
    # Rendering too happens inside: fonts and salts are read when a figure is written.
    with matplotlib.rc_context(drawing.STYLE):
        return [drawing.panel(name, *drawn) for name, drawn in drawings(run, sound).items()]


def drawings(run: RunRecord, sound: bool = True) -> dict[str, Drawn]:
    """Draw every figure that the run has data for, by name."""
    # What is withheld is taken out of the record, so that no figure can show it.
    if not sound:
        run = replace(run, evaluation=None, gym=None)
    drawn = {
        "result": _returns(run) or _result(run),
        "learning": _learning(run),
        "grown": _grown(run),
    }
    cases = run.evaluation.cases if run.evaluation else ()
    drawn |= {f"timeline-{number}": timeline_figure(case) for number, case in enumerate(cases)}
    drawn["cost"] = _cost(run)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def policy_look(name: str) -> tuple[str, str, str]:
    """Look up label, colour and marker of a policy; its own name and ink where it has none."""
    return POLICIES.get(name, (printable(name), INK, "o"))


def validations(run: RunRecord) -> list[ValidationPoint]:
    """List the validations that were played."""
    if not len(run.updates):
        return []
    # The last row knows the best of the whole run; earlier rows know the best so far.
    best = run.updates.column("best_iteration")[-1]
    scores = zip(
        run.updates.column("iteration") + 1, run.updates.column("validation_accuracy"), strict=True
    )
    return [
        ValidationPoint(int(iterations), float(score), bool(iterations == best))
        for iterations, score in scores
        if np.isfinite(score)
    ]


def _axis(axes: Axes, title: str, x: str, y: str, grid: Literal["x", "y", "both"] = "y") -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, axis=grid)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _listed(values: Mapping[str, float | None], form: str) -> str:
    return ", ".join(
        f"{name} not measured" if value is None else f"{name} {value:{form}}"
        for name, value in values.items()
    )


# --- learning --------------------------------------------------------------------------------------------------------


def _learning(run: RunRecord) -> Drawn | None:
    """Draw what episodes reach per iteration: mean, middle half and range over hosts, with floors; and validations, a
    ring around the one that chose the best checkpoint.
    """
    is_gym = run.params.prepare.is_gym
    if not len(run.episodes):
        return None
    values = run.episodes.column("return" if is_gym else "committed_accuracy")
    measured = np.isfinite(values).any(axis=1)  # of a Gymnasium environment: where an episode ended
    if not measured.any():
        return None
    # Bands and not lines for hosts: thousands of lines would be one grey area.
    iterations = run.episodes.column("iteration")[measured] + 1.0
    low, q1, q3, high = np.nanquantile(values[measured], [0.0, 0.25, 0.75, 1.0], axis=1)
    mean = np.nanmean(values[measured], axis=1)
    # Training.
    figure, [plot] = new_figure(3.2)
    plot.fill_between(iterations, low, high, color=BLUE, alpha=0.14, linewidth=0)
    plot.fill_between(iterations, q1, q3, color=BLUE, alpha=0.28, linewidth=0)
    handles = plot.plot(
        iterations, mean, color=BLUE, marker="o", markersize=3, label="this run, mean"
    )
    # What it has to pass.
    floors = _floors(run)
    for style, (name, value) in zip(
        ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))), floors.items(), strict=False
    ):
        label, colour, _ = policy_look(name)
        handles.append(
            plot.axhline(value, color=colour, linestyle=style, linewidth=1.3, label=label)
        )
    # Validations.
    points = validations(run)
    diamond = partial(plot.plot, marker="D", color=INK, markersize=5, linestyle="")
    diamond([point.iterations for point in points], [point.score for point in points])
    ring = partial(plot.plot, marker="o", color=INK, markersize=11, markerfacecolor="none")
    for point in points:
        if point.best:
            ring([point.iterations], [point.score])
    # Words.
    if is_gym:
        title = "Return per iteration"
        _axis(plot, "Return of episodes that ended", "iteration", "return")
    else:
        title = "Committed validation accuracy per iteration"
        across = f"iteration ({run.params.train.envs:,} host trainings each)"
        _axis(plot, "Committed validation accuracy", across, "accuracy (points)")
    form = ".4g" if is_gym else ".1f"
    levels = _listed({policy_look(name)[0]: value for name, value in floors.items()}, form)
    description = (
        f"Mean over {'environments' if is_gym else 'hosts'} from {mean[0]:{form}} in the first to {mean[-1]:{form}} in "
        f"the last iteration, best {mean.max():{form}}; dark band: middle half, light band: all. "
        f"Lines: {levels or 'no baselines'}."
    )
    if points:
        description += " Diamonds: score of the validation episodes; the ring is on the one that chose the checkpoint."
    legend_below(figure, handles)
    return Drawn(title, description, figure)


def _floors(run: RunRecord) -> dict[str, float]:
    """List what PPO has to pass: scores on the validation tasks, or without these on the held-out hosts."""
    if run.gym is not None:
        policies = run.gym.policies
        return {
            name: policies[name].mean_return.estimate for name in GYM_FLOORS if name in policies
        }
    if run.headroom is not None and run.headroom.validation:
        return {
            COMMON if name == "common" else name: value
            for name, value in run.headroom.validation.items()
        }
    # Held-out hosts are other tasks than those of the curve: a floor to compare with roughly, and better than none.
    policies = run.evaluation.policies.items() if run.evaluation else ()
    return {name: policy.val_accuracy_pct for name, policy in policies if name in FLOORS}


# --- one episode -----------------------------------------------------------------------------------------------------


def timeline_figure(case: Case) -> Drawn:
    """Draw slots × steps with stages and decisions above, live and committed accuracy below, on one time axis."""
    timeline = case.timeline
    slots = len(timeline.stages[0])
    steps = np.arange(len(timeline.stages)) + 1
    # Slots.
    figure, [lanes, accuracy] = new_figure(2.9 + 0.42 * slots, [0.42 * slots + 0.3, 2.0])
    stages = np.array(timeline.stages)
    for slot in range(slots):
        # One bar for each stretch of equal stages: a bar for each step would leave no room for letters.
        # A replacement puts another blueprint into the slot without a change of its stage.
        looks = [
            (row[slot], kinds[slot])
            for row, kinds in zip(timeline.stages, timeline.blueprints, strict=True)
        ]
        edges = [step for step in range(1, len(looks)) if looks[step] != looks[step - 1]]
        for start, stop in pairwise([0, *edges, len(looks)]):
            if stages[start, slot] != Stage.DORMANT:
                _lane(lanes, slot, start, stop, timeline)
    handles = _decisions(lanes, timeline)
    lanes.set_yticks(range(slots), [f"slot {k}" for k in range(slots)])
    lanes.set_ylim(slots - 0.45, -0.75)
    lanes.set_title("Stages after each step, decisions above")
    lanes.tick_params(axis="x", labelbottom=False, length=0)
    lanes.spines["bottom"].set_visible(False)
    # Accuracies.
    # None is a step without a measurement: NaN leaves a gap, where 0 would draw a fall.
    live, committed = (
        np.array([np.nan if value is None else value for value in values])
        for values in (timeline.live_accuracy_pct, timeline.committed_accuracy_pct)
    )
    handles += accuracy.plot(
        steps, live, color=ORANGE, linestyle="--", linewidth=1.4, zorder=3, label="live"
    )
    handles += accuracy.plot(steps, committed, color=BLUE, label="committed")
    _axis(accuracy, "Validation accuracy", "step (host epoch)", "accuracy (points)")
    # Rollbacks, through both plots.
    for step in timeline.rollback_steps:
        for plot in (lanes, accuracy):
            plot.axvline(step + 1, color=RED, linewidth=1.2, zorder=1.5)
    if timeline.rollback_steps:
        handles.append(Line2D([], [], color=RED, linewidth=1.2, label="rollback"))
    # Legend and words.
    lanes.set_xlim(0.3, len(steps) + 0.7)
    square = {"marker": "s", "linestyle": "none", "markersize": 8}
    present = {stage: look for stage, look in STAGES.items() if (stages == stage).any()}
    for stage, (fill, _, letter) in present.items():
        handles.append(Line2D([], [], color=fill, label=f"{letter} {stage.name.lower()}", **square))
    legend_below(figure, handles, columns=4)
    decisions = "; ".join(
        f"step {d.step + 1} {d.op.lower()} slot {d.slot}" for d in timeline.decisions
    )
    return Drawn(
        f"How the host {'won' if case.gain > 0 else 'lost'}", decisions or "No decision.", figure
    )


def _lane(plot: Axes, slot: int, start: int, stop: int, timeline: Timeline) -> None:
    """Draw one bar: colour and letter of the stage, and the blueprint where there is one, and room."""
    fill, ink, letter = STAGES[Stage(timeline.stages[start][slot])]
    plot.add_patch(
        Rectangle(
            (start + 0.54, slot - 0.28), stop - start - 0.08, 0.56, facecolor=fill, linewidth=0
        )
    )
    blueprint = timeline.blueprints[start][slot]
    # The longest text that fits: a short stage keeps its colour and legend.
    room = (stop - start) / len(timeline.stages) * LANE_LETTERS
    texts = ([f"{letter} {printable(blueprint)}"] if blueprint is not None else []) + [letter]
    text = next((text for text in texts if len(text) <= room), "")
    plot.text(
        (start + stop) / 2 + 0.5, slot, text, ha="center", va="center", fontsize=7.5, color=ink
    )


def _decisions(plot: Axes, timeline: Timeline) -> list[Line2D]:
    """Draw markers above the lanes, hollow where a gate refused; return the legend's entries."""
    handles: dict[str, Line2D] = {}
    for decision in timeline.decisions:
        # One entry of the legend for all refusals, since hollow says refused whatever the mark.
        marker, label = DECISION_MARKERS[decision.op]
        refused = decision.refused_by_gate is not None
        face = "none" if refused else INK
        key = "refused by a gate" if refused else label
        style = {
            "marker": marker,
            "color": INK,
            "markerfacecolor": face,
            "markersize": 5,
            "linestyle": "none",
        }
        plot.plot([decision.step + 1], [decision.slot - 0.4], clip_on=False, **style)
        handles.setdefault(key, Line2D([], [], label=key, **style))
    return list(handles.values())


# --- evaluation ------------------------------------------------------------------------------------------------------


def _intervals(plot: Axes, rows: Sequence[tuple[str, Interval, str]], form: str) -> None:
    """Draw one row for each name with its interval and colour, from below, and its estimate beside it."""
    for row, (_, score, colour) in enumerate(rows):
        plot.plot(
            [score.low, score.high],
            [row, row],
            color=colour,
            linewidth=4,
            solid_capstyle="butt",
            alpha=0.45,
        )
        plot.plot([score.estimate], [row], "o", color=colour, markersize=6)
        text = f"{score.estimate:{form}}"
        # At the edge of the axes and not beside the mark, where long intervals would cross the text.
        plot.annotate(
            text, (1.0, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5
        )
    plot.set_yticks(range(len(rows)), [name for name, *_ in rows])
    plot.set_ylim(-0.6, len(rows) - 0.4)


def _returns(run: RunRecord) -> Drawn | None:
    """Draw the mean return of everyone that played a Gymnasium environment, with its interval."""
    if run.gym is None:
        return None
    # Reversed, since rows are drawn from below and the first is to be on top.
    means = {name: result.mean_return for name, result in run.gym.policies.items()}
    figure, [plot] = new_figure(0.6 + 0.35 * len(means))
    looks = {name: policy_look(name) for name in reversed(means)}
    _intervals(
        plot, [(label, means[name], colour) for name, (label, colour, _) in looks.items()], ".4g"
    )
    _axis(plot, "Mean return", "return", "")
    returns = ", ".join(
        f"{name} {x.estimate:.4g} [{x.low:.4g}, {x.high:.4g}]" for name, x in means.items()
    )
    title = f"Return in {run.gym.eval_seeds} fresh episodes"
    return Drawn(title, f"{returns}. Intervals: 95 % over episodes.", figure)


def _result(run: RunRecord) -> Drawn | None:
    """Draw for each group of tasks the score of PPO and of those beside it, with intervals, the lowest first."""
    if run.evaluation is None or LEARNED not in run.evaluation.policies:
        return None
    scores = {group: compared(standings) for group, standings in run.evaluation.standings.items()}
    # One plot for each group, as high as it has rows.
    heights = [*map(len, scores.values())]
    figure, axes = new_figure(0.6 + sum(0.35 + 0.24 * rows for rows in heights), heights)
    for plot, (group, of_group) in zip(axes, scores.items(), strict=True):
        placed = sorted(of_group.items(), key=lambda row: row[1].estimate)
        _intervals(
            plot, [(name, score, RESULT_COLOURS.get(name, GREY)) for name, score in placed], ".1f"
        )
        _axis(
            plot,
            f"{GROUPS[group].capitalize()} ({run.evaluation.standings[group].tasks})",
            "",
            "",
            grid="x",
        )
    axes[-1].set_xlabel("score on test splits (points)")
    sentences = [
        f"{GROUPS[group].capitalize()}: {_listed({name: x.estimate for name, x in of_group.items()}, '.1f')}"
        for group, of_group in scores.items()
    ]
    return Drawn(
        "PPO beside those it is compared with",
        f"Intervals: 95 % over tasks. {'. '.join(sentences)}.",
        figure,
    )


# --- what is grown, and at what cost -------------------------------------------------------------------------------


def _grown(run: RunRecord) -> Drawn | None:
    """Draw for each kind of task how many modules of each blueprint the learned policy keeps, a mean over hosts."""
    if run.evaluation is None or LEARNED not in run.evaluation.actions:
        return None
    # A mean per host: kinds have different numbers of hosts, and sums would rank kinds by that.
    counts, hosts = fossilized_by_kind(run.evaluation)
    # Kinds with few hosts would make a long figure of means that say little.
    counts = {kind: counts[kind] for kind, _ in hosts.most_common(MOST_KINDS)}
    names = [name for name, _ in sum(counts.values(), Counter[str]()).most_common()]
    if not names:
        return None
    figure, [plot] = new_figure(1.1 + 0.28 * len(counts))
    # Bars side by side, a colour for each blueprint.
    left = np.zeros(len(counts))
    handles: list[Line2D] = []
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        # Colours repeat after eight; hatching tells the second round from the first.
        hatch = None if place < len(COLOURS) else "///"
        widths = np.array([kind_counts[name] / hosts[kind] for kind, kind_counts in counts.items()])
        plot.barh(range(len(counts)), widths, left=left, color=colour, hatch=hatch, height=0.7)
        left += widths
        handles.append(
            Line2D(
                [],
                [],
                color=colour,
                marker="s",
                linestyle="none",
                markersize=8,
                label=printable(name),
            )
        )
    plot.set_yticks(range(len(counts)), [printable(kind) for kind in counts])
    plot.set_ylim(len(counts) - 0.5, -0.5)
    _axis(plot, "", "modules kept per host", "", grid="x")
    # Of the whole figure: names of kinds may leave the plot little room.
    figure.suptitle(
        "What is grown, by kind of task", x=0.02, ha="left", fontsize=9.5, fontweight="bold"
    )
    legend_below(figure, handles)
    sentences = [
        f"{kind}: {', '.join(f'{name} {count / hosts[kind]:.2f}' for name, count in kind_counts.most_common(3))}"
        for kind, kind_counts in counts.items()
    ]
    shown = f"; the {MOST_KINDS} kinds with most hosts" if len(hosts) > MOST_KINDS else ""
    description = f"Modules that the learned policy keeps, mean per held-out host{shown}. {'; '.join(sentences)}."
    return Drawn("What is grown, by kind of task", description, figure)


def fossilized_by_kind(evaluation: Evaluation) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Count the blueprints that the learned policy fossilized on the tasks of each kind, and the hosts of the kind."""
    names = [blueprint.name for blueprint in blueprints_of(evaluation.host.family)]
    counts = defaultdict[str, Counter[str]](Counter)
    hosts = Counter[str]()
    for row, actions in zip(evaluation.rows, evaluation.actions[LEARNED], strict=False):
        kind = evaluation.tasks[row].kind
        hosts[kind] += 1
        # A fossilization names its slot only: the blueprint is that of the last germination there.
        living: dict[int, str] = {}  # blueprint by slot
        for op, slot, blueprint, *_ in (map(int, action.split()) for action in actions):
            if op == Op.GERMINATE:
                living[slot] = names[blueprint]
            elif op == Op.FOSSILIZE and slot in living:
                counts[kind][living[slot]] += 1
    return {kind: counts[kind] for kind in hosts}, hosts


def _cost(run: RunRecord) -> Drawn | None:
    """Draw the score of each policy (mean, 95 % interval) against parameters; the area is the cost of training."""
    if run.evaluation is None:
        return None
    policies = run.evaluation.policies
    # Areas and not radii: a mark of twice the radius would look four times as costly.
    largest = max(policy.training_flops for policy in policies.values())
    figure, [plot] = new_figure(2.6 + 0.17 * len(policies) / 2)
    points = {
        name: (policy.params, policy.test_accuracy_pct.estimate)
        for name, policy in policies.items()
    }
    # The front below the policies.
    front = pareto_front(points)
    plot.plot(
        *zip(*[points[name] for name in front], strict=True),
        color=GREY,
        linewidth=1.0,
        drawstyle="steps-post",
    )
    # Each policy with its interval; the area says what training cost.
    handles: list[Line2D] = []
    for name, policy in policies.items():
        interval = policy.test_accuracy_pct
        label, colour, marker = policy_look(name)
        size = 4.0 + 8.0 * float(np.sqrt(policy.training_flops / largest)) if largest else 7.0
        look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "none"}
        handles.append(
            Line2D([], [], label=label + (" *" if name in front else ""), markersize=7, **look)
        )
        error = [[interval.estimate - interval.low], [interval.high - interval.estimate]]
        plot.errorbar(
            policy.params,
            interval.estimate,
            yerr=error,
            elinewidth=1.2,
            capsize=2,
            markersize=size,
            **look,
        )
    title = "Score, size and cost (* on the Pareto front)"
    _axis(plot, title, "parameters of the committed network", "test accuracy (points)", grid="both")
    legend_below(figure, handles)
    sentences = [
        f"{policy_look(name)[0]} {policy.test_accuracy_pct.estimate:.1f} points, {policy.params:,.0f} parameters, "
        f"{policy.training_flops:.3g} FLOPs of training"
        for name, policy in policies.items()
    ]
    return Drawn(
        "Score, size and cost",
        f"The area of a mark is the cost of training. {'; '.join(sentences)}.",
        figure,
    )
