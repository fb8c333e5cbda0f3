"""A step of all hosts comes to the host's side in one piece, however many columns it has."""

from dataclasses import fields, is_dataclass, replace

import torch
from small_runs import small_params

from simic.agent.rollout import collect
from simic.training.episodes import step_row, to_lists
from simic.training.session import compose

READS = {"item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__iter__"}


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
        return {key: far(each) for key, each in value.items()}
    if is_dataclass(value):
        return replace(value, **{each.name: far(getattr(value, each.name)) for each in fields(value)})
    return value


def test_the_row_of_a_step_is_fetched_once(prepared, monkeypatch):
    env, state = compose(small_params(), prepared, torch.device("cpu"))
    seen = []
    collect(env, state.ppo.policy, state.normalizers, 0, 1, 3, seen.append)
    for transition in seen:
        near = step_row(0, transition)
        decision = replace(
            transition.decision,
            **{name: far(getattr(transition.decision, name)) for name in ("actions", "log_probs", "joint", "value")},
        )
        distant = replace(transition, decision=decision, reward=far(transition.reward), info=far(transition.info))
        monkeypatch.setattr(Distant, "fetched", 0)
        assert step_row(0, distant).model_dump_json() == near.model_dump_json()
        assert Distant.fetched == 1


def test_each_column_comes_back_as_its_own_kind():
    columns = {
        "flag": torch.tensor([True, False]),
        "count": torch.tensor([2**40, -1]),
        "rate": torch.tensor([0.1, float("nan")]),
        "pair": torch.tensor([[1, 2], [3, 4]]),
    }
    lists = to_lists(columns)
    assert (lists["flag"], lists["count"]) == ([True, False], [2**40, -1])
    assert lists["pair"] == [[1, 2], [3, 4]]
    assert torch.tensor(lists["rate"][0]) == torch.tensor(0.1)  # the same float32
    assert lists["rate"][1] != lists["rate"][1]
