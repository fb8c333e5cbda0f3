"""The figures of one run with their descriptions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from simic.audit import drawing, figures
from simic.audit.figures import HEALTH, Validation, Values, policy_look
from simic.audit.record import RunRecord
from simic.errors import printable
from simic.evaluation.endpoints import COMMON, ORACLE_TASK, compared
from simic.evaluation.gym import RANDOM
from simic.evaluation.gym_peer import PEER
from simic.evaluation.page import GROUPS
from simic.evaluation.result import LEARNED, Evaluation
from simic.growth.life.vocabulary import Action, Op
from simic.growth.networks.blueprints import blueprints_of

FLOORS = ("static", "random_legal")
GYM_FLOORS = (RANDOM, PEER)


class Panel(NamedTuple):
    """Hold one figure as an element of the page and as a file; ``description`` says in words what it shows."""

    name: str
    description: str
    inline: Markup
    document: str


def panels_of(run: RunRecord) -> list[Panel]:
    """Draw every figure that the run has data for."""
    made = [_returns(run), _result(run), _gap(run), _learning(run), _health(run), _entropy(run), _rewards(run)]
    return [panel for panel in (*made, *_growth(run), _pareto(run)) if panel is not None]


def _panel(name: str, title: str, description: str, draw: Callable[[], Figure]) -> Panel:
    said, rendered = printable(description), drawing.render(draw)
    return Panel(name, said, Markup(drawing.svg_element(rendered, name, title, said)), drawing.svg_file(rendered))


def _returns(run: RunRecord) -> Panel | None:
    if run.gym is None:
        return None
    means = {name: result.mean_return for name, result in run.gym.policies.items()}
    said = ", ".join(f"{name} {x.estimate:.4g} [{x.low:.4g}, {x.high:.4g}]" for name, x in means.items())
    title = f"Return in {run.gym.eval_seeds} fresh episodes"
    return _panel("result", title, f"{said}. Intervals: 95 % over episodes.", partial(figures.returns, means))


def _result(run: RunRecord) -> Panel | None:
    if run.evaluation is None or LEARNED not in run.evaluation.policies:
        return None
    standings = run.evaluation.standings
    scores = {
        group: {name: score.estimate for name, score in compared(found).items()} for group, found in standings.items()
    }
    said = [f"{GROUPS[group].capitalize()}: {_listed(of_group, '.1f')}" for group, of_group in scores.items()]
    description = f"Intervals: 95 % over tasks. {'. '.join(said)}."
    return _panel("result", "PPO beside those it is compared with", description, partial(figures.result, standings))


def _gap(run: RunRecord) -> Panel | None:
    if run.evaluation is None or LEARNED not in run.evaluation.policies:
        return None
    standings, kept = run.evaluation.standings, kept_by_kind(run.evaluation)
    said = [
        f"{kind}: common {scores[COMMON]:.1f}, learned {scores[LEARNED]:.1f}, oracle {scores[ORACLE_TASK]:.1f}, "
        f"keeps {', '.join(f'{name} {count}' for name, count in kept[kind].most_common(3)) or 'nothing'}"
        for group in standings.values()
        for kind, scores in group.by_kind.items()
    ]
    title = "How much of the gap is closed, by kind of task"
    return _panel("gap", title, "; ".join(said) + ".", partial(figures.gap, standings))


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


def _learning(run: RunRecord) -> Panel | None:
    if not len(run.episodes):
        return None
    floors = {COMMON if name == "common" else name: value for name, value in _on_validation(run).items()}
    levels = ", ".join(f"{policy_look(name)[0]} {value:.1f}" for name, value in floors.items())
    if run.params.prepare.is_gym:
        return _learning_of_gym(run)
    iterations, committed = run.episodes.column("iteration") + 1.0, run.episodes.column("committed_accuracy")
    mean = np.nanmean(committed, axis=1)
    description = (
        f"Mean over hosts from {mean[0]:.1f} in the first to {mean[-1]:.1f} points in the last iteration, best "
        f"{mean.max():.1f}; dark band: middle half of the hosts, light band: all. Lines: {levels or 'no baselines'}."
    )
    played = validations(run)
    if played:
        description += " Diamonds: score of the validation episodes; the ring is on the one that chose the checkpoint."
    title = "Committed validation accuracy per iteration"
    draw = partial(figures.learning, iterations, committed, floors, played, run.params.train.envs)
    return _panel("learning", title, description, draw)


def _learning_of_gym(run: RunRecord) -> Panel | None:
    """Draw returns; iterations in which no episode ended are left out."""
    returns = run.episodes.column("return")
    some = np.isfinite(returns).any(axis=1)
    if not some.any():
        return None
    means = np.nanmean(returns[some], axis=1)
    played = run.gym.policies if run.gym else {}
    floors = {name: played[name].mean_return.estimate for name in GYM_FLOORS if name in played}
    description = (
        f"Mean over environments from {means[0]:.4g} in the first to {means[-1]:.4g} in the last iteration; dark band: "
        f"middle half, light band: all. Diamonds: greedy validation; the ring is on the one that chose the checkpoint."
    )
    draw = partial(
        figures.learning,
        run.episodes.column("iteration")[some] + 1.0,
        returns[some],
        floors,
        validations(run),
        words=("Return of episodes that ended", "iteration", "return"),
    )
    return _panel("learning", "Return per iteration", description, draw)


def validations(run: RunRecord) -> list[Validation]:
    """Return the validations that were played."""
    if not len(run.updates):
        return []
    best = run.updates.column("best_iteration")[-1]
    scores = zip(run.updates.column("iteration") + 1, run.updates.column("validation_accuracy"), strict=True)
    return [Validation(int(done), float(score), bool(done == best)) for done, score in scores if np.isfinite(score)]


def _on_validation(run: RunRecord) -> Mapping[str, float]:
    """Return what PPO has to pass: scores on the validation tasks, or without these on the held-out hosts."""
    if run.headroom is not None and run.headroom.validation:
        return run.headroom.validation
    policies = run.evaluation.policies.items() if run.evaluation else ()
    return {name: policy.val_accuracy_pct for name, policy in policies if name in FLOORS}


def _health(run: RunRecord) -> Panel | None:
    series = {name: run.updates.column(name) for name in HEALTH if name in run.updates}
    if not series:
        return None
    said = f"Last measured: {_listed(_last(series), '.3g')}."
    iterations, target = run.updates.column("iteration") + 1.0, run.params.train.ppo.target_kl
    return _panel("health", "Health of the updates", said, partial(figures.health, iterations, series, target))


def _entropy(run: RunRecord) -> Panel | None:
    measured = run.updates.below("entropy_by_head")
    if not measured:
        return None
    order = [*Action._fields, *measured]
    heads = {name: measured[name] for name in sorted(measured, key=order.index)}
    draw = partial(figures.entropy, run.updates.column("iteration") + 1.0, heads)
    said = f"1 is uniform, 0 always the same, no dot: no choice. Last measured: {_listed(_last(heads), '.2f')}."
    return _panel("entropy", "Normalised entropy of each action head", said, draw)


def _last(series: Mapping[str, Values]) -> dict[str, float | None]:
    """Return the last finite value of each series."""
    return {name: next((float(x) for x in values[::-1] if np.isfinite(x)), None) for name, values in series.items()}


def _rewards(run: RunRecord) -> Panel | None:
    """Draw each component per episode, mean over hosts, without those that are always 0."""
    parts = {name: values for name, values in run.steps.below("components").items() if values.any()}
    if not parts:
        return None
    iterations, valid = run.steps.column("iteration"), run.steps.column("valid")
    axis = np.unique(iterations)
    paid = {
        name: np.array([np.where(valid, values, 0.0)[iterations == i].sum(axis=0).mean() for i in axis])
        for name, values in parts.items()
    }
    said = f"Per episode in the last iteration: {_listed(_last(paid), '+.2f')}."
    return _panel("rewards", "Reward by component", said, partial(figures.rewards, axis + 1.0, paid))


def _listed(values: Mapping[str, float | None], form: str) -> str:
    return ", ".join(
        f"{name} not measured" if value is None else f"{name} {value:{form}}" for name, value in values.items()
    )


def _growth(run: RunRecord) -> list[Panel]:
    """Draw one figure for each host that is shown."""
    return [
        _panel(
            f"growth-{number}",
            f"How the host {'won' if case.gain > 0 else 'lost'}",
            "; ".join(f"step {d.step + 1} {d.op.lower()} slot {d.slot}" for d in case.timeline.decisions)
            or "No decision.",
            partial(figures.growth, case.timeline),
        )
        for number, case in enumerate(run.evaluation.cases if run.evaluation else ())
    ]


def _pareto(run: RunRecord) -> Panel | None:
    if run.evaluation is None:
        return None
    said = [
        f"{policy_look(name)[0]} {policy.test_accuracy_pct.estimate:.1f} points, {policy.params:,.0f} parameters"
        for name, policy in run.evaluation.policies.items()
    ]
    return _panel("pareto", "Accuracy against size", "; ".join(said) + ".", partial(figures.pareto, run.evaluation))
