"""Permuting what a policy reads costs it; permuting what it does not read costs nothing."""

from dataclasses import replace

import pytest
import torch
from tiny import tiny_env, tiny_train

from simic.envs.observations import columns
from simic.envs.play import Episode, play
from simic.evaluation import endpoints
from simic.evaluation.importance import GROUPS, STAGES, Permuted
from simic.evaluation.result import HeadroomReport, HostDescription, TaskRow
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.growth.life.vocabulary import ALPHA_TARGETS, Action, Op
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Evaluate, Params, Runtime

SLOTS, DECIDES = 3, 8
BLUEPRINTS = len(blueprints_of("cnn"))
NAMES = [name for name, _ in columns(SLOTS, BLUEPRINTS)]
FULL = ALPHA_TARGETS.index(1.0)


def test_every_observation_belongs_to_one_group():
    for name, row in columns(SLOTS, BLUEPRINTS):
        assert sum(row.source in sources for sources in GROUPS.values()) == 1, name
    assert {source for sources in GROUPS.values() for source in sources} == {
        row.source for _, row in columns(SLOTS, BLUEPRINTS)
    }


class Watcher:
    """Waits, and keeps what it is shown."""

    def start(self, episode):
        self.seen = []

    def act(self, situation):
        self.seen.append(situation.observation)
        return Action.wait(len(situation.alive))


@pytest.fixture(scope="module")
def situations(bank):
    found = []
    env = tiny_env(bank, 5, episode_steps=3, batches_per_epoch=1)
    play(env, Watcher(), 0, lambda situation, *rest: found.append(situation), torch.tensor([0, 1, 2, 3, 4]))
    return found


def shown(group, situations, iteration=0):
    watcher = Watcher()
    actor = Permuted(watcher, group, SLOTS, BLUEPRINTS)
    actor.start(Episode(torch.arange(5), iteration, 1, 4))
    for situation in situations:
        actor.act(situation)
    return actor.source, watcher.seen


@pytest.mark.parametrize("group", GROUPS)
def test_each_host_is_shown_one_other_host_s_group_all_along_and_its_own_rest_and_masks(group, situations):
    named = torch.arange(5 * len(NAMES), dtype=torch.float32).view(5, -1)
    holds = torch.arange(5)[:, None].expand(5, SLOTS)
    told = [
        replace(each, observation=replace(each.observation, features=named + each.step, categories=holds))
        for each in situations
    ]
    source, seen = shown(group, told)
    assert (source != torch.arange(5)).all() and source.sort().values.tolist() == [0, 1, 2, 3, 4]
    for given, got in zip(told, seen, strict=True):
        for column, (name, row) in enumerate(columns(SLOTS, BLUEPRINTS)):
            rows = source if row.source in GROUPS[group] else torch.arange(5)
            assert torch.equal(got.features[:, column], given.observation.features[rows, column]), name
        assert torch.equal(got.categories[:, 0], source if group == STAGES else torch.arange(5))
        assert got.masks is given.observation.masks


def test_whose_observations_are_shown_is_drawn_anew_for_each_group_and_episode(situations):
    drawn = [tuple(shown(group, situations, iteration)[0].tolist()) for group in GROUPS for iteration in (0, 1)]
    assert len(set(drawn)) > len(GROUPS)
    assert shown(STAGES, situations)[0].tolist() == shown(STAGES, situations)[0].tolist()


class GrowsWhereAccuracyIsLow:
    """Once, at a step given; what has grown is kept as soon as it may be. It reads its masks and one column."""

    def start(self, episode):
        pass

    def act(self, situation):
        masks, envs = situation.observation.masks, len(situation.alive)
        low = situation.observation.features[:, NAMES.index("accuracy_lag_0")] < 0.6
        grows = masks["op"][:, Op.GERMINATE] & low & (situation.step == DECIDES)
        keeps = masks["op"][:, Op.FOSSILIZE]
        op = torch.where(grows, int(Op.GERMINATE), torch.where(keeps, int(Op.FOSSILIZE), int(Op.WAIT)))
        blueprint = masks["blueprint"][:, 0].int().argmax(dim=1)
        return Action.wait(envs)._replace(op=op, blueprint=blueprint, alpha_target=torch.full((envs,), FULL))


def test_a_planted_policy_needs_the_group_that_it_reads_and_no_other(bank):
    train = tiny_train(episode_steps=22, actions={"blueprint": ["conv_heavy"], "slot": [0]})
    given = Params(train=train, evaluate=Evaluate(eval_seeds=6), runtime=Runtime(processes=1, threads=1))
    setup = EvaluationSetup.open(given, bank, policies=1 + len(GROUPS))
    players = {group: Permuted(GrowsWhereAccuracyIsLow(), group, SLOTS, BLUEPRINTS) for group in GROUPS}
    played = {name: each.score for name, each in play_for_score(setup, {"": GrowsWhereAccuracyIsLow(), **players})}
    headroom = HeadroomReport.model_construct(
        tasks=tuple(map(TaskRow.of, setup.held_out.tasks)), rows=tuple(setup.tasks.tolist()), price=0.0,
        host=HostDescription.of(setup.env.host),
    )  # fmt: skip
    read = "accuracy and loss"
    assert played[read] != played[""] and endpoints.lost(headroom, played[""], played[read]).estimate != 0.0
    for group in GROUPS.keys() - {read}:
        assert played[group] == played[""], group
        found = endpoints.lost(headroom, played[""], played[group])
        assert (found.low, found.estimate, found.high) == (0.0, 0.0, 0.0)
