"""Bounds, flags and the table of the observation; each column's value is compared with the audit's reference (K2)."""

import math
from dataclasses import fields, replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simic.envs import observations
from simic.envs.observations import View, columns, observe
from simic.envs.tracker import Tracker
from simic.growth.life.vocabulary import Blend, Op, Ramp, Slots, Stage

ENVS, SLOTS, KINDS, T = 3, 2, 4, 12
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


def test_missing_values_are_zero_with_their_flag():
    seen = named(observe(view()))
    for flag in ("missing_lag_0", "train_missing", "slot0_contribution_missing", "blueprint3_gained_missing"):
        assert seen[flag].eq(1).all(), flag
    for value in ("loss_lag_0", "accuracy_lag_0", "train_loss", "slot0_contribution", "blueprint3_gained"):
        assert seen[value].eq(0).all(), value
    measured = Slots.empty(ENVS, SLOTS)
    measured = replace(measured, contribution=torch.zeros(ENVS, SLOTS))
    seen = named(observe(view(measured)))
    assert seen["slot0_contribution"].eq(0).all() and seen["slot0_contribution_missing"].eq(0).all()


def symlog(x: float) -> float:
    return 0.0 if math.isnan(x) else max(-1.0, min(1.0, math.copysign(math.log(1 + abs(x)), x) / math.log(101)))


def squashed(x: float) -> float:
    return 0.0 if math.isnan(x) else x / (1 + x)


def clock(steps: float) -> float:
    """Eight steps are a half, in an episode of any length."""
    return steps / (8 + steps)


def scalar_base(seen: View, env: int) -> dict[str, float]:
    """One host's columns, each spelled out."""
    tracker, op = seen.tracker, int(seen.op[env])
    losses, accuracies = tracker.losses[env].tolist()[::-1], tracker.accuracies[env].tolist()[::-1]
    chance, held = math.log(10), sum(seen.seed_params[env].tolist())
    stages = seen.slots.stage[env].tolist()
    found = {"time": seen.step / T, "left": clock(T - seen.step), "plateau": clock(int(tracker.plateau[env]))}
    for lag in range(5):
        found[f"loss_lag_{lag}"] = squashed(losses[lag] / chance)
        found[f"accuracy_lag_{lag}"] = 0.0 if math.isnan(accuracies[lag]) else accuracies[lag] / 100
        found[f"missing_lag_{lag}"] = math.isnan(losses[lag]) or math.isnan(accuracies[lag])
    found["accuracy_gain"] = symlog(accuracies[0] - accuracies[1])
    found["below_best"] = symlog(accuracies[0] - float(tracker.best_accuracy[env]))
    found["stabilised"] = bool(tracker.stabilised[env])
    found["train_loss"] = squashed(float(seen.train_loss[env]) / chance)
    found["train_accuracy"] = float(seen.train_accuracy[env]) / 100
    found["train_missing"] = False
    found["training_share"] = stages.count(Stage.TRAINING) / SLOTS
    found["blending_share"] = stages.count(Stage.BLENDING) / SLOTS
    found["joined_share"] = (stages.count(Stage.HOLDING) + stages.count(Stage.FOSSILIZED)) / SLOTS
    found["growth"] = squashed(held / 100)
    found["budget_used"] = min(1.0, held / 400)
    found["last_op_succeeded"] = bool(seen.succeeded[env])
    return found | {f"last_op_{each.name.lower()}": each == op for each in Op}


def scalar_slot(seen: View, env: int, slot: int) -> dict[str, float]:
    """One slot's columns, each spelled out."""
    at = {field.name: getattr(seen.slots, field.name)[env, slot].item() for field in fields(Slots)}
    found = {"occupied": at["blueprint"] >= 0, "prune_scheduled": at["prune_scheduled"], "alpha": at["alpha"]}
    found |= {f"stage_{each.name.lower()}": at["stage"] == each for each in Stage}
    found |= {f"ramp_{each.name.lower()}": at["ramp"] == each for each in Ramp}
    found |= {f"operator_{each.name.lower()}": found["occupied"] and at["operator"] == each for each in Blend}
    found |= {name: at[name] for name in ("alpha_target", "first_target")}
    found |= {"tempo": at["tempo_steps"] / 8, "ramp_left": clock(at["ramp_steps"] - at["ramp_done"])}
    found |= {name: clock(at[name]) for name in ("age", "dwell")}
    found |= {
        "germinations": squashed(at["germinations"]),
        "params": squashed(seen.seed_params[env, slot].item() / 100),
    }
    found |= {name: symlog(at[name]) for name in ("contribution", "contribution_se")}
    found |= {"velocity": symlog(at["contribution_velocity"]), "gradient_ratio": squashed(at["gradient_ratio"])}
    found |= {
        "contribution_missing": math.isnan(at["contribution"]),
        "gradient_missing": math.isnan(at["gradient_ratio"]),
    }
    found["velocity_missing"] = math.isnan(at["contribution_velocity"])
    found |= {name: symlog(getattr(seen, name)[env, slot].item()) for name in ("interaction", "boost")}
    found["interaction_missing"] = bool(seen.interaction[env, slot].isnan())
    found["freshness"] = 0.0 if found["contribution_missing"] else 1 / (1 + at["steps_since_measured"])
    found["progress"] = symlog(at["accuracy"] - at["germination_accuracy"])
    found["stage_progress"] = symlog(at["accuracy"] - at["stage_accuracy"])
    found["progress_missing"] = math.isnan(at["accuracy"] - at["germination_accuracy"])
    return found


def scalar_kind(seen: View, env: int, kind: int) -> dict[str, float]:
    """One blueprint's columns, each spelled out."""
    gained = float(seen.gained[env, kind])
    found = {"tried": seen.tried[env, kind] > 0, "gained": symlog(gained), "gained_missing": math.isnan(gained)}
    return found | {"alignment": float(seen.alignment[env, kind])}


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


def test_every_column_is_what_its_name_says():
    seen = some_view()
    found, names = observe(seen), [name for name, _ in columns(SLOTS, KINDS)]
    for env in range(ENVS):
        expected = scalar_base(seen, env)
        for slot in range(SLOTS):
            expected |= {f"slot{slot}_{name}": value for name, value in scalar_slot(seen, env, slot).items()}
        for kind in range(KINDS):
            expected |= {f"blueprint{kind}_{name}": value for name, value in scalar_kind(seen, env, kind).items()}
        assert sorted(expected) == sorted(names)
        for name, value in zip(names, found[env].tolist(), strict=True):
            assert math.isclose(value, expected[name], rel_tol=1e-5, abs_tol=1e-6), (env, name)


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
