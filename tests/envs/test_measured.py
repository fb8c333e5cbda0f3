"""What the environment reports was measured on the live network, costs no more than it must, and keeps to its spec."""

import pytest
import torch
from growth.worlds import logits_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from simic.envs.actions import action_masks
from simic.envs.growth_env import GrowthEnv
from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Op, Stage
from tests.standard import Lifecycle


def test_the_reported_loss_is_that_of_the_live_network_alone(make_env, play, digits):
    """Not averaged with its ablations: a network with a useful seed is not blamed for being tried without it."""
    env = make_env(envs=6, family="mlp", steps=16, backend="auto")
    info = play(env, never=(Op.PRUNE, Op.WAIT))[-1][2][4]
    off = torch.zeros_like(env.slots.stage, dtype=torch.bool)
    logits = logits_of(env.population, env.slots, digits[1].x, off)
    expected = torch.stack([nn.functional.cross_entropy(row, digits[1].y) for row in logits])
    assert torch.allclose(info.val_loss, expected, atol=1e-4)
    seeds_off = logits_of(env.population, env.slots, digits[1].x, env.slots.stage > Stage.DORMANT)
    without = torch.stack([nn.functional.cross_entropy(row, digits[1].y) for row in seeds_off])
    assert (without - expected).abs().max() > 1e-3  # the ablations do say something else here


def test_an_epoch_has_the_batches_and_the_batch_size_of_the_params(make_env, digits):
    seen = []

    class Watched(Population):
        def train_epoch(self, slots, data, order, *more):
            seen.append(order)
            return super().train_epoch(slots, data, order, *more)

    for batches, size in ((2, 32), (3, 16)):
        params = make_env(envs=2, steps=2).train
        params = params.model_copy(update={"batches_per_epoch": batches, "batch_size": size})
        env = GrowthEnv(params, 1, *digits, compose=Watched)
        env.reset()
        env.step(torch.zeros(2, 8, dtype=torch.int64))
        assert seen.pop().shape == (2, batches, size)
    assert env.population.state_dict()["host/step"].tolist() == [3, 3]


def test_a_step_builds_no_module(make_env, play, monkeypatch):
    """Everything that can grow is laid out when the population is composed; nothing random appears in a forward."""
    env = make_env(envs=4, steps=12, backend="auto")

    def refuse(self, *args, **kwargs):
        raise AssertionError(f"{type(self).__name__} is built in an episode")

    monkeypatch.setattr(nn.Module, "__init__", refuse)
    with pytest.raises(AssertionError, match="Linear is built"):
        nn.Linear(1, 1)
    steps = play(env)
    assert any((step[2][4].blueprint >= 0).any() for step in steps)


def test_masks_have_the_shapes_that_the_spec_gives_them(make_env):
    """``[E, n]``, ``[E, ops, n]`` or ``[E, slots, n]`` by what the head's mask is given; bool, for every head named."""
    env = make_env(envs=3)
    observation, _ = env.reset()
    ops, slots = (env.action_spec.heads[k].size for k in (0, 1))
    given = {"nothing": (), "op": (ops,), "slot": (slots,)}
    heads = {head.name: head for head in env.action_spec.heads}
    for name, mask in observation.masks.items():
        assert mask.dtype == torch.bool
        assert mask.shape == (3, *given[heads[name].mask_given], heads[name].size), name
    assert {head.name for head in env.action_spec.heads[1:] if head.mask_given != "nothing"} <= observation.masks.keys()


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_masks_of_many_hosts_cost_as_many_operations_as_those_of_one(make_env):
    counts = []
    for envs in (1, 30):
        env = make_env(envs=envs)
        env.reset()
        action_masks(env.slots, Lifecycle(), env.budget)  # constants are made once
        with Operations() as done:
            action_masks(env.slots, Lifecycle(), env.budget)
        counts.append(done.count)
    assert counts[0] == counts[1] > 0


def test_a_device_given_by_name_is_an_object_inside(make_env):
    env = make_env(envs=1)
    for place in (env.device, env.population.device):
        assert isinstance(place, torch.device)


def test_nothing_measured_is_nothing_invented(make_env):
    """A slot without an acting seed has no contribution, and its accuracy is that of the network as it is."""
    env = make_env(envs=3)
    _, info = env.reset()
    assert info.contribution.isnan().all()
    assert info.contribution_se.isnan().all()
    assert torch.equal(info.live_accuracy, info.all_off_accuracy)
    # Shares of the 160 validation images, not rates of some batch that were scaled up.
    images = info.live_accuracy.double() * 160 / 100
    assert torch.allclose(images, images.round(), atol=1e-3)


def test_observation_and_masks_of_a_step_are_those_after_its_action(make_env):
    """What a bootstrap would look at: the state after the op and the host's epoch, not the one it was chosen in."""
    env = make_env(envs=4)
    before, _ = env.reset()
    germinate = torch.zeros(4, 8, dtype=torch.int64)
    germinate[:, 0] = int(Op.GERMINATE)
    after, *_ = env.step(germinate)
    assert not torch.equal(after.features, before.features)
    assert torch.equal(after.categories[:, 0], torch.zeros(4, dtype=torch.int64))
    assert (before.categories == -1).all()
    fresh = action_masks(env.slots, env.train.lifecycle, env.budget)
    assert all(torch.equal(after.masks[name], fresh[name]) for name in fresh)
    assert not torch.equal(after.masks["slot"], before.masks["slot"])
