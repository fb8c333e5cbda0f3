"""A blind policy is an open loop: nothing of a host but its masks reaches it."""

from dataclasses import replace

import pytest
import torch
from tiny import TASKS, tiny_env

from simic.agent.normalization import Normalizers, ObservationNormalizer
from simic.agent.policy import ActorCritic
from simic.envs.play import play
from simic.evaluation.blind import EMPTY, Blind
from simic.evaluation.policies import BASELINES, actors
from simic.growth.life.vocabulary import Op
from simic.params import Evaluate, Params
from simic.training.learned import Learned, LearnedActor, describe_specs


def actor_of(env, greedy=True):
    """An untrained policy; its observation scales are those of a first observation."""
    policy = ActorCritic(env.action_spec, env.observation_spec, env.train.policy, 5).eval().requires_grad_(False)
    normalizer = ObservationNormalizer(env.observation_spec)
    observation, _ = env.reset(options={"iteration": 9})
    normalizer.update(observation.features, torch.ones(env.num_envs, dtype=torch.bool))
    return LearnedActor(policy, Normalizers(normalizer), greedy=greedy)


def played(env, actor, tasks):
    """Actions ``[T, E, heads]``, and whether all masks agreed at each step."""
    actions, agreed = [], []

    def note(situation, action, reward, info):
        actions.append(torch.stack(tuple(action), dim=1))
        agreed.append(all(bool((mask == mask[:1]).all()) for mask in situation.observation.masks.values()))

    play(env, actor, 0, note, tasks)
    return torch.stack(actions), torch.tensor(agreed)


def test_on_different_tasks_all_hosts_play_one_sequence_while_masks_agree(bank):
    env = tiny_env(bank)
    actions, agreed = played(env, Blind(actor_of(env)), torch.arange(TASKS))
    upto = int(agreed.int().cumprod(0).sum())
    assert upto >= 8
    assert (actions[:upto] == actions[:upto, :1]).all()
    assert len(actions[:upto, 0].unique(dim=0)) > 1, "a policy that always waits would show nothing"


def test_a_sighted_policy_tells_hosts_apart(bank):
    """Without this the law above would hold of any policy."""
    env = tiny_env(bank)
    actions, _ = played(env, actor_of(env), torch.arange(TASKS))
    assert (actions != actions[:, :1]).any()


@pytest.mark.parametrize("greedy", [True, False])
def test_with_one_host_it_is_the_policy_itself(bank, greedy):
    env = tiny_env(bank, hosts=1)
    found = [
        played(env, actor, torch.tensor([2]))[0] for actor in (actor_of(env, greedy), Blind(actor_of(env, greedy)))
    ]
    assert torch.equal(*found) and found[0].any()


class Watcher:
    """Keeps what it is shown."""

    def start(self, episode):
        pass

    def act(self, situation):
        self.seen = situation.observation


def test_what_is_shown_is_the_mean_of_the_living_and_the_masks_are_each_hosts_own(bank):
    env = tiny_env(bank, hosts=4)
    situations = []
    play(env, actor_of(env, greedy=False), 0, lambda s, a, r, i: situations.append(s), torch.arange(4))
    situation = situations[-1]
    categories = torch.tensor([[2, 5, -1], [2, 3, -1], [2, 5, -1], [0, 5, -1]])
    features = situation.observation.features.clone()
    features[3] = torch.nan
    given = replace(situation.observation, categories=categories, features=features)
    alive = torch.tensor([True, True, True, False])
    watcher = Watcher()
    Blind(watcher).act(replace(situation, observation=given, alive=alive))
    seen = watcher.seen
    # Over three living hosts; they agree on slots 0 and 2, and on slot 1 they do not.
    assert torch.allclose(seen.features, features[:3].mean(0).expand(4, -1), atol=1e-6)
    assert seen.categories.tolist() == [[2, EMPTY, -1]] * 4
    assert seen.masks is given.masks


def test_by_name_the_blind_policy_is_the_greedy_one_blind(bank):
    env = tiny_env(bank)
    sighted = actor_of(env)
    specs = describe_specs(env.action_spec, env.observation_spec)
    learned = Learned(sighted.policy, sighted.normalizers, specs, env.train, 1)
    named = actors(Params(train=env.train, evaluate=Evaluate(policies=("learned", "blind"))), env, learned)
    for actor, expected in ((named["learned"], sighted), (named["blind"], Blind(sighted))):
        assert torch.equal(*(played(env, each, torch.arange(TASKS))[0] for each in (actor, expected)))


def test_the_patient_rule_plays_a_whole_episode(bank):
    env = tiny_env(bank, hosts=3)
    actions, _ = played(env, BASELINES["patient"](env), torch.arange(3))
    assert (actions[:, :, 0] == Op.GERMINATE).any(dim=0).all()
