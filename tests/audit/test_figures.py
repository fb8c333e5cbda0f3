"""Figures: no text is cut off, however much there is to show. That drawing depends on data alone: test_report.py."""

from dataclasses import replace

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg

from simic.audit import drawing, figures
from simic.growth.life.vocabulary import Stage

from .defects import update
from .synthetic import STEPS

KINDS = {  # the longest names of kinds
    "held_out": ("pairs_near", "pairs_far", "only_order_bands_exponentiated", "brightness", "gratings", "same",
                 "digits", "either"),
    "held_out_kinds": ("pairs_middle", "digits_clutter", "digits_permuted", "digits_mislabelled", "digits_negative"),
}  # fmt: skip


def crowded(plant):
    """Return a run with thirteen kinds, floors that nearly coincide, validations and an episode of 40 steps."""
    evaluation = plant.run.evaluation
    scores = evaluation.standings["held_out"].by_kind["kind-0"]
    standings = {
        group: evaluation.standings[group].model_copy(
            update={"by_kind": dict.fromkeys(kinds, scores)}
        )
        for group, kinds in KINDS.items()
    }
    case = evaluation.cases[0]
    fields = ("stages", "blueprints", "live_accuracy_pct", "committed_accuracy_pct")
    columns = {name: getattr(case.timeline, name) for name in fields}
    longer = {name: values + (40 - STEPS) * values[-1:] for name, values in columns.items()}
    cases = (case, case.model_copy(update={"timeline": case.timeline.model_copy(update=longer)}))
    floors = {"static": 60.0, "random_legal": 60.2, "tuned_rule": 60.4, "patient": 75.0}
    validated = update("validation_accuracy", [5, 11], 70.0)(plant)
    return replace(
        update("best_iteration", slice(None), 6.0)(validated).run,
        evaluation=evaluation.model_copy(update={"standings": standings, "cases": cases}),
        headroom=plant.run.headroom.model_copy(update={"validation": floors}),
    )


def test_no_text_is_cut_off(plant):
    with matplotlib.rc_context(drawing.STYLE):
        drawn = figures.drawings(crowded(plant))
        assert len(drawn) == 6
        for name, (*_, figure) in drawn.items():
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            box = figure.get_tightbbox(canvas.get_renderer())  # of all that is drawn, in inches
            width, height = figure.get_size_inches()
            assert min(box.x0, box.y0) >= -0.01, name
            assert box.x1 <= width + 0.01 and box.y1 <= height + 0.01, name


def test_a_single_iteration_or_value_can_be_drawn(clean):
    """Of what is measured in training: the evaluation is as it was."""
    tables = {name: getattr(clean, name) for name in ("updates", "episodes", "steps")}
    first = {name: table.where(table.column("iteration") == 0) for name, table in tables.items()}
    single = replace(clean, **first, evaluation=None, headroom=None)
    panels = figures.panels_of(single)
    assert [panel.name for panel in panels] == ["learning"]
    assert all("<svg" in panel.document for panel in panels)


def test_a_replacement_begins_another_bar(clean):
    """The slot stays GERMINATED when another blueprint replaces the one that it has."""
    case = clean.evaluation.cases[0]
    timeline = case.timeline.model_copy(
        update={
            "stages": ((int(Stage.GERMINATED),),) * STEPS,
            "blueprints": (("one",),) * 3 + (("two",),) * (STEPS - 3),
            "decisions": (),
        }
    )
    with matplotlib.rc_context(drawing.STYLE):
        _, _, figure = figures.timeline_figure(case.model_copy(update={"timeline": timeline}))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in texts if "one" in text or "two" in text] == texts and len(texts) == 2


def test_the_figure_of_the_result_has_the_numbers_of_the_standings(clean):
    with matplotlib.rc_context(drawing.STYLE):
        _, description, figure = figures.drawings(clean)["result"]
    for plot, standings in zip(figure.axes, clean.evaluation.standings.values(), strict=True):
        ppo = standings.policies["learned"].score
        label = next(text for text in plot.get_yticklabels() if text.get_text() == "PPO")
        [row] = [line for line in plot.texts if line.get_position()[1] == label.get_position()[1]]
        assert f"{ppo.estimate:.1f}" in row.get_text()
        assert f"PPO {ppo.estimate:.1f}" in description


def test_of_many_kinds_those_with_most_hosts_are_drawn(clean, monkeypatch):
    monkeypatch.setattr(figures, "MOST_KINDS", 1)
    evaluation = clean.evaluation
    last = len(evaluation.actions["learned"]) - 1
    tasks = (*evaluation.tasks, evaluation.tasks[0].model_copy(update={"kind": "rare"}))
    rows = [*evaluation.rows]
    rows[last] = len(tasks) - 1
    changed = evaluation.model_copy(update={"tasks": tasks, "rows": tuple(rows)})
    with matplotlib.rc_context(drawing.STYLE):
        run = replace(clean, evaluation=changed)
        _, description, figure = figures.drawings(run)["grown"]
    assert len(figure.axes[0].get_yticklabels()) == 1
    assert "the 1 kinds with most hosts" in description and "rare" not in description
