"""From tensors of a step to rows of telemetry: one transfer per step, and what an episode adds up to."""

from typing import Literal

import torch
from torch import Tensor

from simic.agent.rollout import StepRecord
from simic.envs.governor import Cause
from simic.envs.growth_env import GrowthEnv
from simic.envs.records import StepInfo
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.telemetry.rows import EpisodeRow, EventRow, StepRow

SIGNIFICANT_DIGITS = 9  # enough to tell any two float32 apart


def step_row(iteration: int, transition: StepRecord) -> StepRow:
    """The row of one step of all hosts."""
    info: StepInfo = transition.info
    columns = dict(zip(Action._fields, transition.decision.actions.unbind(dim=1), strict=True))
    columns |= {"log_prob": transition.decision.joint, "value": transition.decision.value, "reward": transition.reward}
    columns |= {f"components.{name}": value for name, value in info.components.items()}
    columns |= {name: value for name, value in vars(info).items() if name not in ("components", "blueprint")}
    columns["slot_blueprint"] = info.blueprint
    values = to_lists(columns)
    components = {name.partition(".")[2]: values.pop(name) for name in list(values) if name.startswith("components.")}
    return StepRow(iteration=iteration, step=transition.step + 1, components=components, **values)


def to_lists(columns: dict[str, Tensor]) -> dict[str, list]:
    """Tensors ``[E]`` or ``[E, K]`` as nested lists of their own type, in one device-to-host transfer."""
    packed = torch.cat([column.reshape(len(column), -1).double() for column in columns.values()], dim=1).cpu()
    widths = [column[0].numel() for column in columns.values()]
    parts = zip(columns.items(), packed.split(widths, dim=1), strict=True)
    return {name: _typed(part.reshape(column.shape), column.dtype) for (name, column), part in parts}


def _typed(part: Tensor, dtype: torch.dtype) -> list:
    if dtype.is_floating_point:
        values = part.tolist()
        return values if dtype == torch.float64 else _shortened(values)
    return part.to(dtype).tolist()


def _shortened(values: list) -> list:
    """Without the digits that float64 adds to a float32."""
    return [
        _shortened(value) if isinstance(value, list) else float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in values
    ]


class Tally:
    """Adds up the episode of every host, on the device."""

    def __init__(self, env: GrowthEnv):
        self.env = env
        self.returns = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        self.length = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        self.pruned = torch.zeros_like(self.length)
        self.panicked = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        shape = (env.num_envs, env.host.slots)
        self.stage = torch.full(shape, int(Stage.DORMANT), device=env.device)  # every episode begins without seeds
        self.last: StepInfo | None = None

    def add(self, reward: Tensor, info: StepInfo) -> None:
        """Takes in one step; steps after a rollback count nothing."""
        self.returns = self.returns + torch.where(info.valid, reward, 0.0)
        self.length = self.length + info.valid
        newly = (info.stage == Stage.PRUNED) & (self.stage != Stage.PRUNED)
        self.pruned = self.pruned + newly.sum(dim=1)
        self.panicked = self.panicked | info.panicked
        self.stage, self.last = info.stage, info

    def row(self, iteration: int, split: Literal["train", "validation"]) -> EpisodeRow:
        """The row of the finished episodes."""
        info = self.last
        if info is None:
            raise ValueError("an episode has at least one step")
        columns = {
            "env_id": self.env.env_ids,
            "return_": self.returns,
            "length": self.length,
            "committed_accuracy": info.committed_accuracy,
            "live_accuracy": info.live_accuracy,
            "params": info.params,
            "committed_params": info.committed_params,
            "germinated": self.env.slots.germinations.sum(dim=1),
            "fossilized": (info.stage == Stage.FOSSILIZED).sum(dim=1),
            "pruned": self.pruned,
            "panicked": self.panicked,
        }
        return EpisodeRow(iteration=iteration, split=split, **to_lists(columns))


def events(row: StepRow, before: list[list[int]], episode_steps: int) -> list[EventRow]:
    """What happened in a step; ``before [E][K]`` are the stages at its beginning."""
    found = []

    def add(name: str, env: int, slot: int, detail: str) -> None:
        found.append(EventRow(iteration=row.iteration, step=row.step, name=name, env=env, slot=slot, detail=detail))

    for env, stages in enumerate(row.stage):
        if row.panicked[env]:
            add("rollback", env, -1, f"{Cause(row.cause[env]).name}, {episode_steps - row.step} rows lost")
        if row.gate[env] >= 0 and not row.gate_passed[env]:
            add("gate_refused", env, row.slot[env], f"G{row.gate[env]} {Op(row.op[env]).name}")
        for slot, (old, new) in enumerate(zip(before[env], stages, strict=True)):
            if old != new:
                add(Stage(new).name.lower(), env, slot, f"from {Stage(old).name}")
    return found
