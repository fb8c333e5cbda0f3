"""The explorer follows the patient rule under plans of its own, and its odds are those it states."""

import torch

from simic.envs.explorer import KEEP_ABOVE_PCT, Explorer
from simic.envs.patient import Patient
from simic.envs.play import Episode
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Lifecycle
from tests.evaluation.scripted import MANUAL, World, episode

NAMES = [item.name for item in blueprints_of("cnn")]
OPEN = torch.tensor([[name in ("bottleneck", "depthwise", "norm") for name in NAMES]]).expand(3, -1)


def explorer(openings=OPEN):
    return Explorer(Lifecycle(), 40, openings, "cnn")


def plans(hosts, iteration=0):
    actor = explorer()
    actor.start(Episode(torch.arange(hosts), iteration, 1))
    return actor.plan


def test_every_plan_tries_every_opening_once():
    plan = plans(50)
    found = {tuple(sorted(map(tuple, order))) for order in plan.order.tolist()}
    assert found == {tuple(sorted(map(tuple, OPEN.nonzero().tolist())))}


def test_the_first_try_has_the_odds_that_are_stated():
    """Three slots each of bottleneck, depthwise and norm, 4 : 2 : 1; norm is in no preference and comes last."""
    first = plans(21_000).order[:, 0]
    for name, share in (("bottleneck", 4 / 7), ("depthwise", 2 / 7), ("norm", 1 / 7)):
        for slot in range(3):
            mine = ((first == torch.tensor([slot, NAMES.index(name)])).all(dim=1)).double().mean()
            assert abs(mine - share / 3) < 0.01
    keep = plans(21_000).keep_above
    assert all(abs((keep == threshold).double().mean() - 0.25) < 0.015 for threshold in KEEP_ABOVE_PCT)


def test_plans_are_a_hash_of_environment_and_iteration():
    assert torch.equal(plans(8).order[3:5], plans(5).order[3:5])
    assert not torch.equal(plans(8).order, plans(8, iteration=1).order)


def test_with_the_same_plan_it_decides_as_the_patient_rule(monkeypatch):
    openings = torch.ones(3, len(NAMES), dtype=torch.bool)
    monkeypatch.setattr(Explorer, "_plan", Patient._plan)
    actors = Explorer(MANUAL, 40, openings, "cnn"), Patient(MANUAL, 40, openings.nonzero().tolist())
    worlds = [World(envs=30, lifecycle=MANUAL) for _ in actors]
    for actor, world in zip(actors, worlds, strict=True):
        actor.start(episode(world))
    for step in range(40):
        own, theirs = (actor.act(world.situation(step)) for actor, world in zip(actors, worlds, strict=True))
        assert all(torch.equal(mine, yours) for mine, yours in zip(own, theirs, strict=True))
        for world in worlds:
            world.step(own, step)
    assert worlds[0].slots.germinations.sum() > 30
