"""The rollout of an iteration while it is played: what is collected on the way, saved and restored between steps."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.rollout import Position, StepRecord, Unfinished
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch.shards import ProcessLost
from simic.telemetry.columns import STEPS
from simic.training.checkpoint import Damaged
from simic.training.episodes import Collector, Tally, step_tensors
from simic.training.partial import PartialCheckpoint

PARTS = ("rollout/", "env/", "steps/", "tally/")


@dataclass(frozen=True)
class Playing:
    """One episode of all hosts."""

    env: GrowthEnv
    collector: Collector
    tally: Tally

    @classmethod
    def begun(cls, env: GrowthEnv) -> Self:
        """Before its first step."""
        return cls(env, Collector(STEPS), Tally(env))

    def add(self, transition: StepRecord) -> None:
        """Takes in one step."""
        self.collector.add(step_tensors(transition))
        self.tally.add(transition.reward, transition.info)

    @property
    def columns(self) -> list[str]:
        """Of the telemetry of a step, in their order."""
        return list(self.collector.state_dict())

    def tensors(self, reached: Unfinished) -> dict[str, Tensor]:
        """Everything that the steps so far have moved, as copies on the CPU."""
        states = reached.state_dict(), self.env.state_dict(), self.collector.state_dict(), self.tally.state_dict()
        found = {part + name: x for part, state in zip(PARTS, states, strict=True) for name, x in state.items()}
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found.items()}

    def resume(
        self, found: PartialCheckpoint, policy: ActorCritic, normalizers: Normalizers, iteration: int
    ) -> Unfinished:
        """Goes on exactly from there, nothing having been played yet; ``Damaged`` where that was another episode."""
        env, step = self.env, found.manifest.step
        rollout, episode, steps, tally = (_part(found.tensors, part) for part in PARTS)
        observation, _ = env.reset(options={"iteration": iteration})
        try:
            position = Position.first(env, policy, observation)
            begun = Unfinished.begun(position, env.steps, env.env_ids, policy, normalizers)
            reached = begun.resumed(rollout, step, env.load_state_dict(episode))
            for t in range(step):
                self.collector.add({name: steps[name][t] for name in found.manifest.columns})
            self.tally.load_state_dict(tally)
        except ProcessLost:
            raise
        except (SimicError, ValueError, KeyError, IndexError) as error:
            raise Damaged(f"{found.path}: does not fit this run: {error}") from None
        return reached


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
