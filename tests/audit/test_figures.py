"""Figures: texts never overlap, and drawing depends on data alone."""

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from simic.audit import drawing, figures

from .synthetic import evaluation, timeline


def test_drawing_ignores_the_users_matplotlib_settings():
    plain = drawing.render(DRAWN["pareto"])
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None, "axes.facecolor": "red", "lines.linewidth": 9}):
        assert drawing.render(DRAWN["pareto"]) == plain


def drawn_texts(figure):
    """Return every text that is drawn, with its box in pixels; ticks outside the view are not drawn."""
    figure.canvas.draw()
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-9 * (high - low)
            outside = [t for t in axis.get_major_ticks() if not low - slack <= t.get_loc() <= high + slack]
            hidden |= {label for tick in outside for label in (tick.label1, tick.label2)}
    texts = [t for t in figure.findobj(matplotlib.text.Text) if t not in hidden and t.get_visible()]
    renderer = figure.canvas.get_renderer()
    box = matplotlib.text.Text.get_window_extent  # an annotation's own would include its line
    return [(t.get_text(), box(t, renderer)) for t in texts if t.get_text().strip()]


def texts_that_overlap(figure):
    """Return pairs of texts whose boxes, less the air around the letters, intersect."""
    boxes = [(text, box.shrunk(0.98, 0.85)) for text, box in drawn_texts(figure)]
    return [(a[0], b[0]) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a[1].overlaps(b[1])]


def clipped_texts(figure):
    """Return texts that reach beyond the figure's edge."""
    width, height = figure.canvas.get_width_height()
    inside = matplotlib.transforms.Bbox([[-1, -1], [width + 1, height + 1]])
    return [text for text, b in drawn_texts(figure) if not (inside.contains(*b.min) and inside.contains(*b.max))]


ITERATIONS = np.arange(12.0)
FLOORS = {"static": 60.0, "random_legal": 60.2, "tuned_rule": 60.4, "patient": 75.0}
COMPONENTS = {
    name: np.full(12, 0.01 * k)
    for k, name in enumerate(("shaping", "rent", "alpha_shock", "intervention", "death", "x"))
}
KINDS = {  # the longest names of kinds
    "held_out": ("pairs_near", "pairs_far", "pairs_mislabelled", "brightness", "gratings", "same", "digits", "either"),
    "held_out_kinds": ("pairs_middle", "digits_clutter", "digits_permuted", "digits_mislabelled", "digits_negative"),
}


def standings():
    """Return the standings on eight kinds that were trained on and five that were not."""
    found = evaluation().standings
    level = found["held_out"].by_kind["kind-0"]
    return {
        group: found[group].model_copy(
            update={
                "by_kind": {kind: {n: v + k * (v - 70.0) for n, v in level.items()} for k, kind in enumerate(kinds)}
            }
        )
        for group, kinds in KINDS.items()
    }


VALIDATIONS = [figures.Validation(n, 70.0, n == 6) for n in (6, 12)]


def long(short):
    """Return the same stages, one step each, then the last one up to 40 steps."""
    more = 40 - len(short.stages)
    fields = ("stages", "blueprints", "alphas", "live_accuracy_pct", "committed_accuracy_pct")
    return short.model_copy(update={name: getattr(short, name) + more * getattr(short, name)[-1:] for name in fields})


DRAWN = {
    "gap": lambda: figures.gap(standings()),
    "learning": lambda: figures.learning(ITERATIONS, 60 + ITERATIONS[:, None] + np.arange(5.0), FLOORS, VALIDATIONS),
    "health": lambda: figures.health(ITERATIONS, {"approx_kl": 0.01 * np.ones(12)}, 0.015),
    "entropy": lambda: figures.entropy(ITERATIONS, {"op": np.linspace(1, 0, 12), "slot": np.full(12, np.nan)}),
    "rewards": lambda: figures.rewards(ITERATIONS, COMPONENTS),
    "growth": lambda: figures.growth(timeline()),
    "growth of a long episode": lambda: figures.growth(long(timeline())),
    "result": lambda: figures.result(standings()),
    "pareto": lambda: figures.pareto(evaluation()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_overlaps_or_is_cut_off(name):
    with matplotlib.rc_context(drawing.STYLE):
        figure = DRAWN[name]()
        FigureCanvasAgg(figure)
        assert texts_that_overlap(figure) == clipped_texts(figure) == []


@pytest.mark.parametrize("name", DRAWN)
def test_a_single_iteration_or_value_can_be_drawn(name):
    single = {
        "learning": lambda: figures.learning(np.zeros(1), np.full((1, 3), 50.0), {}),
        "health": lambda: figures.health(np.zeros(1), {}, None),
        "entropy": lambda: figures.entropy(np.zeros(1), {"op": np.array([np.nan])}),
        "rewards": lambda: figures.rewards(np.zeros(1), {"a": np.zeros(1), "b": np.ones(1)}),
    }.get(name, DRAWN[name])
    assert "<svg" in drawing.render(single)
