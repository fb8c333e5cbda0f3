"""Everything that training mutates goes through a checkpoint and comes back, leaf by leaf."""

import pytest
import torch
from small_runs import small_params

from simic.training.assemble import assemble
from simic.training.state import TrainState


@pytest.fixture(scope="module")
def make(prepared):
    def new() -> TrainState:
        return assemble(small_params(), prepared, torch.device("cpu"))

    return new


def perturbed(tensor: torch.Tensor) -> torch.Tensor:
    return ~tensor if tensor.dtype == torch.bool else tensor + 1


OTHER = {
    "iteration": 3,
    "env_steps": 5,
    "rollbacks": 2,
    "group": 4,
    "best_iteration": 1,
    "chain": "ab",
}
OTHER |= {"best_score": 0.1 + 0.2}


def test_each_leaf_perturbed_comes_back_alone_and_gives_another_link_of_the_chain(make):
    source, target = make(), make()
    tensors, scalars = source.tensors(), source.scalars()
    assert scalars.keys() == OTHER.keys()
    assert len(tensors) > 50
    target.load(tensors, scalars)
    links = {target.link(), source.link()}
    assert len(links) == 1
    for name in tensors:
        changed = {**tensors, name: perturbed(tensors[name])}
        target.load(changed, scalars)
        loaded = target.tensors()
        assert torch.equal(loaded[name], changed[name]), name
        assert [key for key in tensors if not torch.equal(loaded[key], tensors[key])] == [name]
        links.add(target.link())
    for name, value in OTHER.items():
        target.load(tensors, {**scalars, name: value})
        assert target.scalars() == {**scalars, name: value}
        links.add(target.link())
    assert len(links) == 1 + len(tensors) + len(OTHER), "that before it is among the scalars"


def test_it_holds_policy_optimizer_and_both_normalisers(make):
    names = make().tensors()
    for prefix in (
        "ppo/policy.",
        "ppo/adam.exp_avg.",
        "ppo/adam.exp_avg_sq.",
        "ppo/adam.step",
        "ppo/counter.",
    ):
        assert any(name.startswith(prefix) for name in names), prefix
    assert {
        "normalizers/observation.m2",
        "normalizers/reward.m2",
        "normalizers/reward.running",
    } <= names.keys()
