"""Save and resume inside an iteration, so that a kill costs steps and not the iteration.

``partial/<steps done, six digits>/`` lies beside the checkpoints and is written and verified as they are. It belongs
to the checkpoint of the last whole iteration and holds what a rollout moves: hosts, episode, what was seen and done.
Policy and scales stand still in a rollout, so they are in that checkpoint. One is kept, until the iteration is saved.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from simic import durable
from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic, part_of
from simic.agent.rollout import PartialRollout, Position, StepRecord
from simic.envs.growth_env import GrowthEnv
from simic.errors import SimicError
from simic.growth.batch.shards import ProcessLost
from simic.telemetry.columns import STEPS
from simic.telemetry.rows import FindingRow
from simic.training import checkpoint
from simic.training.checkpoint import (
    STATE_FILE,
    Checkpoint,
    Damaged,
    OtherFormat,
    SavedState,
    StateManifest,
    StateStore,
)
from simic.training.episodes import Collector, Tally, step_tensors

FOLDER = "partial"
PARTS = ("rollout/", "env/", "steps/", "tally/")  # what the names of tensors begin with


class PartialManifest(StateManifest):
    """The manifest of a partial checkpoint."""

    iteration: int  # iterations done before it
    step: int  # steps done of the rollout
    checkpoint_sha256: str  # of the tensors of the checkpoint that it belongs to
    columns: list[str]  # of the telemetry of a step, in their order
    findings: list[FindingRow]  # of this iteration so far


PartialCheckpoint = SavedState[PartialManifest]


class PartialStore(StateStore):
    """The partial checkpoints of one run, by steps done."""

    def write(self, tensors: Mapping[str, Tensor], manifest: PartialManifest) -> None:
        """Write a state in place of the one before; SimicError where that fails, which leaves that one as it was.

        Numbers that are not finite are written as they are: NaN stands for what was not measured, and a host may be
        broken until it is put back.
        """
        kept = [step for step in self.numbers() if step != manifest.step][-1:]
        steps = "".join(f" and {step} steps of the next one" for step in kept)
        text = f"{manifest.iteration} iterations{steps} are kept"
        checkpoint.write(self.path(manifest.step), tensors, manifest, text)
        self.clear(keep=manifest.step)

    def clear(self, keep: int | None = None) -> None:
        """Remove all but ``keep``, as when the iteration is saved whole. What was set aside stays."""
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if path.name.startswith("."):  # what a killed process left
                shutil.rmtree(path)
            elif path.name.isdecimal() and (keep is None or path != self.path(keep)):
                durable.remove_directory(path)

    def choose(self, newest: Checkpoint | None) -> tuple[PartialManifest | None, list[FindingRow]]:
        """Return the state to go on with after the ``newest`` checkpoint, if any, and findings about those that cannot
        be used, which are set aside. A state of an iteration that is saved by now is removed.
        """
        done, findings = 0 if newest is None else newest.manifest.iteration, list[FindingRow]()
        for step in reversed(self.numbers()):
            try:
                manifest = self.read(step).manifest
                if newest is None or manifest.iteration >= done:
                    _refuse_other(self.path(step), manifest, newest)
                    return manifest, findings
                durable.remove_directory(self.path(step))
            except Damaged as damage:
                findings.append(self.report(step, done, damage))
        return None, findings

    def report(self, step: int, done: int, damage: Damaged) -> FindingRow:
        """Set a state aside that cannot be used; the finding says why."""
        text = f"{damage}; kept as {FOLDER}/{self.set_aside(step).name}, iteration {done + 1} starts again"
        return FindingRow(iteration=done, check="damaged_checkpoint", severity="medium", message=text)

    def read(self, step: int) -> PartialCheckpoint:
        """Return the verified state after so many steps; ``Damaged`` naming the file and what is wrong with it."""
        try:
            saved = checkpoint.read_state(self.path(step), PartialManifest)
        except OtherFormat as other:
            raise Damaged(str(other)) from None
        if saved.manifest.step != step:
            raise Damaged(f"{saved.path}: holds the state after {saved.manifest.step} steps, not after {step}")
        return saved


def _refuse_other(path: Path, manifest: PartialManifest, newest: Checkpoint | None) -> None:
    """Raise ``Damaged`` unless it goes on from just that checkpoint."""
    if newest is None or manifest.iteration != newest.manifest.iteration:
        done = "none" if newest is None else f"that after {newest.manifest.iteration} iterations"
        raise Damaged(f"{path}: belongs to the checkpoint after {manifest.iteration} iterations, the newest is {done}")
    if manifest.checkpoint_sha256 != newest.manifest.sha256[STATE_FILE]:
        raise Damaged(f"{path}: belongs to another checkpoint than {newest.path}")


@dataclass(frozen=True)
class RolloutRecorder:
    """Collects the telemetry of one episode of all hosts while it is played; saved and restored between steps."""

    env: GrowthEnv
    collector: Collector
    tally: Tally

    @classmethod
    def begin(cls, env: GrowthEnv) -> Self:
        """Return the recorder of an episode before its first step."""
        return cls(env, Collector(STEPS), Tally(env))

    def add(self, transition: StepRecord) -> None:
        """Take in one step."""
        self.collector.add(step_tensors(transition))
        self.tally.add(transition.reward, transition.info)

    @property
    def columns(self) -> list[str]:
        """Return the names of the telemetry of a step, in their order."""
        return list(self.collector.state_dict())

    def tensors(self, reached: PartialRollout) -> dict[str, Tensor]:
        """Return everything that the steps so far have moved, as copies on the CPU."""
        states = reached.state_dict(), self.env.state_dict(), self.collector.state_dict(), self.tally.state_dict()
        moved = {part + name: x for part, state in zip(PARTS, states, strict=True) for name, x in state.items()}
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in moved.items()}

    def resume(
        self, saved: PartialCheckpoint, policy: ActorCritic, normalizers: Normalizers, iteration: int
    ) -> PartialRollout:
        """Go on exactly from there, nothing having been played yet; ``Damaged`` where that was another episode."""
        env, step = self.env, saved.manifest.step
        rollout, episode, steps, tally = (part_of(saved.tensors, part) for part in PARTS)
        observation, _ = env.reset(options={"iteration": iteration})
        try:
            position = Position.first(env, policy, observation)
            begun = PartialRollout.begun(position, env.steps, env.env_ids, policy, normalizers)
            reached = begun.resumed(rollout, step, env.load_state_dict(episode))
            for t in range(step):
                self.collector.add({name: steps[name][t] for name in saved.manifest.columns})
            self.tally.load_state_dict(tally)
        except ProcessLost:
            raise
        except (SimicError, ValueError, KeyError, IndexError) as error:
            raise Damaged(f"{saved.path}: does not fit this run: {error}") from None
        return reached
