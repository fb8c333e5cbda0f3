"""Record all of an iteration that a reference needs to derive it: the states around it and its rollout."""

import torch
from torch import Tensor

from simic.agent.rollout import Position, Rollout
from simic.training.session import Session

BY_STEP = (
    "actions",
    "log_probs",
    "values",
    "next_values",
    "rewards",
    "terminated",
    "truncated",
    "valid",
)
BY_STEP += ("advantages", "returns")


class IterationRecorder:
    """Watches the learner of an open session; ``iterations`` has the tensors of each iteration by its number.

    ``before/…`` and ``after/…`` are the states around it; rollout columns are ``[T, E, …]``, observations ``[T+1, E,
    …]``. Of episodes that go on from rollout to rollout it has ``starts``, ``finals`` (the last observations of
    truncated ones) and ``memory/…`` at the first step as well.
    """

    def __init__(self, session: Session) -> None:
        self.iterations: dict[int, dict[str, Tensor]] = {}
        state = session.state
        task = state.task
        update, keep_position, recorder = state.ppo.update, task.keep_position, task.recorder

        def recording():
            self._before = state.tensors()
            self._finals: dict[int, Tensor] = {}
            inner = recorder()
            add = inner.add

            def note(step):
                final = getattr(step.info, "final", None)
                if final is not None:
                    self._finals[step.step] = final.features.clone()
                add(step)

            object.__setattr__(inner, "add", note)
            return inner

        def kept(end: Position) -> None:
            self._end = end
            keep_position(end)

        def updated(rollout: Rollout, iteration: int):
            tensors = {f"before/{name}": tensor for name, tensor in self._before.items()}
            tensors |= self._columns(rollout)
            if task.position() is not None:
                tensors |= self._of_running_episodes(rollout)
            metrics = update(rollout, iteration)
            tensors |= {f"after/{name}": tensor for name, tensor in state.tensors().items()}
            self.iterations[iteration] = tensors
            return metrics

        task.recorder, task.keep_position, state.ppo.update = recording, kept, updated

    def _columns(self, rollout: Rollout) -> dict[str, Tensor]:
        last = self._end.observation
        privileged = last.categories[:, :0] if last.privileged is None else last.privileged
        seen = {
            "features": (rollout.raw_features, last.features),
            "categories": (rollout.categories, last.categories),
            "privileged": (rollout.privileged, privileged),
            **{f"masks.{name}": (mask, last.masks[name]) for name, mask in rollout.masks.items()},
        }
        tensors = {name: torch.cat((steps, after[None])) for name, (steps, after) in seen.items()}
        tensors |= {name: getattr(rollout, name).clone() for name in BY_STEP}
        return tensors | {"env_ids": rollout.env_ids[None]}

    def _of_running_episodes(self, rollout: Rollout) -> dict[str, Tensor]:
        finals = torch.zeros_like(rollout.raw_features)
        for step, features in self._finals.items():
            finals[step] = torch.where(rollout.truncated[step][:, None], features, 0.0)
        memory = {
            "memory/h": rollout.state.h[None].clone(),
            "memory/c": rollout.state.c[None].clone(),
        }
        return {"starts": rollout.starts.clone(), "finals": finals, **memory}
