"""The lifecycle on tensors against the reference, one slot at a time, and its single rules."""

import os
from dataclasses import replace
from itertools import compress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from simic.growth.life import lifecycle
from simic.growth.life.lifecycle import Events, advance, gate_passes, legal_ops, prune_live, record
from simic.growth.life.vocabulary import Action, Op, Slots, Stage
from tests import standard
from tests.envs.transitions import act
from tests.reference import life
from tests.standard import Lifecycle

from ..worlds import generator

SLOTS = 3
BLUEPRINTS = 7
STEPS = 30
HEAD_SIZES = (6, SLOTS, BLUEPRINTS, 4, 4, 3, 4, 5)
# Where a field of the tensors has another name in the reference, and which fields are the slot's own.
OF_SEED = {
    "contribution_velocity": "velocity",
    "steps_since_measured": "unmeasured",
    "gradient_healthy": "healthy",
}
OF_SLOT = ("stage", "dwell", "germinations", "stage_accuracy")


def as_slots(hosts: list[list[life.Slot]]) -> Slots:
    """Return the reference's slots as the environment keeps them."""
    state = {}
    for name, tensor in vars(Slots.empty(len(hosts), SLOTS)).items():
        field = OF_SEED.get(name, name)
        values = [
            [getattr(slot if name in OF_SLOT else slot.seed, field) for slot in host]
            for host in hosts
        ]
        state[name] = torch.tensor(values, dtype=tensor.dtype)
    return Slots(**state)


def random_action(slots: Slots, params: Lifecycle, draw: torch.Generator) -> Action:
    """Mostly a legal (op, slot), sometimes any."""
    rows = slots.shape[0]
    heads = [torch.randint(size, (rows,), generator=draw) for size in HEAD_SIZES]
    weights = legal_ops(slots, params).float().flatten(1) * torch.tensor(
        [0.2, 4, 1, 0.5, 2, 4]
    ).repeat_interleave(SLOTS)
    pick = torch.multinomial(weights, 1, generator=draw).squeeze(1)
    free = torch.rand(rows, generator=draw) < 0.15
    heads[0] = torch.where(free, heads[0], pick // SLOTS)
    heads[1] = torch.where(free, heads[1], pick % SLOTS)
    return Action(*heads)


def random_measurements(rows: int, draw: torch.Generator) -> tuple[Tensor, ...]:
    """What ``record`` takes, some of it missing."""

    def with_holes(scale: float) -> Tensor:
        values = scale * torch.randn(rows, SLOTS, generator=draw)
        return torch.where(torch.rand(rows, SLOTS, generator=draw) < 0.2, torch.nan, values)

    accuracy = 100 * torch.rand(rows, generator=draw)
    error = torch.rand(rows, SLOTS, generator=draw)
    healthy = torch.rand(rows, SLOTS, generator=draw) < 0.9
    return accuracy, with_holes(3.0), error, with_holes(0.5).abs(), healthy


def play(rows: int, seed: int, params: Lifecycle) -> None:
    """Random histories of some hosts, in tensors and by the reference."""
    draw = generator(seed)
    slots = Slots.empty(rows, SLOTS)
    hosts = [[life.Slot() for _ in range(SLOTS)] for _ in range(rows)]
    accuracy = torch.rand(rows, generator=draw) * 100
    for step in range(STEPS):
        assert legal_ops(slots, params).tolist() == [life.allowed(host, params) for host in hosts]
        action = random_action(slots, params, draw)
        slots, events = advance(slots, action, params, accuracy)
        acts = [
            dict(zip(Action._fields, row, strict=True))
            for row in torch.stack(list(action), 1).tolist()
        ]
        outcomes = [
            life.advance(host, host_action, params, host_accuracy)
            for host, host_action, host_accuracy in zip(hosts, acts, accuracy.tolist(), strict=True)
        ]
        reported = zip(
            events.effective_op.tolist(),
            events.gate.tolist(),
            events.gate_passed.tolist(),
            strict=True,
        )
        assert list(reported) == [
            (outcome.op, outcome.gate, outcome.passed) for outcome in outcomes
        ]
        if step == STEPS // 2:  # a governor's prune in the middle of life
            panicked = torch.rand(rows, generator=draw) < 0.1
            slots = prune_live(slots, panicked)
            for host in compress(hosts, panicked.tolist()):
                for place in host:
                    if place.alive and place.stage != Stage.FOSSILIZED:
                        place.remove()
        accuracy, *columns = random_measurements(rows, draw)
        slots = record(slots, accuracy, *columns)
        for i, host in enumerate(hosts):
            for k, place in enumerate(host):
                life.remember(
                    place, accuracy[i].item(), *(column[i, k].item() for column in columns)
                )
        expected = vars(as_slots(hosts))
        for name, value in vars(slots).items():
            torch.testing.assert_close(
                value, expected[name], rtol=1e-5, atol=2e-6, equal_nan=True, msg=name
            )


SETTINGS = st.builds(
    Lifecycle,
    gates=st.sampled_from(["permissive", "strict"]),
    training_dwell=st.integers(0, 3),
    blending_dwell=st.integers(0, 3),
    min_prune_age=st.integers(0, 3),
    embargo_steps=st.sampled_from([0, 0, 1, 2, 5]),
    reset_steps=st.sampled_from([0, 0, 1, 2]),
    min_improvement_pct=st.just(0.5),
    auto_advance=st.booleans(),
    sequential_development=st.booleans(),
    max_seeds=st.sampled_from([None, 1, 2]),
)


@given(params=SETTINGS, seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_tensor_lifecycle_equals_the_scalar_machine(params: Lifecycle, seed: int) -> None:
    play(30, seed, params)


@pytest.mark.prove
@given(params=SETTINGS, seed=st.integers(0, 2**31))
@settings(max_examples=int(os.environ.get("SIMIC_PROVE_EXAMPLES", "60")), deadline=None)
def test_ten_thousand_histories_equal_the_scalar_machine(params: Lifecycle, seed: int) -> None:
    play(200, seed, params)


def test_stage_sets_follow_from_the_table() -> None:
    assert set(lifecycle.FAILURE_STAGES) == {Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING}
    assert set(lifecycle.ACTIVE_STAGES) == {
        Stage.TRAINING,
        Stage.BLENDING,
        Stage.HOLDING,
        Stage.FOSSILIZED,
    }
    assert set(lifecycle.PRUNABLE_STAGES) == {
        Stage.GERMINATED,
        Stage.TRAINING,
        Stage.BLENDING,
        Stage.HOLDING,
    }
    assert set(lifecycle.FOSSILIZABLE_STAGES) == {Stage.HOLDING}
    assert set(lifecycle.ADVANCEABLE_STAGES) == {Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING}
    assert lifecycle.TRANSITIONS[Stage.FOSSILIZED] == ()


def test_advance_changes_nothing_it_was_given() -> None:
    params = standard.Lifecycle()
    draw = generator(0)
    slots = Slots.empty(16, SLOTS)
    for _ in range(8):
        before = {name: tensor.clone() for name, tensor in vars(slots).items()}
        following, _ = advance(
            slots, random_action(slots, params, draw), params, torch.full((16,), 50.0)
        )
        assert all(
            torch.equal(getattr(slots, k).nan_to_num(-7), v.nan_to_num(-7))
            for k, v in before.items()
        )
        slots = record(following, *random_measurements(16, draw))
        fresh = vars(Slots.empty(1, 1))
        assert all(
            t.shape == (16, SLOTS) and t.dtype == fresh[k].dtype for k, t in vars(slots).items()
        )


def step(slots: Slots, action: Action, params: Lifecycle) -> tuple[Slots, Events]:
    slots, events = advance(slots, action, params, torch.tensor([50.0]))
    unit = torch.ones(1, SLOTS)
    return record(slots, torch.tensor([50.0]), unit, unit, unit, unit > 0), events


def test_a_refused_gate_is_an_event_and_a_wait() -> None:
    params = standard.Lifecycle(training_dwell=3, auto_advance=False)
    slots, _ = step(Slots.empty(1, SLOTS), act(1, Op.GERMINATE), params)
    slots, _ = step(slots, act(1, Op.ADVANCE), params)
    slots, events = step(
        slots, act(1, Op.ADVANCE), params
    )  # one epoch of TRAINING, three are needed
    assert (events.effective_op.item(), events.gate.item(), events.gate_passed.item()) == (
        Op.WAIT,
        2,
        False,
    )
    assert slots.stage[0, 0] == Stage.TRAINING


def test_the_governor_spares_fossils_and_other_hosts() -> None:
    slots = Slots.empty(2, SLOTS)
    slots = replace(slots, stage=torch.tensor([[5, 2, 0], [5, 2, 0]]))
    pruned = prune_live(slots, torch.tensor([True, False]))
    assert pruned.stage.tolist() == [[5, 6, 0], [5, 2, 0]]


def test_the_gradient_average_starts_at_the_first_measurement() -> None:
    slots = replace(Slots.empty(1, 1), stage=torch.tensor([[int(Stage.TRAINING)]]))
    missing = torch.full((1, 1), torch.nan)
    for ratio in (0.5, 0.7):
        slots = record(
            slots,
            torch.tensor([50.0]),
            missing,
            missing,
            torch.tensor([[ratio]]),
            torch.tensor([[True]]),
        )
    assert slots.gradient_ratio.item() == pytest.approx(0.9 * 0.5 + 0.1 * 0.7)


def test_a_threshold_that_rounding_alone_misses_is_met() -> None:
    """Of strict gates: one point of contribution, half a point of improvement."""
    values = {
        "dwell": 20,
        "alpha": 1.0,
        "alpha_target": 1.0,
        "gradient_ratio": 1.0,
        "gradient_healthy": True,
    }
    values |= {
        "contribution": 1.0 - 1e-5,
        "contribution_se": 0.1,
        "stage_accuracy": 50.0,
        "accuracy": 50.5 - 1e-5,
    }
    empty = Slots.empty(1, 1)
    seed = replace(
        empty,
        **{name: torch.full_like(getattr(empty, name), value) for name, value in values.items()},
    )
    passes = gate_passes(seed, standard.Lifecycle(gates="strict"))
    assert passes[Stage.BLENDING] and passes[Stage.FOSSILIZED]
