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
        pass

    def act(self, situation):
        op = torch.full((2,), int(Op.GERMINATE if situation.step == 1 else Op.WAIT))
        choice = {"slot": torch.tensor([0, 2]), "blueprint": torch.tensor([3, 1])}
        return Action.wait(2)._replace(op=op, **choice)


def test_every_decision_transition_and_rollback_is_in_the_account() -> None:
    host = {"family": "mlp", "preset": "baseline"}
    train = {"envs": 4, "episode_steps": STEPS, "batch_size": 32, "host": host}
    settings = standard.merged({"train": train}).train
    splits = (DATA["mlp"], DATA["mlp"])
    env = GrowthEnv(settings, 1, *splits, torch.arange(2), compose=poisoned(1, 5))
    turns = list[Turn]()
    play(env, Script(), 0, lambda *turn: turns.append(Turn(*turn)))
    sound, rolled_back = (history(env, turns, row) for row in (0, 1))
    assert [entry["step"] for entry in sound] == list(range(1, STEPS + 1))
    chosen = {"op": "GERMINATE", "slot": 0, "blueprint": "mlp", "style": "linear_add"}
    chosen |= {"tempo": TEMPO_STEPS[0], "alpha_target": 0.5, "took_effect": True}
    assert sound[1].items() >= chosen.items()
    assert sound[1]["stages"] == {"0": "DORMANT -> GERMINATED"}
    assert sound[2]["stages"] == {"0": "GERMINATED -> TRAINING"}  # by itself
    assert "op" not in sound[2] and "rolled_back" not in str(sound)
    assert rolled_back[4]["rolled_back"] == "NON_FINITE"
    assert rolled_back[4]["stages"] == {"2": "TRAINING -> PRUNED"}
    assert all("op" not in entry for entry in rolled_back[5:])
