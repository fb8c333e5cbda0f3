"""One decision another, all else equal: what can be chosen, what comes of it, what it says of policy and critic."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hand_made import hand_made, ops, shown
from scipy import stats
from tiny import LIFECYCLE, tiny_env, tiny_train

from simic.agent.normalization import RewardNormalizer
from simic.envs.actions import grammar, grammar_mask, to_action
from simic.envs.play import play
from simic.evaluation import statistics
from simic.evaluation.counterfactual import (
    FIRST_SEED,
    VERDICT,
    CounterfactualActor,
    Offers,
    Replay,
    counterfactual_actors,
    critic,
    grade,
    graded,
    returns_to_go,
    reward_scale,
)
from simic.evaluation.policies import BASELINES, RandomLegal
from simic.evaluation.result import DecisionGrade, GradedDecision, TriedChoice
from simic.evaluation.scoring import EvaluationSetup, Turn, of_rows, play_for_score
from simic.growth.life.vocabulary import Op
from simic.params import Runtime
from simic.training.checkpoint import Checkpoint, Manifest
from tests.standard import Evaluate, Params

ITERATION, TASK, HOST = 3, 2, 4
ACTIONS = {"slot": [0, 1], "alpha_target": [1.0], "tempo": [3], "style": ["linear_add"]}


def turns_of(env, actor):
    turns, tasks = [], torch.full_like(env.env_ids, TASK)
    play(env, actor, ITERATION, lambda *turn: turns.append(Turn(*turn)), tasks, env.env_ids)
    return turns


def learned(env):
    return hand_made(env.action_spec, env.observation_spec)


@pytest.fixture(scope="module")
def situations(bank):
    """Play hosts through all kinds of stages."""
    lifecycle = LIFECYCLE.model_copy(update={"max_seeds": 2, "auto_advance": False})
    env = tiny_env(bank, 6, episode_steps=9, batches_per_epoch=1, lifecycle=lifecycle)
    turns = []
    play(env, RandomLegal(env.action_spec), 0, lambda *turn: turns.append(Turn(*turn)))
    return env, turns


def test_offers_are_all_that_is_legal_with_the_probabilities_and_the_other_heads_of_the_policy(situations):
    env, turns = situations
    policy, every = learned(env).policy, grammar(env.action_spec)
    state = policy.initial_state(env.num_envs)
    for turn in turns:
        seen = turn.situation.observation
        offers, own = Offers.of(policy, seen, state), policy.act(seen, state, greedy=True)
        assert torch.allclose(offers.log_prob.exp().sum(dim=1), torch.ones(env.num_envs))
        legal = grammar_mask(env.action_spec, seen, every)
        for host in range(env.num_envs):
            whole = {tuple(each.tolist()) for each in every[legal[host]]}
            found = [tuple(each.tolist()) for each in offers.actions[host, offers.log_prob[host].isfinite()]]
            assert whole >= set(found)  # the other heads are legal too
            assert sorted(each[:3] for each in found) == sorted({each[:3] for each in whole})
        mine = offers.are(to_action(own.actions))
        assert (mine.sum(dim=1) == 1).all() and torch.equal(offers.actions[mine], own.actions)
        torch.testing.assert_close(offers.log_prob[mine], own.log_probs[:, :3].sum(dim=1))
        for place in offers.log_prob[0].isfinite().nonzero().flatten()[:5].tolist():
            scored = policy.act(of_rows(seen, slice(0, 1)), policy.initial_state(1), actions=offers.actions[:1, place])
            torch.testing.assert_close(offers.log_prob[:1, place], scored.log_probs[:, :3].sum(dim=1))


def test_another_first_seed_and_the_other_verdict_are_asked_for_once(bank):
    """The seed is pruned instead of kept; a verdict on a later one is the policy's own."""
    env = tiny_env(bank, 4, episode_steps=11, batches_per_epoch=1, actions=ACTIONS)
    env.env_ids = torch.full((4,), HOST)  # equal hosts
    own = turns_of(env, learned(env))
    first = CounterfactualActor(learned(env), FIRST_SEED, torch.tensor([0, 1, 2, 999]))
    turns = turns_of(env, first)
    assert first.asked_at.tolist() == [0] * 4 and first.departed.tolist() == [False, True, True, False]
    seeds = [(int(turns[0].action.slot[host]), int(turns[0].action.blueprint[host])) for host in range(4)]
    assert len(set(seeds)) == 3 and seeds[3] == seeds[0]
    assert seeds[0] == (int(own[0].action.slot[0]), int(own[0].action.blueprint[0]))
    assert first.log_prob[0] == first.own_log_prob[0] > first.log_prob[1] >= first.log_prob[2]
    verdict = CounterfactualActor(learned(env), VERDICT, torch.tensor([0, 0, 1, 1]))
    turns = turns_of(env, verdict)
    kept = next(step for step, op in ops(own) if op == "FOSSILIZE")
    assert verdict.asked_at.tolist() == [kept] * 4 and verdict.departed.tolist() == [False, False, True, True]
    assert ops(turns, 0) == ops(own) and ops(turns, 2)[:2] == [(0, "GERMINATE"), (kept, "PRUNE")]
    assert [op for _, op in ops(turns, 2)].count("PRUNE") == 1


# --- what comes of it -------------------------------------------------------------------------------------------------


GAMMA, SCALE = 0.995, 2.5


def choice(score, val, expected=0.0, following=0.0):
    return TriedChoice(
        op="WAIT", slot=None, blueprint=None, probability=0.5, score=score, val_score=val,
        return_to_go=following, expected=expected,
    )  # fmt: skip


def decision(row, taken, *others):
    return GradedDecision(row=row, step=3, taken=taken, others=others)


def test_the_figures_of_a_question_by_hand():
    """Hosts 0 and 1 share a task. Chosen by validation, scored by test: of host 1 the worse one looks better."""
    found = graded(
        [
            decision(0, choice(80, 81), choice(70, 71), choice(60, 61)),  # best; 15 above the mean of the others
            decision(1, choice(80, 70), choice(76, 75), choice(88, 60)),  # not best, -2; validation takes 76: -4
            decision(2, choice(50, 50), choice(90, 90)),  # not best, -40; lost 40
        ],
        tasks=[7, 7, 9],
        inexact=2,
    )
    assert found.inexact == 2 and found.best == pytest.approx(1 / 3)
    assert found.chance == pytest.approx((1 / 3 + 1 / 3 + 1 / 2) / 3)
    assert found.advantage == statistics.mean_interval([(15 - 2) / 2, -40.0])
    assert found.regret == statistics.mean_interval([(0 - 4) / 2, 40.0])


def test_of_one_task_hosts_stand_for_themselves_and_of_one_host_there_is_no_interval():
    pairs = [decision(row, choice(80 + row, 80), choice(70, 70)) for row in range(3)]
    assert graded(pairs, [4, 4, 4], 0).advantage == statistics.mean_interval([10.0, 11.0, 12.0])
    alone = graded(pairs[:1], [4, 4, 4], 0)
    assert (alone.advantage, alone.regret, alone.critic, alone.best) == (None, None, None, 1.0)
    figures = dict.fromkeys(("best", "chance", "advantage", "regret", "critic"))
    assert graded([], [4, 4, 4], 1) == DecisionGrade(decisions=(), inexact=1, **figures)


def test_the_critic_is_graded_by_the_differences_that_it_expected():
    expected, following = [0.1, 0.4, 0.2, 0.2, -1.0], [1.0, 3.0, 4.0, 0.5, -2.0]
    own = choice(80, 80, expected=5.0, following=50.0)
    found = graded(
        [
            decision(row, own, choice(70, 70, expected=5.0 + a, following=50.0 + b))
            for row, (a, b) in enumerate(zip(expected, following, strict=True))
        ],
        range(5),
        0,
    ).critic
    assert found is not None
    assert found.estimate == pytest.approx(stats.spearmanr(expected, following).statistic)
    assert -1 < found.low < found.estimate < found.high < 1
    assert critic([(1.0, 2.0)] * 3) is None and critic([(1.0, float(k)) for k in range(9)]) is None
    perfect = critic([(float(k), k**3.0) for k in range(9)])
    assert perfect is not None and (perfect.low, perfect.high) == (perfect.estimate, perfect.estimate)


@pytest.fixture(scope="module")
def setup(bank):
    """Two hosts of each of three tasks, several policies at once, each host by itself."""
    train = tiny_train(episode_steps=11, batches_per_epoch=1, actions=ACTIONS, price=2.0)
    runtime = Runtime(processes=1, threads=1, backend="loop")
    return EvaluationSetup.open(Params(train=train, evaluate=Evaluate(eval_seeds=6), runtime=runtime), bank, policies=4)


@pytest.fixture(scope="module")
def played(setup):
    """The policy, and it again with one decision another: its actors and what they did."""
    own = hand_made(setup.env.action_spec, setup.env.observation_spec)
    assert counterfactual_actors(own, openings=0) == {}
    actors = counterfactual_actors(own, openings=2)
    found = dict(play_for_score(setup, {"learned": own, **actors}))
    return found.pop("learned"), {name: (actors[name], done) for name, done in found.items()}


def test_every_decision_is_graded_with_what_its_replays_came_to(setup, played):
    learned, tried = played
    found = grade(setup, learned, tried, SCALE)
    assert list(found) == [FIRST_SEED.name, VERDICT.name]
    first, verdict = found.values()
    assert [each.row for each in first.decisions] == [each.row for each in verdict.decisions] == list(range(6))
    bare = setup.env.host.params
    for question, actors in ((first, list(tried)[:2]), (verdict, list(tried)[2:])):
        assert question.inexact == 0 and {len(each.others) for each in question.decisions} == {len(actors)}
        played_by = [learned, *(tried[name][1] for name in actors)]
        for each in question.decisions:
            for done, told in zip(played_by, (each.taken, *each.others), strict=True):
                price = 2.0 * (done.score.params[each.row] - bare) / bare
                assert told.score == pytest.approx(done.score.test_accuracy_pct[each.row] - price, abs=1e-3)
                assert told.val_score == pytest.approx(done.score.val_accuracy_pct[each.row] - price, abs=1e-3)
                assert told.op == Op(int(done.turns[each.step].action.op[each.row])).name
    assert {each.taken.op for each in verdict.decisions} == {"FOSSILIZE"}
    assert {other.op for each in verdict.decisions for other in each.others} == {"PRUNE"}


def test_a_replay_that_was_another_episode_before_its_decision_is_not_counted(setup, played):
    learned, tried = played
    actor, _ = tried[VERDICT.name]
    [(_, other)] = play_for_score(setup, {"random": BASELINES["random_legal"](setup.env)})
    told = {VERDICT.name: (actor, replace(other, values=learned.values))}
    assert not torch.equal(shown(other.turns), shown(learned.turns))
    assert grade(setup, learned, told, SCALE)[VERDICT.name].inexact >= 5


def test_returns_to_go_are_discounted_sums_and_the_critics_are_by_its_values(setup, played):
    learned, _ = played
    rewards = torch.stack([turn.reward for turn in learned.turns])
    found = returns_to_go(rewards, GAMMA)
    for step in range(len(rewards)):
        by_hand = sum(GAMMA**k * reward for k, reward in enumerate(rewards[step:]))
        torch.testing.assert_close(found[step], by_hand)
    assert setup.env.train.ppo.gamma == GAMMA
    assert torch.equal(Replay.of(setup, learned, SCALE).to_go, found)
    # The critic expects the reward and its value of what follows, and nothing after the end.
    assert learned.values is not None
    found = Replay.of(setup, learned, SCALE).expected
    for step, turn in enumerate(learned.turns[:-1]):
        torch.testing.assert_close(found[step], turn.reward + GAMMA * SCALE * learned.values[step + 1].double())
    assert torch.equal(found[-1], learned.turns[-1].reward)


def test_the_scale_of_the_critic_is_that_of_its_checkpoint():
    """The returns of two environments are 0 and 8: a deviation of 4 around their mean."""
    normalizer = RewardNormalizer(2, GAMMA)
    normalizer.update(torch.tensor([[0.0, 8.0]]), torch.ones(1, 2).bool(), torch.ones(1, 2).bool())
    state = {f"normalizers/reward.{name}": tensor for name, tensor in normalizer.state_dict().items()}
    manifest = Manifest.model_construct()
    assert reward_scale(Checkpoint(Path(), manifest, state), GAMMA) == pytest.approx(4.0)
    assert reward_scale(Checkpoint(Path(), manifest, {}), GAMMA) == 1.0
