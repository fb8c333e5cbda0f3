"""Compare a whole run on a Gymnasium environment: its iterations with the reference of the learner, and its episodes
with the environment itself, played again from seeds and actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from safetensors.torch import load_file

from simic import durable
from simic.data.batches import ENVIRONMENT_FILE
from simic.evaluation.result import BLIND, SAMPLED
from simic.telemetry.columns import ACTIONS, DECIDED
from simic.telemetry.publish import VALIDATED_FILE
from simic.training.checkpoint import Checkpoint
from tests.reference import agent, environment, evaluation, streams
from tests.reference.bank import NoReference
from tests.reference.comparison import Comparison, ComparisonLog
from tests.reference.environment import Replayer
from tests.reference.finished_run import FinishedRun

ENVIRONMENTS = 2
MOST_STEPS = 20_000  # of training that are played again; of each the first steps
EPISODES = 3  # of each policy, and of validation
RETURN = 1e-6  # relative: a sum in another order
ALLOWED = {"decisions": 1e-4, "return": RETURN}


@dataclass(frozen=True)
class FinishedGymRun(FinishedRun):
    """Compare a run on a Gymnasium environment."""

    @cached_property
    def replayer(self) -> Replayer:
        """Return what plays the environment that was prepared."""
        if self.run.params.prepare.gym.vector == "tensors":
            raise NoReference("a vector environment on tensors is not played again")
        described = durable.checked((self.prepared / ENVIRONMENT_FILE).read_bytes())
        firsts = [head["first"] for head in self.latest.manifest.specs["action"]["heads"]]
        return Replayer(described, self.run.params.rng_seed, self.known.interface, firsts)

    def episodes(self, hosts: Sequence[int] | None = None) -> Sequence[Comparison]:
        """Play some environments of training again from the first iteration on, and validation episodes."""
        steps = self.run.steps
        log = ComparisonLog(ALLOWED)
        heads = [factor.name for factor in self.known.interface.factors]
        actions = np.stack([steps.column(f"{ACTIONS}.{name}") for name in heads], axis=-1)[
            :MOST_STEPS
        ]
        count = actions.shape[1]
        for env in evaluation.chosen(self.run.params.rng_seed, 0, count, min(ENVIRONMENTS, count)):
            recorded = {
                n: steps.column(n)[:, env] for n in ("seen", "reward", "terminated", "truncated")
            }
            for t, step in enumerate(
                self.replayer.play(environment.TRAINING, env, actions[:, env].tolist())
            ):
                label = f"environment {env}, step {t + 1}"
                log.equal(
                    "observation", label, environment.hashed(step.seen) == recorded["seen"][t]
                )
                log.equal("reward", label, step.reward == np.float32(recorded["reward"][t]))
                flags = step.terminated, step.truncated
                log.equal(
                    "ends of episodes",
                    label,
                    flags == (recorded["terminated"][t], recorded["truncated"][t]),
                )
        self._validated(log)
        return log.comparisons()

    def _validated(self, log: ComparisonLog) -> None:
        best = (self.run.checkpoints or {}).get("best")
        path = self.telemetry / VALIDATED_FILE
        if best is None or not path.exists():
            return
        chose = self.run.validations.column("iteration") + 1 == best.manifest.iteration
        decided = load_file(path)[DECIDED].tolist()
        returns = self.run.validations.column("return")[chose][0]
        for env in range(min(EPISODES, len(decided))):
            taken = [row for row in decided[env] if row[0] >= 0]
            played = environment.VALIDATION, env, taken, float(returns[env])
            self._episode("validation", best, *played, None, log)

    def _episode(
        self, name: str, kept: Checkpoint, namespace: int, env: int, taken: Sequence[Sequence[int]], claimed: float,
        noise: torch.Tensor | None, log: ComparisonLog,
    ) -> None:  # fmt: skip
        """Compare one episode: its return in the environment, its end, and every decision with the weights."""
        steps = list(self.replayer.play(namespace, env, taken))
        label = f"{name}, episode {env}"
        total = float(sum(float(step.reward) for step in steps))
        log.number("return", label, claimed, total, max(1.0, abs(total)))
        ends = [step.terminated or step.truncated for step in steps]
        log.equal("end of an episode", label, ends[-1] and not any(ends[:-1]))
        if name != BLIND:
            features, rows = environment.rows(steps, taken)
            sizes = self.run.params.train.policy
            none = torch.zeros(len(steps), 0, dtype=torch.int64)
            off = agent.misplaced(
                kept.tensors, self.known.interface, sizes, features, none, rows, noise
            )
            log.note("decisions", label, float(off.max()))

    def evaluation(self) -> Sequence[Comparison]:
        """Play recorded episodes of the evaluated policies again, decided by the published weights."""
        evaluated = self.run.gym
        log = ComparisonLog(ALLOWED)
        kept = (self.run.checkpoints or {}).get(evaluated.checkpoint) if evaluated else None
        if evaluated is None or kept is None or not evaluated.actions:
            raise NoReference("no trained policy was evaluated")
        for name, episodes in evaluated.actions.items():
            returns = evaluated.policies[name].per_seed.returns
            for env, episode in enumerate(episodes[:EPISODES]):
                taken = [[int(index) for index in step.split()] for step in episode]
                noise = None
                if name == SAMPLED:
                    drawn = self.run.params.rng_seed, streams.ACTIONS, environment.EVALUATION
                    noise = agent.noise(*drawn, [env], len(taken), len(taken[0]))[:, 0]
                self._episode(
                    name, kept, environment.EVALUATION, env, taken, returns[env], noise, log
                )
        return log.comparisons()
