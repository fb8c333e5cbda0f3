"""Turn tensors of steps into columns of telemetry, fetched once per episode, and into sums of the episode."""

import numpy as np
import torch
from torch import Tensor

from simic.agent.rollout import StepRecord
from simic.envs.governor import Cause
from simic.envs.growth_env import GrowthEnv
from simic.envs.records import StepInfo
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.telemetry.columns import COMPONENTS, EPISODES, Column, Columns, EventColumns, published


class Collector:
    """Collects the columns of each step: copied on the device as they come, fetched together."""

    def __init__(self, table: dict[str, Column]):
        self._table = table
        # Of each type one flat tensor [E, n] a step.
        self._steps: dict[torch.dtype, list[Tensor]] = {}
        self._shapes: dict[torch.dtype, dict[str, torch.Size]] = {}

    def add(self, columns: dict[str, Tensor]) -> None:
        """Add the columns of a step, ``[E]`` or ``[E, K]``."""
        by_dtype: dict[torch.dtype, dict[str, Tensor]] = {}
        for name, values in columns.items():
            by_dtype.setdefault(self._dtype(name, values), {})[name] = values
        for dtype, group in by_dtype.items():
            # A copy: the next step may write into the same memory.
            flat = torch.cat([values.reshape(len(values), -1) for values in group.values()], dim=1)
            self._steps.setdefault(dtype, []).append(flat.to(dtype))
            self._shapes[dtype] = {name: values.shape for name, values in group.items()}

    def _dtype(self, name: str, values: Tensor) -> torch.dtype:
        """Choose the table's type; a float stays as it was measured, unless numpy has no such type."""
        if values.is_floating_point():
            return values.dtype if values.dtype == torch.float64 else torch.float32
        return getattr(torch, self._table[name].dtype)

    def columns(self) -> Columns:
        """Fetch ``[T, E]`` or ``[T, E, K]``, in one transfer for each type of number."""
        columns: Columns = {}
        for dtype, steps in self._steps.items():
            shapes = self._shapes[dtype]
            # One transfer for all steps and columns of a type; then cut apart on the CPU.
            parts = (
                torch.stack(steps)
                .cpu()
                .split([shape[1:].numel() for shape in shapes.values()], dim=2)
            )
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                columns[name] = part.reshape(len(steps), *shape).numpy()
        return columns


# Of a step's info: recorded otherwise, or not at all.
NO_COLUMNS = (COMPONENTS, "blueprint", "score", "replaced")


def step_tensors(step: StepRecord) -> dict[str, Tensor]:
    """Name the columns of one step of all hosts."""
    info: StepInfo = step.info
    columns = dict(zip(Action._fields, step.decision.actions.unbind(dim=1), strict=True))
    columns |= {
        "log_prob": step.decision.joint,
        "value": step.decision.value,
        "reward": step.reward,
    }
    columns |= {f"{COMPONENTS}/{name}": value for name, value in info.components.items()}
    columns |= {name: value for name, value in vars(info).items() if name not in NO_COLUMNS}
    return columns | {"slot_blueprint": info.blueprint}


# Columns of an episode that its last step has.
LAST = (
    "committed_accuracy",
    "score",
    "live_accuracy",
    "params",
    "committed_params",
    "committed_flops",
)


class Tally:
    """Adds up the episode of every host, on the device."""

    def __init__(self, env: GrowthEnv):
        self.env = env
        # In float64, as rewards are: the audit adds them up again from the log and compares.
        self.returns = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        self.length = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        self.pruned = torch.zeros_like(self.length)
        self.panicked = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        # Sum and count of the gradient norms of the host, and of its seeds.
        self.norms = torch.zeros(4, env.num_envs, dtype=torch.float64, device=env.device)
        # Every episode begins without seeds.
        shape = (env.num_envs, env.host.slots)
        self.stage = torch.full(shape, int(Stage.DORMANT), device=env.device)
        self.last: dict[str, Tensor] = {}  # columns that the newest step has of the whole episode

    def add(self, reward: Tensor, info: StepInfo) -> None:
        """Take in one step; steps after a rollback do not count."""
        self.returns = self.returns + torch.where(info.valid, reward, 0.0)
        self.length = self.length + info.valid
        # A seed leaves by a prune, or because a new one takes its place.
        pruned_now = ((info.stage == Stage.PRUNED) & (self.stage != Stage.PRUNED)) | info.replaced
        self.pruned = self.pruned + pruned_now.sum(dim=1)
        self.panicked = self.panicked | info.panicked
        # Gradient norms of what trained.
        trained = info.valid[:, None] & ~info.seed_grad_norm.isnan()
        host_norm = torch.where(info.valid, info.host_grad_norm, 0.0).double()
        seed_norm = torch.where(trained, info.seed_grad_norm, 0.0).double().sum(dim=1)
        self.norms = self.norms + torch.stack(
            (host_norm, info.valid, seed_norm, trained.sum(dim=1))
        )
        self.stage = info.stage
        self.last = {name: getattr(info, name) for name in LAST}

    def columns(self) -> Columns:
        """Fetch the columns of the finished episodes, ``[E]``, as they are published."""
        if not self.last:
            raise ValueError("an episode has at least one step")
        collector = Collector(EPISODES)
        collector.add(
            {
                "env_id": self.env.env_ids,
                "task": self.env.tasks,
                "return": self.returns,
                "length": self.length,
                "pruned": self.pruned,
                "panicked": self.panicked,
                "host_grad_norm": self.norms[0] / self.norms[1],
                "seed_grad_norm": self.norms[2] / self.norms[3],  # NaN where none trained
                "germinated": self.env.slots.germinations.sum(dim=1),
                "fossilized": (self.stage == Stage.FOSSILIZED).sum(dim=1),
                **self.last,
            }
        )
        return {name: published(values[0]) for name, values in collector.columns().items()}


ROLLBACK, REFUSED, STAGE = range(3)  # what an event is about


def events(steps: Columns) -> EventColumns:
    """List the events of an episode by step and host: rollbacks, refusals of a gate, changed stages of slots."""
    # Episodes begin without seeds.
    stage = steps["stage"].astype(np.int64)
    stage_before = np.concatenate((np.full_like(stage[:1], Stage.DORMANT), stage[:-1]))
    refused = (steps["gate"] >= 0) & ~steps["gate_passed"]
    # A new seed in the place of a live one may be in the same stage at the end of its first step.
    germinated = (steps["effective_op"] == Op.GERMINATE)[..., None]
    germinated = germinated & (steps["slot"][..., None] == np.arange(stage.shape[2]))
    # What happened in each slot of each host.
    changed = (stage != stage_before) | germinated

    # All events in the order of steps and hosts; the third index says what happened, and in which slot.
    happened = np.concatenate((steps["panicked"][..., None], refused[..., None], changed), axis=2)
    step, env, place = np.nonzero(happened)
    about = np.minimum(place, STAGE)
    slot = np.maximum(place - STAGE, 0)
    kinds = [about == ROLLBACK, about == REFUSED]
    rows_lost = len(stage) - 1 - step
    first = np.select(
        kinds, [steps["cause"][step, env], steps["gate"][step, env]], stage_before[step, env, slot]
    )
    second = np.select(kinds, [rows_lost, steps["op"][step, env]], stage[step, env, slot])

    # The few different texts once, by a number made of what they say.
    base = 1 + int(max(first.max(initial=0), second.max(initial=0)))
    codes, text = np.unique((about * base + first) * base + second, return_inverse=True)
    # A rollback is of the whole host, and of no slot.
    slot = np.select(kinds, [-1, steps["slot"][step, env]], slot)
    columns = {"step": step + 1, "env": env, "slot": slot, "text": text}
    return EventColumns(
        columns,
        [_text(code // base**2, code // base % base, code % base) for code in codes.tolist()],
    )


def _text(about: int, first: int, second: int) -> tuple[str, str]:
    if about == ROLLBACK:
        return "rollback", f"{Cause(first).name}, {second} rows lost"
    if about == REFUSED:
        return "gate_refused", f"G{first} {Op(second).name}"
    origin = (
        "a new seed in the place of a live one" if first == second else f"from {Stage(first).name}"
    )
    return Stage(second).name.lower(), origin
