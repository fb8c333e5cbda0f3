"""What replays say of policy and critic: figures by hand, and real replays beside the episodes they depart from."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hand_made import hand_made, ops, shown
from scipy import stats
from tiny import tiny_train

from simic.agent.normalization import RewardNormalizer
from simic.evaluation import statistics
from simic.evaluation.counterfactual import (
    Replay,
    critic,
    departures,
    grade,
    graded,
    returns_to_go,
    reward_scale,
    same_until,
)
from simic.evaluation.departing import FIRST_SEED, VERDICT
from simic.evaluation.policies import BASELINES
from simic.evaluation.result import DecisionGrade, GradedDecision, TriedChoice
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.growth.life.vocabulary import Op
from simic.params import Evaluate, Params, Runtime
from simic.training.checkpoint import Checkpoint, Manifest

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
    nothing = DecisionGrade(
        decisions=(), inexact=1, best=None, chance=None, advantage=None, regret=None, critic=None
    )  # fmt: skip
    assert graded([], [4, 4, 4], 1) == nothing


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
    actions = {"slot": [0, 1], "alpha_target": [1.0], "tempo": [3], "style": ["linear_add"]}
    train = tiny_train(episode_steps=11, batches_per_epoch=1, actions=actions, price=2.0)
    runtime = Runtime(processes=1, threads=1, backend="loop")
    return EvaluationSetup.open(Params(train=train, evaluate=Evaluate(eval_seeds=6), runtime=runtime), bank, policies=4)


@pytest.fixture(scope="module")
def played(setup):
    """The policy, and it again with one decision another: its actors and what they did."""
    own = hand_made(setup.env.action_spec, setup.env.observation_spec)
    actors = departures(own, openings=2)
    found = dict(play_for_score(setup, {"learned": own, **actors}))
    return found.pop("learned"), {name: (actors[name], done) for name, done in found.items()}


def test_nothing_is_replayed_where_none_is_asked_for(setup):
    assert departures(hand_made(setup.env.action_spec, setup.env.observation_spec), openings=0) == {}


def test_every_decision_is_graded_with_what_its_replays_came_to(setup, played):
    learned, tried = played
    found = grade(setup, learned, tried, SCALE)
    assert list(found) == [FIRST_SEED.name, VERDICT.name]
    first, verdict = found.values()
    assert [each.row for each in first.decisions] == [each.row for each in verdict.decisions] == list(range(6))
    assert {len(each.others) for each in first.decisions} == {2} and {
        len(each.others) for each in verdict.decisions
    } == {1}
    for question, actors in ((first, list(tried)[:2]), (verdict, list(tried)[2:])):
        assert question.inexact == 0
        for each in question.decisions:
            for done, told in zip(
                [learned, *(tried[name][1] for name in actors)], (each.taken, *each.others), strict=True
            ):
                bare = setup.env.host.params
                price = 2.0 * (done.score.params[each.row] - bare) / bare
                assert told.score == pytest.approx(done.score.test_accuracy_pct[each.row] - price, abs=1e-3)
                assert told.val_score == pytest.approx(done.score.val_accuracy_pct[each.row] - price, abs=1e-3)
                assert told.op == Op(int(done.turns[each.step].action.op[each.row])).name
    assert {each.taken.op for each in verdict.decisions} == {"FOSSILIZE"}
    assert {other.op for each in verdict.decisions for other in each.others} == {"PRUNE"}


def test_replays_are_the_episode_itself_up_to_the_decision_and_only_until_then(played):
    learned, tried = played
    for actor, done in tried.values():
        assert same_until(learned.turns, done.turns, actor.asked_at).all()
        assert not same_until(learned.turns, done.turns, actor.asked_at + 1).any()
    assert ops(learned.turns)[0] == (0, "GERMINATE")


def test_a_replay_that_was_another_episode_before_its_decision_is_not_counted(setup, played):
    learned, tried = played
    actor, _ = tried[VERDICT.name]
    [(_, other)] = play_for_score(setup, {"random": BASELINES["random_legal"](setup.env)})
    told = {VERDICT.name: (actor, replace(other, values=learned.values))}
    assert not torch.equal(shown(other.turns), shown(learned.turns))
    assert grade(setup, learned, told, SCALE)[VERDICT.name].inexact >= 5


def test_returns_to_go_are_discounted_sums_of_what_was_paid(setup, played):
    learned, _ = played
    rewards = torch.stack([turn.reward for turn in learned.turns])
    found = returns_to_go(learned.turns, GAMMA)
    for step in range(len(rewards)):
        by_hand = sum(GAMMA**k * reward for k, reward in enumerate(rewards[step:]))
        torch.testing.assert_close(found[step], by_hand)
    assert setup.env.train.ppo.gamma == GAMMA
    assert torch.equal(Replay.of(setup, learned, SCALE).to_go, found)


def test_the_critic_expects_the_reward_and_its_value_of_what_follows_and_nothing_after_the_end(setup, played):
    learned, _ = played
    assert learned.values is not None
    found = Replay.of(setup, learned, SCALE).expected
    for step, turn in enumerate(learned.turns[:-1]):
        torch.testing.assert_close(found[step], turn.reward + GAMMA * SCALE * learned.values[step + 1].double())
    assert torch.equal(found[-1], learned.turns[-1].reward)


def test_the_scale_of_the_critic_is_that_of_its_checkpoint():
    """Of two environments the returns 0 and 8: a deviation of 4 around their mean."""
    normalizer = RewardNormalizer(2, GAMMA)
    normalizer.update(torch.tensor([[0.0, 8.0]]), torch.ones(1, 2).bool(), torch.ones(1, 2).bool())
    state = {f"normalizers/reward.{name}": tensor for name, tensor in normalizer.state_dict().items()}
    manifest = Manifest.model_construct()
    assert reward_scale(Checkpoint(Path(), manifest, state), GAMMA) == pytest.approx(4.0)
    assert reward_scale(Checkpoint(Path(), manifest, {}), GAMMA) == 1.0
