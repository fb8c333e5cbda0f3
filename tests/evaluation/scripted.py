"""Hosts without networks: the real lifecycle and masks on measurements that are a hash."""

from dataclasses import dataclass

import torch

from simic import rng
from simic.agent.spec import Observation
from simic.envs import actions
from simic.envs import tracker as tracking
from simic.envs.actions import Budget, action_masks, action_spec
from simic.envs.play import Episode, Situation
from simic.growth.life.lifecycle import LIVE_STAGES, advance, in_stages, record
from simic.growth.life.vocabulary import Op, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Lifecycle
from tests import standard

SLOTS = 3
MANUAL = standard.Lifecycle(auto_advance=False, min_prune_age=3)


@dataclass
class World:
    """E hosts without networks: the real lifecycle and masks on measurements that are a hash of (env, step)."""

    envs: int = 40
    lifecycle: Lifecycle = MANUAL

    def __post_init__(self):
        self.slots = Slots.empty(self.envs, SLOTS)
        self.tracker = tracking.Tracker.empty(self.envs)
        names = blueprints_of("cnn")
        self.spec = action_spec(SLOTS, len(names))
        self.budget = Budget(
            torch.full((SLOTS, len(names)), 10), 1000.0, torch.ones(len(names), dtype=torch.bool)
        )
        self.features = torch.zeros(self.envs, 1)
        self.accuracy = torch.full((self.envs,), 50.0)
        self.validate(0)

    def validate(self, step):
        stream = rng.key(9, rng.Purpose.BASELINE, torch.arange(self.envs), step)
        acting = (self.slots.alpha > 0).any(1)
        # Accuracy stands still until a seed blends in.
        self.accuracy = (self.accuracy + rng.normal(stream) * (2.5 * acting)).clamp(0, 100)
        self.tracker = tracking.update(self.tracker, 1.0 - self.accuracy / 1000, self.accuracy)
        contribution = rng.normal(stream, (SLOTS + 1,))[:, :SLOTS] * 3
        acting_seeds = in_stages(self.slots.stage, LIVE_STAGES) & (self.slots.alpha > 0)
        unlucky = (
            rng.uniform(stream, (SLOTS + 5,))[:, :SLOTS] < 0.2
        )  # not every measurement succeeds
        contribution = torch.where(acting_seeds & ~unlucky, contribution, torch.nan)
        healthy = torch.ones_like(acting_seeds)
        error, ratio = torch.full_like(contribution, 0.3), torch.ones_like(contribution)
        self.slots = record(self.slots, self.accuracy, contribution, error, ratio, healthy)

    def situation(self, step):
        masks = action_masks(self.slots, self.lifecycle, self.budget)
        observation = Observation(self.features, self.slots.blueprint, masks)
        alive = torch.ones(self.envs, dtype=torch.bool)
        return Situation(observation, self.slots, self.tracker, alive, step)

    def step(self, action, step):
        self.slots, _ = advance(self.slots, action, self.lifecycle, self.accuracy)
        self.validate(step + 1)


def seeds_of(slots):
    """Return what a scalar rule sees of the seeds of each host."""
    fields = (
        "dwell",
        "age",
        "ramp",
        "contribution",
        "contribution_se",
        "gradient_healthy",
        "stage",
    )
    columns = zip(*(getattr(slots, name).flatten().tolist() for name in fields), strict=True)
    seeds = [dict(zip(fields, values, strict=True)) for values in columns]
    seeds = [
        {**seed, "stage": Stage(seed["stage"]), "slot": place % SLOTS}
        for place, seed in enumerate(seeds)
    ]
    return [seeds[first : first + SLOTS] for first in range(0, len(seeds), SLOTS)]


def as_the_scalar_rules(world, actor, scalars, steps):
    """Play an episode in which each host does as its scalar rule, asked for (op, slot, blueprint), would; return the
    ops and hosts that were met.
    """
    actor.start(Episode(torch.arange(world.envs), 0, 1, steps))
    met = set()
    for step in range(steps):
        situation = world.situation(step)
        action, masks = actor.act(situation), situation.observation.masks
        assert actions.legal(world.spec, masks, action).all()
        did = torch.stack([action.op, action.slot, action.blueprint], dim=1).tolist()
        by_host = zip(
            scalars,
            seeds_of(world.slots),
            masks["slot"].tolist(),
            masks["blueprint"].tolist(),
            strict=True,
        )
        for host, (scalar, seeds, slots, blueprints) in enumerate(by_host):

            def can(op, slot, kind, slots=slots, blueprints=blueprints):
                return slots[op][slot] and (op != Op.GERMINATE or blueprints[slot][kind])

            op, slot, kind = scalar.act(seeds, can, step)
            assert Op(did[host][0]) == op, (step, host)
            assert op == Op.WAIT or did[host][1] == slot
            assert op != Op.GERMINATE or did[host][2] == kind
            met.add((op, host))
        world.step(action, step)
    return met
