"""The environment on a real population and real data: legality, accounting, measurements, rollbacks."""

from collections import Counter

import pytest
import torch
from growth.worlds import logits_of

from simic.envs.attribution import COMMITTED, MAIN, WITHOUT, configurations, measurable
from simic.envs.rewards.default import potential
from simic.errors import SimicError
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Action, Op, Stage
from tests.standard import PPOParams, Reward

from .test_shapley import by_permutations

FAMILIES = ("cnn", "mlp")


@pytest.mark.parametrize("ending", ["terminate", "truncate"])
def test_shaping_telescopes_over_played_episodes(make_env, play, transitions, ending):
    env = make_env(envs=12, steps=12, episode_end=ending)
    steps = play(env)
    gamma, weight = env.train.ppo.gamma, env.train.reward.pbrs_weight
    paid = sum(gamma**t * step[2][4].components["shaping"] for t, step in enumerate(steps))
    # The first state has empty slots, Φ = 0; the last counts only when the episode was cut, not ended.
    left = weight * gamma**12 * potential(transitions[-1][0].after)
    alive = env.state.alive
    expected = torch.where(alive & (ending == "truncate"), left, 0.0)
    assert left.max() > 1
    assert (paid - expected).abs().max() < 1e-6


def test_shaping_is_discounted_by_the_agents_gamma(make_env):
    env = make_env(envs=1, ppo=PPOParams(minibatches=1, gamma=0.5))
    env.reset()
    germinate = Action.wait(1)._replace(op=torch.tensor([int(Op.GERMINATE)]))
    paid = [float(env.step(action)[4].components["shaping"][0]) for action in (germinate, Action.wait(1))]
    # F = 0.3 (γΦ(s') - Φ(s)); Φ is 0 without a seed, 1 + 0.3 per epoch of a GERMINATED one.
    assert paid == pytest.approx([0.3 * 0.5 * 1.3, 0.3 * (0.5 * 1.6 - 1.3)], abs=1e-9)


@pytest.mark.parametrize("ending", ["terminate", "truncate"])
def test_an_episode_ends_once_at_its_last_step(make_env, play, ending):
    env = make_env(envs=4, steps=5, episode_end=ending)
    ends = [(step[2][2].all().item(), step[2][3].all().item()) for step in play(env)]
    assert ends[:-1] == [(False, False)] * 4
    assert ends[-1] == (ending == "terminate", ending == "truncate")
    paid = [step[2][4].components["terminal"].abs().sum().item() for step in play(env)]
    assert paid[:-1] == [0.0] * 4 and paid[-1] > 0
    with pytest.raises(SimicError, match="the episode ended at step 5; call reset first"):
        env.step(Action.wait(4))


def test_a_forbidden_action_is_refused_by_name(make_env):
    env = make_env(envs=2)
    with pytest.raises(SimicError, match="no episode is running"):
        env.step(Action.wait(2))
    env.reset()
    action = Action.wait(2)._replace(op=torch.tensor([0, int(Op.FOSSILIZE)]))
    with pytest.raises(SimicError, match=r"'op': 4.* of host 1 at step 0: forbidden"):
        env.step(action)
    for head, value in (("slot", -1), ("slot", 3), ("style", 4), ("op", 6), ("blueprint", -1)):
        action = Action.wait(2)._replace(**{"op": torch.tensor([0, 1]), head: torch.tensor([0, value])})
        with pytest.raises(SimicError, match=rf"'{head}': {value}.* of host 1 at step 0: forbidden"):
            env.step(action)
    assert env.slots.stage.eq(Stage.DORMANT).all()  # nothing was half done


def test_reset_measures_fresh_hosts_before_anything_is_trained(make_env, digits):
    env = make_env(envs=3)
    observation, info = env.reset(options={"iteration": 4})
    logits = logits_of(env.population, env.slots, digits[1].x, torch.zeros(3, env.host.slots, dtype=torch.bool))
    accuracy = 100 * (logits.argmax(2) == digits[1].y).float().mean(1)
    assert torch.allclose(info.live_accuracy, accuracy) and torch.allclose(info.committed_accuracy, accuracy)
    assert info.train_loss.isnan().all() and not info.components and info.effective_op.eq(-1).all()
    first = observation.features
    env.step(Action.wait(3))
    again, _ = env.reset(options={"iteration": 4})
    other, _ = env.reset()
    assert torch.equal(again.features, first) and env.iteration == 5
    assert not torch.equal(other.features, first)


def play_until_fossilized(env, play):
    """A random walk that ends with some seeds FOSSILIZED and others live."""
    steps = play(env, never=(Op.PRUNE, Op.WAIT))
    stage = env.slots.stage
    blended = (stage == Stage.BLENDING) | (stage == Stage.HOLDING)
    assert (stage == Stage.FOSSILIZED).any() and blended.any(), Counter(stage.flatten().tolist())
    return steps


def test_a_broken_network_has_no_committed_accuracy(make_env, digits):
    env = make_env(envs=2)
    env.reset()
    with torch.no_grad():
        env.population._stores["host"].param[1].fill_(torch.nan)
    accuracy, _ = env.committed(digits[1])
    assert accuracy.isnan().tolist() == [False, True]


@pytest.mark.parametrize("family", FAMILIES)
def test_contributions_equal_separate_passes(make_env, play, digits, family):
    env = make_env(envs=8, family=family, steps=24)
    info = play_until_fossilized(env, play)[-1][2][4]
    off = configurations(env.slots)
    alone = [env.population.evaluate(env.slots, digits[1], one[None]).correct[0].double() for one in off]
    acting = in_stages(env.slots.stage, LIVE_STAGES) & (env.slots.alpha > 0)
    assert torch.equal(info.contribution.isnan(), ~acting) and acting.any()
    for slot in range(env.host.slots):
        difference = 100 * (alone[MAIN] - alone[WITHOUT + slot]).mean(1)
        rows = acting[:, slot]
        assert torch.allclose(info.contribution[rows, slot].double(), difference[rows], atol=1e-4)
    committed = 100 * alone[COMMITTED].mean(1)
    assert torch.allclose(info.committed_accuracy.double(), committed, atol=1e-4)
    assert torch.allclose(env.committed(digits[1])[0].double(), committed, atol=1e-4)
    assert (committed - info.live_accuracy).abs().max() > 0


def test_shapley_values_are_those_of_networks_run_one_by_one(make_env, play, digits):
    """At live alpha, for hosts with different numbers of acting seeds."""
    env = make_env(envs=6, family="mlp", steps=24)
    play_until_fossilized(env, play)
    found, acting = env.shapley(), measurable(env.slots)
    assert acting.sum(dim=1).max() >= 2 and torch.equal(found.isnan(), ~acting)
    slots = range(env.host.slots)
    off = torch.tensor([[[not members >> k & 1 for k in slots]] * 6 for members in range(2 ** len(slots))])
    answers = torch.cat([env.population.evaluate(env.slots, digits[1], one[None]).correct for one in off])
    for row in range(6):
        for slot, value in by_permutations(answers, acting[row].nonzero().flatten().tolist(), row).items():
            assert float(found[row, slot]) == pytest.approx(value, abs=1e-6)


def test_a_refused_op_is_paid_as_the_wait_that_happened(make_env, play):
    env = make_env(envs=12, steps=16, reward=Reward(intervention_cost=0.25))
    refused = 0
    for _, actions, (*_, info) in play(env, prefer=(Op.ADVANCE, Op.FOSSILIZE)):
        no = (info.gate >= 0) & ~info.gate_passed
        assert (actions[no, 0] != Op.WAIT).all() and (info.components["fossilize"][no] == 0).all()
        # By hand: what was sampled, but nothing where the gate said no.
        cost = [0.0 if op == Op.WAIT or gone else -0.25 for op, gone in zip(actions[:, 0], no, strict=True)]
        assert info.components["intervention"].tolist() == cost
        refused += int(no.sum())
    assert refused > 5
