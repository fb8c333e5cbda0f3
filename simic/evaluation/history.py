"""How each host of an episode grew: one entry per step, kept as it happens."""

import math

from pydantic import JsonValue
from torch import Tensor

from simic.envs.actions import RELEVANT
from simic.envs.governor import Cause
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Situation
from simic.envs.records import StepInfo
from simic.growth.life.vocabulary import (
    ALPHA_SPEED_STEPS,
    ALPHA_TARGETS,
    STYLE_NAMES,
    TEMPO_STEPS,
    Action,
    Curve,
    Op,
    Stage,
)

ACCURACY_DIGITS = 3  # points; far below one sample of any split


class Histories:
    """The account of so many hosts of an environment, told of each step."""

    def __init__(self, env: GrowthEnv, hosts: int) -> None:
        self.blueprints = [item.name for item in env.blueprints]
        self.entries: list[list[JsonValue]] = [[] for _ in range(hosts)]
        self.stages = [[int(Stage.DORMANT)] * env.host.slots for _ in range(hosts)]

    def add(self, situation: Situation, action: Action, reward: Tensor, info: StepInfo) -> None:
        """Takes in one step."""
        heads, effective, live = (
            [head.tolist() for head in action],
            info.effective_op.tolist(),
            info.live_accuracy.tolist(),
        )
        valid, causes, stages = info.valid.tolist(), info.cause.tolist(), info.stage.tolist()
        for row, entries in enumerate(self.entries):
            entry: dict[str, JsonValue] = {
                "step": situation.step + 1,
                "live_accuracy_pct": round(live[row], ACCURACY_DIGITS) if math.isfinite(live[row]) else None,
            }
            if valid[row]:
                decision = dict(zip(Action._fields, (head[row] for head in heads), strict=True))
                entry |= self._decision(decision, effective[row])
            if causes[row] != Cause.NONE:
                entry["rolled_back"] = Cause(causes[row]).name
            if changes := self._changes(row, stages[row]):
                entry["stages"] = changes
            entries.append(entry)
        self.stages = stages

    def _decision(self, chosen: dict[str, int], effective_op: int) -> dict[str, JsonValue]:
        """The op with the heads it uses, in words; nothing for WAIT."""
        op = Op(chosen["op"])
        if op is Op.WAIT:
            return {}
        words: dict[str, JsonValue] = {
            "slot": chosen["slot"],
            "blueprint": self.blueprints[chosen["blueprint"]],
            "style": STYLE_NAMES[chosen["style"]],
            "tempo": TEMPO_STEPS[chosen["tempo"]],
            "alpha_target": ALPHA_TARGETS[chosen["alpha_target"]],
            "alpha_speed": ALPHA_SPEED_STEPS[chosen["alpha_speed"]],
            "alpha_curve": Curve(chosen["alpha_curve"]).name.lower(),
        }
        used = {name: words[name] for name in RELEVANT[op]}
        return {"op": op.name, **used, "took_effect": effective_op == op}

    def _changes(self, row: int, after: list[int]) -> dict[str, JsonValue]:
        """Slots whose stage is another than after the step before, by whatever made it so."""
        pairs = enumerate(zip(self.stages[row], after, strict=True))
        return {str(slot): f"{Stage(old).name} -> {Stage(new).name}" for slot, (old, new) in pairs if old != new}
