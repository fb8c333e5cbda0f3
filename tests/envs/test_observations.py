"""Bounds, flags and the table of the observation; values are those of the reference."""

import math
from dataclasses import fields, replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simic.certify import life
from simic.certify.epochs import Validation
from simic.certify.observations import History, Sight, Trial, features
from simic.envs import observations
from simic.envs.observations import View, columns, observe
from simic.envs.tracker import Tracker
from simic.growth.life.vocabulary import Blend, Op, Ramp, Slots, Stage

ENVS, SLOTS, KINDS, T = 3, 2, 4, 12
# Where a field of the slots has another name in the reference, and which fields are the slot's own there.
OF_SEED = {"contribution_velocity": "velocity", "steps_since_measured": "unmeasured", "gradient_healthy": "healthy"}
OF_SLOT = ("stage", "dwell", "germinations", "stage_accuracy")
EXTREME = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1.0, 1e30, -1e30, 0.37, 99.0])


def view(slots: Slots | None = None, **changes) -> View:
    nothing = torch.full((ENVS,), torch.nan)
    plain = View(
        slots=slots or Slots.empty(ENVS, SLOTS),
        tracker=Tracker.empty(ENVS),
        step=0,
        episode_steps=T,
        chance_loss=torch.full((ENVS,), math.log(10)),
        train_loss=nothing,
        train_accuracy=nothing,
        op=torch.full((ENVS,), -1),
        succeeded=torch.ones(ENVS, dtype=torch.bool),
        interaction=torch.full((ENVS, SLOTS), torch.nan),
        boost=torch.full((ENVS, SLOTS), torch.nan),
        seed_params=torch.zeros(ENVS, SLOTS, dtype=torch.int64),
        host_params=100,
        param_budget=4.0,
        tried=torch.zeros(ENVS, KINDS, dtype=torch.int64),
        gained=torch.full((ENVS, KINDS), torch.nan),
        alignment=torch.zeros(ENVS, KINDS),
    )
    return replace(plain, **changes)


def named(observation: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(zip((name for name, _ in columns(SLOTS, KINDS)), observation.T, strict=True))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_every_column_stays_in_its_range_whatever_was_measured(data):
    """Accuracies in points, losses and gradients of any value, counters of any size, all stages."""
    slots = Slots.empty(ENVS, SLOTS)
    changes = {}
    for field in fields(Slots):
        column = getattr(slots, field.name)
        if field.name in ("contribution_velocity", "gradient_ratio"):
            value = torch.full_like(column, data.draw(EXTREME))
            changes[field.name] = value.abs() if field.name == "gradient_ratio" else value
        elif column.dtype == torch.int64 and field.name not in ("stage", "blueprint", "operator"):
            changes[field.name] = torch.full_like(column, data.draw(st.integers(0, 10**6)))
        elif column.dtype == torch.float32:
            unit = field.name.startswith(("alpha", "first"))
            changes[field.name] = torch.full_like(column, data.draw(st.floats(0, 1 if unit else 100, width=32)))
    stage = torch.full_like(slots.stage, data.draw(st.integers(0, len(Stage) - 1)))
    slots = replace(slots, stage=stage, blueprint=stage % 3 - 1, **changes)
    loss = abs(data.draw(EXTREME))
    tracker = replace(
        Tracker.empty(ENVS),
        losses=torch.full((ENVS, 10), loss),
        accuracies=torch.linspace(0, 100, 10).repeat(ENVS, 1),
        plateau=torch.full((ENVS,), 10**6),
        best_accuracy=torch.full((ENVS,), 100.0),
    )
    seen = observe(
        view(
            slots,
            tracker=tracker,
            step=data.draw(st.integers(0, T)),
            train_loss=torch.full((ENVS,), loss),
            train_accuracy=torch.full((ENVS,), 100.0),
            seed_params=torch.full((ENVS, SLOTS), data.draw(st.integers(0, 10**12))),
            op=torch.tensor([-1, 0, len(Op) - 1]),
            tried=torch.full((ENVS, KINDS), data.draw(st.integers(0, 10**6))),
            gained=torch.full((ENVS, KINDS), data.draw(EXTREME)),
        )
    )
    assert seen.dtype == torch.float32
    for name, row in columns(SLOTS, KINDS):
        column = named(seen)[name]
        assert column.isfinite().all(), name
        assert ((column >= row.low) & (column <= row.high)).all(), (name, column, row.low, row.high)
        if row.flag:
            assert ((column == 0) | (column == 1)).all(), name


def some_view() -> View:
    """Other values in every host and slot, some of them missing."""
    draw = torch.Generator().manual_seed(3)
    slots, cell = Slots.empty(ENVS, SLOTS), (ENVS, SLOTS)
    columns = {"stage": len(Stage), "operator": len(Blend), "ramp": len(Ramp), "tempo_steps": 9, "prune_scheduled": 2}
    columns |= {"ramp_steps": 9, "age": 15, "dwell": 15, "germinations": 6, "steps_since_measured": 6, "blueprint": 5}
    given = {name: torch.randint(0, top, cell, generator=draw) for name, top in columns.items()}
    given |= {"ramp_done": given["ramp_steps"] // 2, "prune_scheduled": given["prune_scheduled"].bool()}
    given["blueprint"] = given["blueprint"] - 1
    given |= {name: torch.rand(cell, generator=draw) for name in ("alpha", "alpha_target", "first_target")}
    measured = ("contribution", "contribution_se", "contribution_velocity", "gradient_ratio")
    for name in (*measured, "accuracy", "germination_accuracy", "stage_accuracy"):
        given[name] = 60 * torch.rand(cell, generator=draw)
    given["contribution"][0, 1] = given["gradient_ratio"][1, 0] = given["germination_accuracy"][2, 0] = math.nan
    history, host = (ENVS, 10), (ENVS,)
    losses, accuracies = 4 * torch.rand(history, generator=draw), 100 * torch.rand(history, generator=draw)
    losses[1, -3] = accuracies[2, -2] = math.nan
    tracker = replace(
        Tracker.empty(ENVS),
        losses=losses,
        accuracies=accuracies,
        plateau=torch.tensor([0, 7, 30]),
        best_accuracy=torch.tensor([99.0, 80.0, 100.0]),
        stabilised=torch.tensor([True, False, True]),
    )
    interaction = 40 * torch.rand(cell, generator=draw) - 20
    interaction[1, 1] = math.nan
    return view(
        replace(slots, **given),
        tracker=tracker,
        step=5,
        alignment=2 * torch.rand(ENVS, KINDS, generator=draw) - 1,
        train_loss=4 * torch.rand(host, generator=draw),
        train_accuracy=100 * torch.rand(host, generator=draw),
        op=torch.tensor([-1, 2, 5]),
        succeeded=torch.tensor([True, False, True]),
        interaction=interaction,
        boost=20 * torch.rand(cell, generator=draw),
        seed_params=torch.tensor([[10, 25], [0, 90], [500, 3]]),
        tried=torch.tensor([[0, 1, 3, 0], [2, 0, 0, 1], [0, 0, 1, 0]]),
        gained=torch.tensor([[math.nan, -3.0, 7.5, math.nan], [0.0, math.nan, math.nan, 60.0], [math.nan] * 4]),
    )


def sight(seen: View, env: int) -> Sight:
    """What the reference sees of one host."""
    slots = []
    for k in range(SLOTS):
        at = {OF_SEED.get(name, name): value[env, k].item() for name, value in vars(seen.slots).items()}
        own = {name: at.pop(name) for name in OF_SLOT}
        slots.append(life.Slot(**own, seed=life.Seed(**at)))
    tracker = {name: value[env].tolist() for name, value in vars(seen.tracker).items()}
    history = History(best=tracker.pop("best_accuracy"), **tracker)
    unseen = {field.name: math.nan for field in fields(Validation)}
    shown = {name: getattr(seen, name)[env].tolist() for name in ("interaction", "boost")}
    kinds = zip(*(getattr(seen, name)[env].tolist() for name in ("alignment", "tried", "gained")), strict=True)
    return Sight(
        slots=slots,
        history=history,
        step=seen.step,
        steps=seen.episode_steps,
        chance=math.log(10),
        train_loss=float(seen.train_loss[env]),
        train_accuracy=float(seen.train_accuracy[env]),
        op=int(seen.op[env]),
        succeeded=bool(seen.succeeded[env]),
        validation=Validation(**unseen | shown),  # pyright: ignore[reportArgumentType]
        seed_params=seen.seed_params[env].tolist(),
        host_params=seen.host_params,
        budget=seen.param_budget,
        trials=[Trial(*kind) for kind in kinds],
    )


def test_every_column_is_that_of_the_reference():
    seen = some_view()
    found, names = observe(seen), [name for name, _ in columns(SLOTS, KINDS)]
    for env in range(ENVS):
        for name, value, expected in zip(names, found[env].tolist(), features(sight(seen, env)), strict=True):
            assert math.isclose(value, expected, rel_tol=1e-5, abs_tol=1e-6), (env, name)


def test_spec_describes_the_tensor():
    spec = observations.observation_spec(SLOTS, KINDS)
    table = columns(SLOTS, KINDS)
    assert spec.features == len(table) == observe(view()).shape[1]
    assert spec.raw == tuple(row.flag or name.startswith("blueprint") for name, row in table)
    assert (spec.categories, spec.cardinality, spec.version) == (SLOTS, KINDS, observations.VERSION)
    names = [name for name, _ in table]
    assert len(set(names)) == len(names)


def test_only_time_says_how_long_an_episode_is():
    """Two episodes of other lengths, with as many steps left: all else that is seen is the same."""
    short, long = (named(observe(view(step=5 + more, episode_steps=T + more))) for more in (0, 30))
    assert [name for name, column in short.items() if not torch.equal(column, long[name])] == ["time"]


def test_what_the_critic_alone_is_told_is_no_feature():
    plain, told = (observations.observation_spec(SLOTS, KINDS, kinds) for kinds in (0, 9))
    assert (plain.told, plain.hidden, told.told, told.hidden) == (0, 0, 1, 9)
    assert told.features == plain.features and told.raw == plain.raw


def test_document_lists_every_column_at_its_index():
    lines = [line.split(" | ") for line in observations.document().splitlines() if line.startswith("| ")]
    shown = [(cells[0].strip("| ").split("–"), cells[1].split(", ")) for cells in lines if cells[0] != "| index"]
    assert all(int(places[-1]) - int(places[0]) + 1 == len(names) for places, names in shown)
    rows = [(int(places[0]) + offset, name) for places, names in shown for offset, name in enumerate(names)]
    base, block, kind = len(observations.BASE), len(observations.SLOT), len(observations.KIND)
    assert len(rows) == base + block + kind
    names = [name for name, _ in columns(SLOTS, KINDS)]
    for index, name in rows[:base]:
        assert names[index] == name
    for k in range(SLOTS):
        for index, name in rows[base : base + block]:
            assert names[base + block * k + index] == f"slot{k}_{name}"
    for p in range(KINDS):
        for index, name in rows[base + block :]:
            assert names[base + block * SLOTS + kind * p + index] == f"blueprint{p}_{name}"
    assert f"from column {base} + {block} k" in observations.document()
    assert f"from column {base} + {block} K + {kind} p" in observations.document()


def test_the_committed_page_is_the_generated_one():
    page = Path(__file__).parents[2] / "docs" / "observations.md"
    assert page.read_text(encoding="utf-8") == observations.document()
