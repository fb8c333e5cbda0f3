"""Policies that share an environment play as each would alone; what their hosts cost is counted by hand."""

from dataclasses import is_dataclass

import pytest
import torch
from tiny import STEPS, Breaks, tiny_env, tiny_train

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.envs.play import play
from simic.errors import SimicError
from simic.evaluation.policies import BASELINES, Blind
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from simic.evaluation.scoring import ROWS_AT_ONCE, Hosts, Turn, at_once, epoch_samples, of_rows, play_together, spent
from simic.growth.life.vocabulary import Op
from simic.training.learned import LearnedActor

ITERATION = 3
HOSTS = Hosts(torch.tensor([2, 0, 4]), torch.tensor([0, 1, 2]), ITERATION)


def learned(env, greedy=True):
    policy = ActorCritic(env.action_spec, env.observation_spec, env.train.policy, 5).eval().requires_grad_(False)
    for head in policy.heads:  # it begins as one that waits whatever it sees
        out = head.get_submodule("out")
        out.weight *= 100.0
        out.bias.zero_()
    policy.heads[0].get_submodule("out").bias[Op.GERMINATE] = 3.0
    return LearnedActor(policy, Normalizers(), greedy)


PLAYERS = {
    "greedy": learned,
    "sampled": lambda env: learned(env, greedy=False),
    "blind": lambda env: Blind(learned(env)),
    **{name: BASELINES[name] for name in ("random_legal", "patient")},
}


class Broken(Breaks):
    """Host by host."""

    row, last = 2, 4

    def __init__(self, *given):
        super().__init__(*given[:-1], "loop")


def make(bank, policies):
    actions = {"slot": [0, 1], "blueprint": ["norm", "conv_light"]}
    return tiny_env(bank, 3 * policies, Broken, episode_steps=11, batches_per_epoch=1, actions=actions)


@pytest.fixture(scope="module")
def together(bank):
    """The environment and every step of all policies."""
    env = make(bank, len(PLAYERS) + 1)
    return env, play_together(env, [player(env) for player in PLAYERS.values()], HOSTS)


def leaves(value, place=""):
    """Every tensor of a record by its place."""
    if isinstance(value, torch.Tensor):
        return {place: value}
    parts = vars(value) if is_dataclass(value) else value if isinstance(value, dict) else {}
    parts = value._asdict() if isinstance(value, tuple) else parts
    return {name: leaf for key, each in parts.items() for name, leaf in leaves(each, f"{place}.{key}").items()}


@pytest.mark.parametrize("name", PLAYERS)
def test_every_step_of_everyone_is_that_of_the_policy_alone_bit_for_bit(bank, together, name):
    """Also of those beside the host that was rolled back, which is the first policy's."""
    env, turns, place = make(bank, 1), [], list(PLAYERS).index(name)
    if place:
        env.population.epochs = 4  # nothing breaks
    play(env, PLAYERS[name](env), ITERATION, lambda *turn: turns.append(Turn(*turn)), HOSTS.tasks, HOSTS.ids)
    for own, shared in zip(turns, together[1], strict=True):
        expected, found = leaves(own), leaves(of_rows(shared, slice(3 * place, 3 * place + 3)))
        assert expected.keys() == found.keys() and len(expected) > 50
        for part, tensor in expected.items():
            assert torch.equal(tensor.nan_to_num(-7.0), found[part].nan_to_num(-7.0)), (own.situation.step, part)
    panicked = torch.stack([turn.info.panicked for turn in turns])
    assert panicked.any(dim=0).tolist() == [False, False, place == 0]
    assert torch.stack([turn.action.op for turn in turns]).any()


def test_rows_that_nobody_plays_never_grow(together):
    env, _ = together
    assert env.num_envs == 3 * len(PLAYERS) + 3
    assert not env.slots.germinations[-3:].any() and env.slots.germinations[:-3].any()


def test_populations_are_as_even_as_the_limit_on_rows_allows():
    # 20 hosts, 128 rows: at most 6 policies, so 7 are 4 and 3, and 13 are 5, 5 and 3.
    assert [at_once(20, policies) for policies in (1, 3, 6, 7, 11, 13)] == [1, 3, 6, 4, 6, 5]
    assert at_once(ROWS_AT_ONCE + 1, 4) == 1


def test_a_policy_that_needs_what_is_closed_is_refused_whoever_plays_beside_it(bank):
    env = tiny_env(bank, 2, episode_steps=2, actions={"op": ["WAIT", "GERMINATE"]})
    players = [BASELINES[name](env) for name in ("static", "patient")]
    with pytest.raises(SimicError, match=r"Patient needs op PRUNE, which train\.actions\.op closes"):
        play_together(env, players, Hosts(torch.zeros(1, dtype=torch.int64), torch.arange(1), ITERATION))


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "samples"), [("all", 96), (2, 64), (1, 32)])
def test_an_epoch_has_the_whole_batches_that_were_asked_for(asked, samples):
    assert epoch_samples(tiny_train(batches_per_epoch=asked), 100) == samples


def test_a_seed_costs_from_its_germination_on_and_training_three_passes_of_each_sample(bank):
    env, germinates, kind = tiny_env(bank, hosts=2), 5, 1
    flops = []
    actor = OpenLoop([Schedule((NONE,) * 3), Schedule((NONE, kind, NONE), germinates)])
    play(env, actor, 3, lambda situation, action, reward, info: flops.append(info.flops))
    bare, seed = env.host.flops_per_sample, env.blueprints[kind].flops(env.host.slot_shapes[1])
    assert seed > 0 and env.population.seed_flops(env.slots)[1].tolist() == [0, seed, 0]
    # In FLOPs of one sample's forward pass, of every step of the episode.
    passes = [STEPS * bare, STEPS * bare + (STEPS - germinates) * seed]
    training, validation = spent(env, torch.stack(flops).sum(dim=0))
    assert training.tolist() == [3 * 64 * each for each in passes]
    # All 2³ ways to switch three slots, of every validation sample.
    assert validation.tolist() == [8 * len(env.validation_data) * each for each in passes]
