"""How each host of an episode grew: one entry per step, kept as it happens."""

from pydantic import JsonValue

from simic.envs.growth_env import GrowthEnv
from simic.envs.records import StepInfo
from simic.growth.vocabulary import Action, Op

ACCURACY_DIGITS = 3  # points; far below one sample of any split


class Histories:
    """The account of every host, read from the environment after each step."""

    def __init__(self, env: GrowthEnv) -> None:
        self.env = env
        self.entries: list[list[JsonValue]] = [[] for _ in range(env.num_envs)]

    def add(self, step: int, action: Action, info: StepInfo) -> None:
        """Takes in step ``step`` (from 0)."""
        heads, effective = [head.tolist() for head in action], info.effective_op.tolist()
        live = info.live_accuracy.tolist()
        for row, entries in enumerate(self.entries):
            decision = Action(*(head[row] for head in heads))
            known = live[row] == live[row]  # not NaN
            entry: dict[str, JsonValue] = {
                "step": step + 1,
                "live_accuracy_pct": round(live[row], ACCURACY_DIGITS) if known else None,
            }
            entries.append(entry | self._decision(decision, effective[row]))

    def _decision(self, action: Action, effective_op: int) -> dict[str, JsonValue]:
        op = Op(int(action.op))
        if op is Op.WAIT:
            return {}
        found: dict[str, JsonValue] = {"op": op.name, "slot": int(action.slot), "took_effect": effective_op == op}
        if op is Op.GERMINATE:
            found["blueprint"] = self.env.blueprints[int(action.blueprint)].name
        return found
