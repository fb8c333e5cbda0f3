"""The environment on a real population and real data: legality, accounting, measurements, rollbacks."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from growth.worlds import logits_of, make_table
from torch import nn

from simic.envs.actions import action_masks
from simic.envs.attribution import COMMITTED, MAIN, WITHOUT, measurable, switched_off
from simic.envs.rewards import potential
from simic.errors import SimicError
from simic.growth.batch.population import Population
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Action, Op, Stage
from tests.agent.test_transfers import Operations
from tests.standard import Lifecycle, PPOParams, Reward

from .transitions import act


@pytest.mark.parametrize("ending", ["terminate", "truncate"])
def test_shaping_telescopes_over_played_episodes(make_env, play, transitions, ending):
    """An episode ends once, at its last step, where its objective is paid."""
    env = make_env(envs=12, family="mlp", steps=12, episode_end=ending)
    steps = [step[2] for step in play(env)]
    gamma = env.train.ppo.gamma
    weight = env.train.reward.pbrs_weight
    shaping = sum(gamma**t * step[4].components["shaping"] for t, step in enumerate(steps))
    # The first state has empty slots, Φ = 0; the last counts only when the episode was cut, not ended.
    left = weight * gamma**12 * potential(transitions[-1][0].after)
    expected = torch.where(env.state.alive & (ending == "truncate"), left, 0.0)
    assert left.max() > 1
    assert (shaping - expected).abs().max() < 1e-6
    ends = [(step[2].all().item(), step[3].all().item()) for step in steps]
    assert ends == [(False, False)] * 11 + [(ending == "terminate", ending == "truncate")]
    objective = [step[4].components["terminal"].abs().sum().item() for step in steps]
    assert objective[:-1] == [0.0] * 11 and objective[-1] > 0
    with pytest.raises(SimicError, match="the episode ended at step 12; call reset first"):
        env.step(Action.wait(12))


def test_shaping_is_discounted_by_the_agents_gamma(make_env):
    env = make_env(envs=1, ppo=PPOParams(minibatches=1, gamma=0.5))
    env.reset()
    actions = (act(1, Op.GERMINATE), Action.wait(1))
    shaping = [float(env.step(action)[4].components["shaping"][0]) for action in actions]
    # F = 0.3 (γΦ(s') - Φ(s)); Φ is 0 without a seed, 1 + 0.3 per epoch of a GERMINATED one.
    assert shaping == pytest.approx([0.3 * 0.5 * 1.3, 0.3 * (0.5 * 1.6 - 1.3)], abs=1e-9)


def test_a_forbidden_action_is_refused_by_name(make_env):
    env = make_env(envs=2)
    with pytest.raises(SimicError, match="no episode is running"):
        env.step(Action.wait(2))
    env.reset()
    action = Action.wait(2)._replace(op=torch.tensor([0, int(Op.FOSSILIZE)]))
    with pytest.raises(SimicError, match=r"'op': 4.* of host 1 at step 0: forbidden"):
        env.step(action)
    for head, value in (("slot", -1), ("style", 4), ("op", 6)):
        action = act(2, **{"op": Op.GERMINATE, head: value})
        with pytest.raises(SimicError, match=rf"'{head}': {value}.* of host 0 at step 0: forbid"):
            env.step(action)
    assert env.slots.stage.eq(Stage.DORMANT).all()  # nothing was half done


def test_reset_measures_fresh_hosts_before_anything_is_trained(make_env, digits):
    env = make_env(envs=3)
    observation, info = env.reset(options={"iteration": 4})
    logits = logits_of(
        env.population, env.slots, digits[1].x, torch.zeros(3, env.host.slots, dtype=torch.bool)
    )
    accuracy = 100 * (logits.argmax(2) == digits[1].y).float().mean(1)
    assert torch.allclose(info.live_accuracy, accuracy) and torch.allclose(
        info.committed_accuracy, accuracy
    )
    assert info.train_loss.isnan().all() and not info.components and info.effective_op.eq(-1).all()
    # No seed acts: there is no contribution, and nothing to leave out.
    assert info.contribution.isnan().all() and info.contribution_se.isnan().all()
    assert torch.equal(info.live_accuracy, info.all_off_accuracy)
    # Shares of the 160 validation images, not rates of some batch that were scaled up.
    images = info.live_accuracy.double() * 160 / 100
    assert torch.allclose(images, images.round(), atol=1e-3)
    first = observation.features
    env.step(Action.wait(3))
    again, _ = env.reset(options={"iteration": 4})
    following, _ = env.reset()
    assert torch.equal(again.features, first) and env.iteration == 5
    assert not torch.equal(following.features, first)


@pytest.fixture(scope="module", params=[("cnn", "loop"), ("mlp", "auto")], ids=["cnn", "mlp"])
def grown(request, make_env, play):
    """After a random walk that ends with some seeds FOSSILIZED and others live: the environment and its last step."""
    family, backend = request.param
    env = make_env(envs=8, family=family, steps=16, backend=backend)
    info = play(env, never=(Op.PRUNE, Op.WAIT))[-1][2][4]
    stage = env.slots.stage
    blended = (stage == Stage.BLENDING) | (stage == Stage.HOLDING)
    assert (stage == Stage.FOSSILIZED).any() and blended.any(), Counter(stage.flatten().tolist())
    return env, info


def test_contributions_equal_separate_passes(grown, digits):
    env, info = grown
    fossils = env.slots.stage == Stage.FOSSILIZED
    off = switched_off(measurable(env.slots).numpy(), fossils.numpy())
    correct = [
        env.population.evaluate(env.slots, digits[1], flags[None]).correct[0].double()
        for flags in off
    ]
    acting = in_stages(env.slots.stage, LIVE_STAGES) & (env.slots.alpha > 0)
    assert torch.equal(info.contribution.isnan(), ~acting) and acting.any()
    for slot in range(env.host.slots):
        difference = 100 * (correct[MAIN] - correct[WITHOUT + slot]).mean(1)
        rows = acting[:, slot]
        assert torch.allclose(info.contribution[rows, slot].double(), difference[rows], atol=1e-4)
    committed = 100 * correct[COMMITTED].mean(1)
    assert torch.allclose(info.committed_accuracy.double(), committed, atol=1e-4)
    assert torch.allclose(env.committed(digits[1])[0].double(), committed, atol=1e-4)
    assert (committed - info.live_accuracy).abs().max() > 0


def test_the_reported_loss_is_that_of_the_live_network_alone(grown, digits):
    """Not averaged with its ablations: a network with a useful seed is not blamed for being tried without it."""
    env, info = grown

    def loss(off):
        logits = logits_of(env.population, env.slots, digits[1].x, off)
        return torch.stack([nn.functional.cross_entropy(row, digits[1].y) for row in logits])

    expected = loss(torch.zeros_like(env.slots.stage, dtype=torch.bool))
    assert torch.allclose(info.val_loss, expected, atol=1e-4)
    # The ablations do say something else here.
    assert (loss(env.slots.stage > Stage.DORMANT) - expected).abs().max() > 1e-3


def test_a_refused_op_is_paid_as_the_wait_that_happened(make_env, play):
    env = make_env(envs=12, family="mlp", steps=9, reward=Reward(intervention_cost=0.25))
    refused = 0
    for _, actions, (*_, info) in play(env, prefer=(Op.ADVANCE, Op.FOSSILIZE)):
        no = (info.gate >= 0) & ~info.gate_passed
        assert (actions[no, 0] != Op.WAIT).all() and (info.components["fossilize"][no] == 0).all()
        # By hand: what was sampled, but nothing where the gate said no.
        costs = ((actions[:, 0] != Op.WAIT) & ~no) * -0.25
        assert torch.equal(info.components["intervention"], costs.double())
        refused += int(no.sum())
    assert refused > 5


# --- what the environment reports, what a step costs, and the spec ---


def test_an_epoch_has_the_batches_and_the_batch_size_of_the_params(make_env):
    orders = []

    class Watched(Population):
        def train_epoch(self, slots, data, order, *more):
            orders.append(order)
            return super().train_epoch(slots, data, order, *more)

    for batches, size in ((2, 32), (3, 16)):
        env = make_env(envs=2, steps=2, batches_per_epoch=batches, batch_size=size, compose=Watched)
        env.reset()
        env.step(torch.zeros(2, 8, dtype=torch.int64))
        assert orders.pop().shape == (2, batches, size)
    assert env.population._stores["host"].tensors["step"].tolist() == [3, 3]


def test_a_step_builds_no_module(make_env, play, monkeypatch):
    """Everything that can grow is laid out when the population is composed; nothing random appears in a forward."""
    env = make_env(envs=4, steps=8, backend="auto")

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
    choices = {"nothing": (), "op": (ops,), "slot": (slots,)}
    heads = {head.name: head for head in env.action_spec.heads}
    for name, mask in observation.masks.items():
        assert mask.dtype == torch.bool
        assert mask.shape == (3, *choices[heads[name].mask_given], heads[name].size), name
    assert {
        head.name for head in env.action_spec.heads[1:] if head.mask_given != "nothing"
    } <= observation.masks.keys()


def test_masks_of_many_hosts_cost_as_many_operations_as_those_of_one(make_env):
    counts = []
    for envs in (1, 30):
        env = make_env(envs=envs)
        env.reset()
        action_masks(env.slots, Lifecycle(), env.budget)  # constants are made once
        with Operations() as operations:
            action_masks(env.slots, Lifecycle(), env.budget)
        counts.append(operations.count)
    assert counts[0] == counts[1] > 0


def test_a_device_given_by_name_is_an_object_inside(make_env):
    env = make_env(envs=1)
    for place in (env.device, env.population.device):
        assert isinstance(place, torch.device)


def test_observation_and_masks_of_a_step_are_those_after_its_action(make_env):
    """What a bootstrap would look at: the state after the op and the host's epoch, not the one it was chosen in."""
    env = make_env(envs=4)
    before, _ = env.reset()
    after, *_ = env.step(act(4, Op.GERMINATE))
    assert not torch.equal(after.features, before.features)
    assert torch.equal(after.categories[:, 0], torch.zeros(4, dtype=torch.int64))
    assert (before.categories == -1).all()
    fresh = action_masks(env.slots, env.train.lifecycle, env.budget)
    assert all(torch.equal(after.masks[name], fresh[name]) for name in fresh)
    assert not torch.equal(after.masks["slot"], before.masks["slot"])


def test_the_kind_of_a_hosts_task_is_for_the_critic_and_not_in_the_features(make_env) -> None:
    data = [make_table(5, tasks=4, samples=64, seed=seed) for seed in (1, 2)]
    env = make_env(family="tables", data=data, kinds=(2, 0, -1, 1))
    silent = make_env(family="tables", data=data)
    assert (env.observation_spec.privileged, env.observation_spec.privileged_cardinality) == (1, 3)
    assert silent.observation_spec == replace(
        env.observation_spec, privileged=0, privileged_cardinality=0
    )
    options = {"tasks": torch.tensor([3, 0, 1, 2, 3, 0])}
    observation, _ = env.reset(options=options)
    plain, _ = silent.reset(options=options)
    kinds = torch.tensor([[1], [2], [0], [-1], [1], [2]])
    assert torch.equal(observation.privileged, kinds) and plain.privileged is None
    assert torch.equal(observation.features, plain.features)
    later, *_ = env.step(Action.wait(6))
    assert torch.equal(later.privileged, kinds)
