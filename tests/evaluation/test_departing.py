"""One decision another, all else equal: what can be chosen, what is, and that nothing else changes."""

import pytest
import torch
from hand_made import hand_made, ops, shown
from tiny import LIFECYCLE, tiny_env

from simic.agent.spec import Observation
from simic.envs.actions import grammar, grammar_mask, to_action
from simic.envs.play import play
from simic.evaluation.baselines import RandomLegal, Static
from simic.evaluation.departing import FIRST_SEED, VERDICT, Departing, Offers, at_step
from simic.evaluation.side_by_side import Turn
from simic.growth.batch.population import Population
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Op

ITERATION, TASK, HOST = 3, 2, 4
ACTIONS = {"slot": [0, 1], "alpha_target": [1.0], "tempo": [3], "style": ["linear_add"]}


class OneByOne(Population):
    """Every host by itself."""

    def __init__(self, *given):
        super().__init__(*given[:-1], "loop")


def world(bank, rows, compose=Population, **changes):
    """So many hosts that are equal."""
    settings = {"episode_steps": 11, "batches_per_epoch": 1, "actions": ACTIONS} | changes
    env = tiny_env(bank, rows, compose, **settings)
    env.env_ids = torch.full((rows,), HOST)
    return env


def played(env, actor):
    turns = []
    play(
        env, actor, ITERATION, lambda *turn: turns.append(Turn(*turn)), torch.full_like(env.env_ids, TASK), env.env_ids
    )
    return turns


def learned(env):
    return hand_made(env.action_spec, env.observation_spec)


def ends(env, row):
    """Every weight of a host and its seeds, its slots, and its score on data that it has not seen."""
    score = torch.stack(env.committed(env.validation_data))[:, row]
    slots = {name: tensor[row] for name, tensor in env.slots.state_dict().items()}
    return {**env.population.named_parameters(env.slots, row), **slots, "score": score}


def assert_same_bytes(first, second):
    assert first.keys() == second.keys() and len(first) > 30
    for name, tensor in first.items():
        assert tensor.numpy().tobytes() == second[name].numpy().tobytes(), name


@pytest.mark.parametrize(("compose", "beside"), [(OneByOne, 1), (Population, 2)], ids=["one by one", "with a twin"])
def test_the_choice_taken_ends_in_the_same_bytes_among_hosts_that_chose_otherwise(bank, compose, beside):
    """As it does without them. Run one by one hosts need no twin for that."""
    few = world(bank, beside, compose)
    own = played(few, learned(few))
    assert [op for _, op in ops(own)] == ["GERMINATE", "FOSSILIZE"]
    many = world(bank, 6 * beside, compose)
    ranks = torch.arange(6).repeat_interleave(beside)
    actor = Departing(learned(many), at_step(0), ranks)
    turns = played(many, actor)
    assert actor.departed.tolist() == (ranks > 0).tolist()
    assert torch.equal(shown(turns)[:, 0], shown(own)[:, 0])
    assert_same_bytes(ends(few, 0), ends(many, 0))
    assert len({tuple(map(float, ends(many, row)["score"])) for row in range(0, 6 * beside, beside)}) > 2


@pytest.mark.parametrize("compose", [Population, OneByOne])
def test_never_to_germinate_is_the_static_policy(bank, compose):
    """This policy germinates in the first step or never: WAIT there leaves the host bare, like the rule that waits."""
    env = world(bank, 2, compose)
    offers = Offers.of(learned(env).policy, env.reset()[0], learned(env).policy.initial_state(2))
    order = offers.log_prob[0].argsort(descending=True)
    place = [int(offers.actions[0, each, 0]) for each in order].index(Op.WAIT)
    turns = played(env, Departing(learned(env), at_step(0), place))
    assert ops(turns) == []
    static = world(bank, 2, compose)
    played(static, Static())
    assert_same_bytes(ends(static, 0), ends(env, 0))


def test_nothing_is_drawn(bank, no_global_rng):
    env = world(bank, 4)
    actor = Departing(learned(env), at_step(0), torch.tensor([0, 0, 1, 1]))
    with no_global_rng():
        turns = played(env, actor)
    assert torch.equal(shown(turns)[:, ::2], shown(turns)[:, 1::2])
    assert not torch.equal(shown(turns)[:, 0], shown(turns)[:, 2])


@pytest.fixture(scope="module")
def situations(bank):
    """Of hosts in all kinds of stages."""
    lifecycle = LIFECYCLE.model_copy(update={"max_seeds": 2, "auto_advance": False})
    env = tiny_env(bank, 6, episode_steps=12, batches_per_epoch=1, lifecycle=lifecycle)
    turns = []
    play(env, RandomLegal(env.action_spec), 0, lambda *turn: turns.append(Turn(*turn)))
    return env, turns


def test_offers_are_all_that_is_legal_and_their_probabilities_sum_to_one(situations):
    env, turns = situations
    policy = learned(env).policy
    every = grammar(env.action_spec)
    for turn in turns:
        seen = turn.situation.observation
        offers = Offers.of(policy, seen, policy.initial_state(env.num_envs))
        assert torch.allclose(offers.log_prob.exp().sum(dim=1), torch.ones(env.num_envs))
        legal = grammar_mask(env.action_spec, seen, every)
        for host in range(env.num_envs):
            expected = {tuple(each[:3].tolist()) for each in every[legal[host]]}
            found = offers.actions[host, offers.log_prob[host].isfinite()]
            assert {tuple(each[:3].tolist()) for each in found} == expected and len(found) == len(expected)
            whole = {tuple(each.tolist()) for each in every[legal[host]]}
            assert all(tuple(each.tolist()) in whole for each in found)  # the other heads are legal too


def test_an_offer_has_the_probability_and_the_other_heads_of_the_policy(situations):
    env, turns = situations
    policy, state = learned(env).policy, learned(env).policy.initial_state(env.num_envs)
    for turn in turns:
        seen = turn.situation.observation
        offers, own = Offers.of(policy, seen, state), policy.act(seen, state, greedy=True)
        mine = offers.are(to_action(own.actions))
        assert (mine.sum(dim=1) == 1).all()
        assert torch.equal(offers.actions[mine], own.actions)
        torch.testing.assert_close(offers.log_prob[mine], own.log_probs[:, :3].sum(dim=1))
        for place in offers.log_prob[0].isfinite().nonzero().flatten()[:5].tolist():
            one = Observation(
                seen.features[:1], seen.categories[:1], {name: mask[:1] for name, mask in seen.masks.items()}
            )
            scored = policy.act(one, policy.initial_state(1), actions=offers.actions[:1, place])
            torch.testing.assert_close(offers.log_prob[:1, place], scored.log_probs[:, :3].sum(dim=1))


def test_another_first_seed_and_the_other_verdict_are_asked_for_once(bank):
    """The seed that is pruned instead of kept is gone, and no other decision is changed."""
    env = world(bank, 4)
    own = played(env, learned(env))
    first = Departing(learned(env), FIRST_SEED, torch.tensor([0, 1, 2, 999]))
    turns = played(env, first)
    assert first.asked_at.tolist() == [0] * 4 and first.departed.tolist() == [False, True, True, False]
    seeds = [(int(turns[0].action.slot[host]), int(turns[0].action.blueprint[host])) for host in range(4)]
    assert len(set(seeds)) == 3 and seeds[3] == seeds[0] == (
        int(own[0].action.slot[0]),
        int(own[0].action.blueprint[0]),
    )
    assert first.log_prob[0] == first.own_log_prob[0] > first.log_prob[1] >= first.log_prob[2]
    verdict = Departing(learned(env), VERDICT, torch.tensor([0, 0, 1, 1]))
    turns = played(env, verdict)
    kept = next(step for step, op in ops(own) if op == "FOSSILIZE")
    assert verdict.asked_at.tolist() == [kept] * 4 and verdict.departed.tolist() == [False, False, True, True]
    assert ops(turns, 0) == ops(own) and ops(turns, 2) == [(0, "GERMINATE"), (kept, "PRUNE")]
    assert in_stages(env.slots.stage, LIVE_STAGES).any(dim=1).tolist() == [True, True, False, False]


def test_a_question_that_never_comes_up_changes_nothing(bank):
    env = world(bank, 2, lifecycle=LIFECYCLE.model_copy(update={"training_dwell": 50}))
    actor = Departing(learned(env), VERDICT, 1)
    turns = played(env, actor)
    assert [op for _, op in ops(turns)] == ["GERMINATE"]
    assert actor.asked_at.tolist() == [-1, -1] and not actor.departed.any()
