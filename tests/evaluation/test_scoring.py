"""How many policies share an environment, what is shown to a blind one, and what hosts cost, counted by hand."""

from dataclasses import replace

import pytest
import torch
from tiny import STEPS, tiny_env, tiny_train

from simic.agent.spec import Observation
from simic.envs.play import Situation, play
from simic.errors import SimicError
from simic.evaluation.policies import BASELINES, EMPTY, Blind
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from simic.evaluation.scoring import (
    ROWS_AT_ONCE,
    Hosts,
    SideBySide,
    at_once,
    episode_flops,
    epoch_samples,
    play_together,
)
from simic.growth.life.vocabulary import Action, Slots

ITERATION = 3


def test_populations_are_as_even_as_the_limit_on_rows_allows():
    # 20 hosts, 128 rows: at most 6 policies, so 7 are 4 and 3, and 13 are 5, 5 and 3.
    assert [at_once(20, policies) for policies in (1, 3, 6, 7, 11, 13)] == [1, 3, 6, 4, 6, 5]
    assert at_once(ROWS_AT_ONCE + 1, 4) == 1


def test_a_policy_that_needs_what_is_closed_is_refused_whoever_plays_beside_it(bank):
    env = tiny_env(bank, 2, episode_steps=2, actions={"op": ["WAIT", "GERMINATE"]})
    players = [BASELINES[name](env) for name in ("static", "patient")]
    with pytest.raises(
        SimicError, match=r"Patient needs op PRUNE, which train\.actions\.op closes"
    ):
        play_together(
            env, players, Hosts(torch.zeros(1, dtype=torch.int64), torch.arange(1), ITERATION)
        )


class Numbered:
    """Decides by the features that it is shown, and by who it is."""

    def __init__(self, number: int) -> None:
        self.number = number

    def act(self, situation):
        choice = situation.observation.features[:, 0].long() + 1000 * self.number + situation.step
        return Action(*[choice + head for head in range(len(Action._fields))])


def test_every_policy_decides_its_own_rows_however_many_and_in_every_step():
    hosts = 150
    rows = torch.arange(3.0 * hosts)[:, None]
    slots = Slots.empty(3 * hosts, 2)
    observation = Observation(rows, torch.zeros(3 * hosts, 2, dtype=torch.int64), {})
    together = SideBySide([Numbered(k) for k in range(3)], torch.arange(hosts))
    expected = torch.arange(3 * hosts) + 1000 * torch.arange(3).repeat_interleave(hosts)
    for step in range(20):
        alive = torch.ones(3 * hosts, dtype=torch.bool)
        action = together.act(Situation(observation, slots, None, alive, step))
        for head, chosen in enumerate(action):
            assert torch.equal(chosen, expected + step + head)


# --- a blind policy is an open loop: nothing of a host but its masks reaches it ---


class Watcher:
    """Keeps what it is shown."""

    def act(self, situation):
        self.observation = situation.observation


def test_what_is_shown_is_the_mean_of_the_living_and_the_masks_are_each_hosts_own(bank):
    env = tiny_env(bank, hosts=4)
    observation, _ = env.reset()
    categories = torch.tensor([[2, 5, -1], [2, 3, -1], [2, 5, -1], [0, 5, -1]])
    features = torch.arange(4.0)[:, None] + observation.features
    features[3] = torch.nan
    observation = replace(observation, categories=categories, features=features)
    alive, watcher = torch.tensor([True, True, True, False]), Watcher()
    Blind(watcher).act(Situation(observation, env.slots, None, alive, 0))
    # Over three living hosts; they agree on slots 0 and 2, and on slot 1 they do not.
    shown = watcher.observation
    assert torch.allclose(shown.features, features[:3].mean(0).expand(4, -1), atol=1e-6)
    assert shown.categories.tolist() == [[2, EMPTY, -1]] * 4
    assert shown.masks is observation.masks


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "samples"), [("all", 96), (2, 64), (1, 32)])
def test_an_epoch_has_the_whole_batches_that_were_asked_for(batches, samples):
    assert epoch_samples(tiny_train(batches_per_epoch=batches), 100) == samples


def test_a_seed_costs_from_its_germination_on_and_training_three_passes_of_each_sample(bank):
    env, germinates, kind = tiny_env(bank, hosts=2), 5, 1
    flops = []
    actor = OpenLoop([Schedule((NONE,) * 3), Schedule((NONE, kind, NONE), germinates)])
    play(env, actor, 3, lambda situation, action, reward, info: flops.append(info.flops))
    bare, seed = env.host.flops_per_sample, env.blueprints[kind].flops(env.host.slot_shapes[1])
    assert seed > 0 and env.population.seed_flops(env.slots)[1].tolist() == [0, seed, 0]
    # In FLOPs of one sample's forward pass, of every step of the episode.
    passes = [STEPS * bare, STEPS * bare + (STEPS - germinates) * seed]
    training, validation = episode_flops(env, torch.stack(flops).sum(dim=0))
    assert training.tolist() == [3 * 64 * flops_of_host for flops_of_host in passes]
    # All 2³ ways to switch three slots, of every validation sample.
    assert validation.tolist() == [
        8 * len(env.validation_data) * flops_of_host for flops_of_host in passes
    ]
