"""Figures: texts never overlap and none is cut off. That drawing depends on data alone: test_report.py."""

from dataclasses import replace

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from simic.audit import drawing, figures
from simic.audit.record import Table

from .synthetic import STEPS


def drawn_texts(figure):
    """Return every text that is drawn, with its box in pixels; ticks outside the view are not drawn."""
    figure.canvas.draw()
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-9 * (high - low)
            outside = [
                t for t in axis.get_major_ticks() if not low - slack <= t.get_loc() <= high + slack
            ]
            hidden |= {label for tick in outside for label in (tick.label1, tick.label2)}
    texts = [t for t in figure.findobj(matplotlib.text.Text) if t not in hidden and t.get_visible()]
    renderer = figure.canvas.get_renderer()
    box = matplotlib.text.Text.get_window_extent  # an annotation's own would include its line
    return [(t.get_text(), box(t, renderer)) for t in texts if t.get_text().strip()]


def illegible_texts(figure):
    """Return pairs of texts whose boxes, less the air around the letters, intersect, and texts that reach beyond the
    figure's edge.
    """
    drawn, (width, height) = drawn_texts(figure), figure.canvas.get_width_height()
    boxes = [(text, box.shrunk(0.98, 0.85)) for text, box in drawn]
    inside = matplotlib.transforms.Bbox([[-1, -1], [width + 1, height + 1]])
    clipped = [
        text for text, b in drawn if not (inside.contains(*b.min) and inside.contains(*b.max))
    ]
    return clipped + [
        (a[0], b[0]) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a[1].overlaps(b[1])
    ]


KINDS = {  # the longest names of kinds
    "held_out": ("pairs_near", "pairs_far", "only_order_bands_exponentiated", "brightness", "gratings", "same",
                 "digits", "either"),
    "held_out_kinds": ("pairs_middle", "digits_clutter", "digits_permuted", "digits_mislabelled", "digits_negative"),
}  # fmt: skip


def crowded(run):
    """Return the run with all that figures may have to hold: eight kinds that were trained on and five that were not,
    floors that nearly coincide, validations, many components, a head without a choice, an episode of 40 steps.
    """
    level = run.evaluation.standings["held_out"].by_kind["kind-0"]
    standings = {
        group: run.evaluation.standings[group].model_copy(
            update={
                "by_kind": {
                    kind: {n: v + k * (v - 70.0) for n, v in level.items()}
                    for k, kind in enumerate(kinds)
                }
            }
        )
        for group, kinds in KINDS.items()
    }
    case = run.evaluation.cases[0]
    fields = ("stages", "blueprints", "live_accuracy_pct", "committed_accuracy_pct")
    longer = {
        name: old + (40 - STEPS) * old[-1:]
        for name in fields
        for old in [getattr(case.timeline, name)]
    }
    cases = (case, case.model_copy(update={"timeline": case.timeline.model_copy(update=longer)}))
    floors = {"static": 60.0, "random_legal": 60.2, "tuned_rule": 60.4, "patient": 75.0}
    score = np.where(np.isin(np.arange(len(run.updates)), (5, 11)), 70.0, np.nan)
    updates = run.updates.columns | {
        "validation_accuracy": score,
        "best_iteration": np.full(len(score), 6.0),
    }
    return replace(
        run,
        evaluation=run.evaluation.model_copy(update={"standings": standings, "cases": cases}),
        headroom=run.headroom.model_copy(update={"validation": floors}),
        updates=Table(updates),
    )


def test_no_text_overlaps_or_is_cut_off(clean):
    with matplotlib.rc_context(drawing.STYLE):
        drawn = figures.drawings(crowded(clean))
        assert len(drawn) == 6
        for name, (*_, figure) in drawn.items():
            FigureCanvasAgg(figure)
            assert illegible_texts(figure) == [], name


def test_a_single_iteration_or_value_can_be_drawn(clean):
    """Of what is measured in training: the evaluation is as it was."""
    tables = {name: getattr(clean, name) for name in ("updates", "episodes", "steps")}
    first = {name: table.where(table.column("iteration") == 0) for name, table in tables.items()}
    single = replace(clean, **first, evaluation=None, headroom=None)
    panels = figures.panels_of(single)
    assert [panel.name for panel in panels] == ["learning"]
    assert all("<svg" in panel.document for panel in panels)
