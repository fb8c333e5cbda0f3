"""Rows say what was measured."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import torch
from small_runs import small_params

from simic.agent.rollout import collect
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.telemetry.columns import STEPS, Columns
from simic.training.assemble import assemble
from simic.training.episodes import Collector, Tally, events, step_tensors
from simic.training.session import open_session
from tests.standard import Lifecycle


def test_a_seed_that_made_room_for_another_counts_as_pruned(prepared, tmp_path):
    at_once = Lifecycle(
        training_dwell=0, min_prune_age=1, embargo_steps=0, reset_steps=0, max_seeds=1
    )
    with open_session(
        small_params(episode_steps=6, lifecycle=at_once), tmp_path, prepared
    ) as session:
        env, tally = session.env, Tally(session.env)
        env.reset()
        germinate, prune = (
            Action.wait(env.num_envs)._replace(op=torch.full((env.num_envs,), int(op)))
            for op in (Op.GERMINATE, Op.PRUNE)
        )
        for action in (*(3 * [germinate]), prune, germinate, Action.wait(env.num_envs)):
            _, reward, *_, info = env.step(action)
            tally.add(reward, info)
    columns = tally.columns()
    assert (columns["germinated"] == 4).all() and (
        columns["pruned"] == 3
    ).all()  # two made room, one was taken out


def test_a_seed_that_takes_the_place_of_a_live_one_is_an_event():
    ops = np.array([[Op.GERMINATE], [Op.GERMINATE], [Op.WAIT]])
    columns = {name: np.zeros((3, 1), dtype=np.int64) for name in ("slot", "cause")}
    columns |= {name: np.zeros((3, 1), dtype=bool) for name in ("gate_passed", "panicked")}
    stage = np.full((3, 1, 1), Stage.HOLDING, dtype=np.int8)
    recorded = events(
        {**columns, "stage": stage, "effective_op": ops, "op": ops, "gate": np.full((3, 1), -1)}
    )
    assert recorded.columns["step"].tolist() == [1, 2]
    assert [recorded.texts[code] for code in recorded.columns["text"].tolist()] == [
        ("holding", "from DORMANT"),
        ("holding", "a new seed in the place of a live one"),
    ]


# --- an episode of all hosts comes to the host's side in a few pieces, however many columns and steps it has ---


READS = {
    "item",
    "tolist",
    "numpy",
    "nonzero",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__iter__",
}


class Distant(torch.Tensor):
    """A tensor that is far away: it can be computed with, and fetched by ``cpu()`` alone, which is counted."""

    fetched = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        assert name not in READS, f"{name} reads a value from afar"
        result = super().__torch_function__(func, types, args, kwargs or {})
        if name == "cpu":
            Distant.fetched += 1
            return result.as_subclass(torch.Tensor)
        return result


def far(value):
    """Every tensor of a record, however deep, sent away."""
    if isinstance(value, torch.Tensor):
        return value.as_subclass(Distant)
    if isinstance(value, dict):
        return {key: far(element) for key, element in value.items()}
    if is_dataclass(value):
        return replace(
            value, **{element.name: far(getattr(value, element.name)) for element in fields(value)}
        )
    return value


def collected(transitions: list) -> Columns:
    collector = Collector(STEPS)
    for transition in transitions:
        collector.add(step_tensors(transition))
    return collector.columns()


def test_the_columns_of_a_decision_are_the_hosts_own(prepared):
    state = assemble(small_params(), prepared, torch.device("cpu"))
    records = []
    collect(state.task.env, state.ppo.policy, state.normalizers, 0, 1, 3, records.append)
    columns = collected(records)
    for number, step in enumerate(records):
        decision = step.decision
        assert len(decision.value.unique()) > 1
        expected = {
            "value": decision.value,
            "log_prob": decision.joint,
            "reward": step.reward,
            "op": decision.actions[:, 0],
        }
        for name, values in expected.items():
            assert np.array_equal(columns[name][number], values.numpy()), name


def test_an_episode_is_fetched_once_for_each_kind_of_number(prepared, monkeypatch):
    state = assemble(small_params(), prepared, torch.device("cpu"))
    env = state.task.env
    records = []
    collect(env, state.ppo.policy, state.normalizers, 0, 1, 3, records.append)
    near = collected(records)
    away = [
        replace(step, decision=far(step.decision), reward=far(step.reward), info=far(step.info))
        for step in records
    ]
    monkeypatch.setattr(Distant, "fetched", 0)
    distant = collected(away)
    assert {name: values.tobytes() for name, values in distant.items()} == {
        name: values.tobytes() for name, values in near.items()
    }
    assert (
        Distant.fetched == 5
    )  # bool, int16, int64, float32, float64, whatever the number of steps and columns
