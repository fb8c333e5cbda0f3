"""A blind policy is an open loop: nothing of a host but its masks reaches it."""

from dataclasses import replace

import pytest
import torch
from tiny import TASKS, tiny_env, untrained

from simic.envs.play import play
from simic.evaluation.policies import EMPTY, Blind


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
    actions, agreed = played(env, Blind(untrained(env)), torch.arange(TASKS))
    upto = int(agreed.int().cumprod(0).sum())
    assert upto >= 8
    assert (actions[:upto] == actions[:upto, :1]).all()
    assert len(actions[:upto, 0].unique(dim=0)) > 1, "a policy that always waits would show nothing"
    # Without this the law above would hold of any policy: one that sees tells hosts apart.
    actions, _ = played(env, untrained(env), torch.arange(TASKS))
    assert (actions != actions[:, :1]).any()


@pytest.mark.parametrize("greedy", [True, False])
def test_with_one_host_it_is_the_policy_itself(bank, greedy):
    env, task = tiny_env(bank, hosts=1), torch.tensor([2])
    sighted, blind = (played(env, actor, task)[0] for actor in (untrained(env, greedy), Blind(untrained(env, greedy))))
    assert torch.equal(sighted, blind) and blind.any()


class Watcher:
    """Keeps what it is shown."""

    def act(self, situation):
        self.seen = situation.observation


def test_what_is_shown_is_the_mean_of_the_living_and_the_masks_are_each_hosts_own(bank):
    env, situations = tiny_env(bank, hosts=4), []
    play(env, untrained(env, greedy=False), 0, lambda s, a, r, i: situations.append(s), torch.arange(4))
    situation = situations[-1]
    categories = torch.tensor([[2, 5, -1], [2, 3, -1], [2, 5, -1], [0, 5, -1]])
    features = situation.observation.features.clone()
    features[3] = torch.nan
    given = replace(situation.observation, categories=categories, features=features)
    watcher = Watcher()
    Blind(watcher).act(replace(situation, observation=given, alive=torch.tensor([True, True, True, False])))
    # Over three living hosts; they agree on slots 0 and 2, and on slot 1 they do not.
    assert torch.allclose(watcher.seen.features, features[:3].mean(0).expand(4, -1), atol=1e-6)
    assert watcher.seen.categories.tolist() == [[2, EMPTY, -1]] * 4
    assert watcher.seen.masks is given.masks
