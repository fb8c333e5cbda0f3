"""The account of how hosts grew: what was chosen, what came of it, what happened by itself."""

import torch

from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.evaluation.export_best import history
from simic.evaluation.scoring import Turn
from simic.growth.life.vocabulary import TEMPO_STEPS, Action, Op
from tests import standard
from tests.envs.test_faults import poisoned
from tests.growth.worlds import DATA

STEPS = 8


class Script:
    """Germinates one seed in each host at the second step."""

    def start(self, episode):
        self.alive = []

    def act(self, situation):
        self.alive.append(situation.alive.tolist())
        op = torch.full((2,), int(Op.GERMINATE if situation.step == 1 else Op.WAIT))
        return Action.wait(2)._replace(
            op=op, slot=torch.tensor([0, 2]), blueprint=torch.tensor([3, 1])
        )


def test_every_decision_transition_and_rollback_is_in_the_account() -> None:
    overrides = {
        "train": {
            "envs": 4,
            "episode_steps": STEPS,
            "batch_size": 32,
            "host": {"family": "mlp", "preset": "baseline"},
        }
    }
    env = GrowthEnv(
        standard.merged(overrides).train,
        1,
        DATA["mlp"],
        DATA["mlp"],
        torch.arange(2),
        compose=poisoned(1, 5),
    )
    turns, script = list[Turn](), Script()
    play(env, script, 0, lambda *turn: turns.append(Turn(*turn)))
    assert script.alive == [[True, True]] * 5 + [[True, False]] * (STEPS - 5)
    first, second = (history(env, turns, row) for row in (0, 1))
    assert [entry["step"] for entry in first] == list(range(1, STEPS + 1))
    chosen = {"op": "GERMINATE", "slot": 0, "blueprint": "mlp", "style": "linear_add"}
    chosen |= {"tempo": TEMPO_STEPS[0], "alpha_target": 0.5}
    assert {key: first[1][key] for key in chosen} == chosen and first[1]["took_effect"] is True
    assert first[1]["stages"] == {"0": "DORMANT -> GERMINATED"}
    assert (
        first[2]["stages"] == {"0": "GERMINATED -> TRAINING"} and "op" not in first[2]
    )  # auto_advance
    assert "rolled_back" not in str(first)
    assert second[4]["rolled_back"] == "NON_FINITE"
    assert second[4]["stages"] == {"2": "TRAINING -> PRUNED"}
    assert all("op" not in entry for entry in second[5:])
