"""Bounds, flags and the table of the observation; values are those of the reference."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simic.envs import observations
from simic.envs.attribution import Attribution
from simic.envs.governor import Vitals
from simic.envs.observations import View, columns, observe
from simic.envs.records import EpisodeState, Trials
from simic.envs.tracker import Tracker, update
from simic.growth.batch.statistics import TrainStats
from simic.growth.life.vocabulary import Blend, Op, Ramp, Slots, Stage
from simic.params import Governor
from simic.transfer import CPU
from tests.growth.life.test_lifecycle import OF_SEED, OF_SLOT
from tests.reference import life
from tests.reference.epochs import Validation
from tests.reference.observations import History, Sight, Trial, features

ENVS = 3
SLOTS = 2
KINDS = 4
T = 12


def view(
    step: int = 0, episode_steps: int = T, alignment: torch.Tensor | None = None, **changes
) -> View:
    """A view of hosts of which nothing is measured, but for ``changes`` of their state."""
    host = torch.full((ENVS,), torch.nan)
    seed = torch.full((ENVS, SLOTS), torch.nan)
    yes = torch.ones(ENVS, dtype=torch.bool)
    state = EpisodeState(
        slots=Slots.empty(ENVS, SLOTS),
        tracker=Tracker.empty(ENVS),
        vitals=Vitals.empty(ENVS, Governor()),
        alive=yes,
        measured=Attribution(*[host] * 5, *[seed] * 4),
        trained=TrainStats.unmeasured(ENVS, SLOTS, CPU),
        effective_op=torch.full((ENVS,), -1),
        succeeded=yes,
        seed_params=torch.zeros(ENVS, SLOTS, dtype=torch.int64),
        ledgers={},
        trials=Trials.none(ENVS, KINDS, CPU),
    )
    return View(
        state=replace(state, **changes),
        step=step,
        episode_steps=episode_steps,
        chance_loss=torch.full((ENVS,), math.log(10)),
        host_params=100,
        param_budget=4.0,
        alignment=torch.zeros(ENVS, KINDS) if alignment is None else alignment,
    )


def sight(seen: View, env: int) -> Sight:
    """What the reference sees of one host."""
    state = seen.state
    slots = []
    for k in range(SLOTS):
        at = {
            OF_SEED.get(name, name): value[env, k].item()
            for name, value in vars(state.slots).items()
        }
        slot_fields = {name: at.pop(name) for name in OF_SLOT}
        slots.append(life.Slot(**slot_fields, seed=life.Seed(**at)))
    tracker = {name: value[env].tolist() for name, value in vars(state.tracker).items()}
    history = History(best=tracker.pop("best_accuracy"), **tracker)
    unseen = {field.name: math.nan for field in fields(Validation)}
    shown = {name: getattr(state.measured, name)[env].tolist() for name in ("interaction", "boost")}
    kinds = zip(
        *(x[env].tolist() for x in (seen.alignment, state.trials.tried, state.trials.gained)),
        strict=True,
    )
    return Sight(
        slots=slots,
        history=history,
        step=seen.step,
        steps=seen.episode_steps,
        chance=math.log(10),
        train_loss=float(state.trained.loss[env]),
        train_accuracy=float(state.trained.accuracy[env]),
        op=int(state.effective_op[env]),
        succeeded=bool(state.succeeded[env]),
        validation=Validation(**unseen | shown),  # pyright: ignore[reportArgumentType]
        seed_params=state.seed_params[env].tolist(),
        host_params=seen.host_params,
        budget=seen.param_budget,
        trials=[Trial(*kind) for kind in kinds],
    )


EXTREME = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1e30, -1e30])


def drawn(draw: torch.Generator) -> View:
    """Other values in every host and slot, whatever can be measured: some missing, some beyond all measure."""
    cell = (ENVS, SLOTS)
    history = (ENVS, 10)
    host = (ENVS,)
    kind = (ENVS, KINDS)

    def counts(top: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, top, shape or cell, generator=draw)

    def accuracies(*shape: int) -> torch.Tensor:
        value = 100 * torch.rand(shape or cell, generator=draw)
        return torch.where(counts(5, *value.shape) == 0, math.nan, value)

    def numbers(*shape: int) -> torch.Tensor:
        value = 120 * torch.rand(shape or cell, generator=draw) - 60
        return torch.where(
            counts(4, *value.shape) == 0, EXTREME[counts(len(EXTREME), *value.shape)], value
        )

    columns = {
        "stage": len(Stage),
        "operator": len(Blend),
        "ramp": len(Ramp),
        "tempo_steps": 9,
        "ramp_steps": 10**6,
    }
    columns |= dict.fromkeys(("age", "dwell", "germinations", "steps_since_measured"), 15)
    fields_of_slots = {name: counts(top) for name, top in columns.items()}
    fields_of_slots |= {
        "blueprint": counts(5) - 1,
        "prune_scheduled": counts(2).bool(),
        "ramp_done": fields_of_slots["ramp_steps"] // 3,
    }
    fields_of_slots |= {
        name: torch.rand(cell, generator=draw) for name in ("alpha", "alpha_target", "first_target")
    }
    fields_of_slots |= {name: numbers() for name in ("contribution", "contribution_velocity")}
    fields_of_slots |= {name: numbers().abs() for name in ("contribution_se", "gradient_ratio")}
    fields_of_slots |= {
        name: accuracies() for name in ("accuracy", "germination_accuracy", "stage_accuracy")
    }
    tracker = replace(
        Tracker.empty(ENVS),
        losses=numbers(*history).abs(),
        accuracies=accuracies(*history),
        plateau=counts(10**6, *host),
        best_accuracy=torch.full(host, 100.0),
        stabilised=counts(2, *host).bool(),
    )
    plain = view().state
    return view(
        step=int(counts(T + 1, 1)),
        alignment=2 * torch.rand(kind, generator=draw) - 1,
        slots=replace(plain.slots, **fields_of_slots),
        tracker=tracker,
        trained=replace(plain.trained, loss=numbers(*host).abs(), accuracy=accuracies(*host)),
        effective_op=counts(len(Op) + 1, *host) - 1,
        succeeded=counts(2, *host).bool(),
        measured=replace(plain.measured, interaction=numbers(), boost=numbers().abs()),
        seed_params=torch.where(counts(2) == 0, counts(10**12), counts(100)),
        trials=Trials(counts(3, *kind), numbers(*kind)),
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**31))
def test_every_column_stays_in_its_range_whatever_was_measured(seed):
    """And is the reference's."""
    random_view = drawn(torch.Generator().manual_seed(seed))
    observed = observe(random_view)
    assert observed.dtype == torch.float32
    for env in range(ENVS):
        rows = zip(
            columns(SLOTS, KINDS),
            observed[env].tolist(),
            features(sight(random_view, env)),
            strict=True,
        )
        for (name, row), value, expected in rows:
            assert math.isclose(value, expected, rel_tol=1e-5, abs_tol=1e-5), (env, name)
            assert row.low <= value <= row.high, (env, name)
            assert not row.flag or value in (0.0, 1.0), (env, name)


def test_only_time_says_how_long_an_episode_is():
    """Two episodes of other lengths, with as many steps left: all else that is seen is the same."""
    short, long = (observe(view(step=5 + more, episode_steps=T + more)) for more in (0, 30))
    names = [name for name, _ in columns(SLOTS, KINDS)]
    assert [
        name for name, a, b in zip(names, short.T, long.T, strict=True) if not torch.equal(a, b)
    ] == ["time"]


def test_the_committed_page_is_the_generated_one():
    page = Path(__file__).parents[2] / "docs" / "observations.md"
    assert page.read_text(encoding="utf-8") == observations.document()


# --- the tracker ---


def test_missing_measurements_are_neither_best_nor_stable():
    tracker = Tracker.empty(1)
    assert math.isnan(float(tracker.stable_accuracy(3)))
    for loss, accuracy in ((2.0, 10.0), (math.nan, math.nan), (math.inf, 10.0), (2.0, 12.0)):
        tracker = update(tracker, torch.tensor([loss]), torch.tensor([accuracy]))
    assert (float(tracker.best_accuracy), int(tracker.stable_run)) == (12.0, 0)
    assert float(tracker.stable_accuracy(3)) == pytest.approx(10.0)
    again = update(
        update(tracker, torch.tensor([1.98]), tracker.accuracy),
        torch.tensor([1.96]),
        tracker.accuracy,
    )
    assert int(again.stable_run) == 2
