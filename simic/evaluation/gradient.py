"""The gradient rule: one seed, behind the segment of the host that its loss would change most.

A segment's score is the relative gradient norm ‖g‖ / ‖w‖, the Auto-RGN of surgical fine-tuning (Lee et al. 2023,
arXiv 2210.11466), which says there what to adapt; here it says where to grow.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Episode, Situation
from simic.errors import SimicError
from simic.evaluation.baselines import SCHEDULED_BLUEPRINT, one_blueprint
from simic.evaluation.costs import BACKWARD_AND_FORWARD
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from simic.growth.export import GrownNetwork, grown_network
from simic.growth.life.vocabulary import Action

MEASURED_AT = 5  # step: after as many epochs; the gradients of a fresh host say little


class Gradient:
    """Germinates one blueprint (default: that of the fixed schedule) at step ``at`` (default: MEASURED_AT, or at once
    where the host is frozen), in the slot that can have it and whose segment has the largest relative gradient norm on
    one minibatch; then takes it through to FOSSILIZED.

    The minibatch is the first ``batch_size`` training samples of each host's task; it costs ``flops`` per host and
    episode beside the training.
    """

    def __init__(self, env: GrowthEnv, at: int | None = None, blueprint: str | None = None) -> None:
        self.env = env
        self.at = (0 if env.host.frozen else MEASURED_AT) if at is None else at
        names = [item.name for item in env.blueprints]
        name = blueprint or SCHEDULED_BLUEPRINT.get(env.blueprints[0].family, names[0])
        if name not in names:
            family = env.host.family
            raise SimicError(f"gradient rule: blueprint {name!r} of family {family!r}; known are {', '.join(names)}")
        self.blueprint = names.index(name)
        self.asks = one_blueprint(self.blueprint)

    @property
    def flops(self) -> int:
        """Of one measurement of one host: a forward and a backward pass."""
        return BACKWARD_AND_FORWARD * self.env.train.batch_size * self.env.host.flops_per_sample

    def start(self, episode: Episode) -> None:
        """Nothing is planned."""
        self.episode, self.plan = episode, OpenLoop([self._schedule(NONE)] * len(episode.env_ids))

    def act(self, situation: Situation) -> Action:
        """Measure once, then follow the plan."""
        if situation.step == self.at:
            first = self.episode.first_row
            norms = relative_gradients(self.env, range(first, first + len(self.episode.env_ids)))
            possible = situation.observation.masks["blueprint"][:, :, self.blueprint].cpu()
            score = torch.where(possible, norms.nan_to_num(0.0), -1.0)
            self.plan = OpenLoop([self._schedule(slot) for slot in score.argmax(dim=1).tolist()])
            self.plan.start(self.episode)
        return self.plan.act(situation)

    def _schedule(self, slot: int) -> Schedule:
        kinds = (self.blueprint if k == slot else NONE for k in range(self.env.host.slots))
        return Schedule(tuple(kinds), self.at)


def relative_gradients(env: GrowthEnv, rows: Sequence[int]) -> Tensor:
    """‖g‖ / ‖w‖ of every segment of every host of some rows ``[H, K]`` on the first training samples of its task, on
    the CPU; host by host, as a plain network with the seeds that act.
    """
    data = env.training_data
    found = []
    for row in rows:
        task = env.tasks[row]
        x, y = data.of_tasks(task[None], slice(0, env.train.batch_size))
        lacking = None if data.lacking is None else data.lacking[task].cpu()
        found.append(_of_network(grown_network(env.population, env.slots, row), x[0].cpu(), y[0].cpu(), lacking))
    return torch.stack(found)


def _of_network(network: GrownNetwork, x: Tensor, y: Tensor, lacking: Tensor | None) -> Tensor:
    """Of every segment ``[K]``; what is tied to the head counts for the segment."""
    logits = network(x)
    if lacking is not None:
        logits = logits.masked_fill(lacking, -torch.inf)
    F.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
    found = []
    for segment in network.segments:
        weights = torch.cat([parameter.detach().flatten() for parameter in segment.parameters()])
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in segment.parameters()]
        found.append(torch.cat([gradient.flatten() for gradient in gradients]).norm() / weights.norm())
    return torch.stack(found)
