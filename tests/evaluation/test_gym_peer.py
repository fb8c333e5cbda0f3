"""The peer is the kind that the environment asks for, plays every episode, and leaves nothing behind."""

import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from simic import params, registry
from simic.agent.spec import ActionSpec, Observation
from simic.envs.gym_env import open_gym, prepare
from simic.errors import SimicError
from simic.evaluation import gym_evaluation as evaluation
from simic.evaluation.gym_peer import PeerEnv, learned, legal
from simic.params import GymParams, GymWrapper
from tests.gym_run import SMALL
from tests.helpers import ROOT

SMALL = (
    *SMALL, "evaluate.eval_seeds=3", "headroom.gym.peer_steps=64",
    "headroom.gym.peer_settings=[{n_steps: 8, batch_size: 64, n_epochs: 1}]",
)  # fmt: skip


@cache
def learn(*changes: str) -> tuple[evaluation.Scores | None, str, list[int]]:
    told = list[int]()
    tree = params.load(ROOT / "params.yaml", [*SMALL, *changes])
    return *evaluation.learn_peer(tree, lambda _, done, of: told.append(done)), told


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("PPO", ()),
        ("RecurrentPPO", ("headroom.gym.peer_memory=true",)),
        ("MaskablePPO", ("prepare.gym.id=HiddenCartPole-v0",)),
    ],
)
def test_the_peer_suits_the_environment(
    name: str, changes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    registry.load_extension(ROOT / "examples/extensions/hidden_cartpole.py")
    played, said, told = learn(*changes)
    assert said == f"{name}, n_steps 8, batch_size 64, n_epochs 1, 64 environment steps, rng_seed 1"
    assert played is not None and len(played.returns) == len(played.lengths) == 3
    assert played.returns == played.lengths and min(played.lengths) > 1  # CartPole pays 1 a step
    assert told == [1] and list(tmp_path.glob("SB3*")) == []  # torch has a folder of its own there


def test_the_best_of_the_settings_counts_and_a_misspelt_one_is_named() -> None:
    one, other = (
        "{n_steps: 8, batch_size: 64, n_epochs: 1}",
        "{n_steps: 16, batch_size: 64, n_epochs: 2}",
    )
    alone = [learn()[0], learn(f"headroom.gym.peer_settings=[{other}]")[0]]
    both, _, told = learn(f"headroom.gym.peer_settings=[{one}, {other}]")
    assert both is not None and sum(both.returns) == max(
        sum(each.returns) for each in alone if each is not None
    )
    assert told == [1, 2]
    with pytest.raises(SimicError, match=r"peer_settings: \{'n_stepz': 8\}: .*n_stepz"):
        learn("headroom.gym.peer_settings=[{n_stepz: 8}]")


def test_the_peer_learns_on_tensors_as_many_side_by_side_as_training_has() -> None:
    registry.load_extension(ROOT / "examples/extensions/bandits.py")
    changes = "prepare.gym={id: Bandits-v0, vector: tensors}", "headroom.gym.peer_memory=true"
    played, said, _ = learn(*changes, "headroom.gym.peer_settings=[{n_steps: 10, n_epochs: 1}]")
    assert said == "RecurrentPPO, n_steps 10, n_epochs 1, 64 environment steps, rng_seed 1"
    assert played is not None and played.lengths == (10, 10, 10)


def test_the_peer_sees_ends_and_masks_as_sb3_wants_them() -> None:
    """A fifth push to one side is forbidden; a time limit cuts an episode, of which the last observation is kept."""
    registry.load_extension(ROOT / "examples/extensions/hidden_cartpole.py")
    limit = GymWrapper(name="gymnasium.wrappers:TimeLimit", options={"max_episode_steps": 3})
    for wrappers, ended in (((), False), ((limit,), True)):
        peer = PeerEnv(
            open_gym(GymParams(id="HiddenCartPole-v0", wrappers=wrappers), 1, torch.arange(2))
        )
        first = peer.reset()
        for step in range(4):
            seen, rewards, over, infos = peer.step(np.array([0, step % 2]))
            assert rewards.tolist() == [1.0, 1.0] and over.tolist() == [ended and step == 2] * 2
            if over.all():
                assert [info["TimeLimit.truncated"] for info in infos] == [True, True]
                assert np.abs(infos[0]["terminal_observation"] - first[0]).max() > 0.01
                assert (seen != infos[0]["terminal_observation"]).any()
            else:
                assert infos == [{}, {}]
        forbidden = [[True, True], [True, True]] if ended else [[False, True], [True, True]]
        assert [mask.tolist() for mask in peer.env_method("action_masks")] == forbidden
        peer.close()


def test_masks_that_depend_on_another_head_are_refused() -> None:
    seen = Observation(
        torch.zeros(2, 1), torch.zeros(2, 0, dtype=torch.int64), {"b": torch.ones(2, 3, 2).bool()}
    )
    env = SimpleNamespace(action_spec=ActionSpec.discrete(3, 2))
    names = [head.name for head in env.action_spec.heads]
    seen.masks[names[1]] = seen.masks.pop("b")
    with pytest.raises(SimicError, match="peer_steps: must be 0"):
        legal(env, seen)  # pyright: ignore[reportArgumentType]


def test_a_peer_with_masks_decides_what_is_legal() -> None:
    registry.load_extension(ROOT / "examples/extensions/hidden_cartpole.py")
    tree = params.load(ROOT / "params.yaml", [*SMALL, "prepare.gym.id=HiddenCartPole-v0"])
    _, player = learned(tree, {"n_steps": 8, "batch_size": 64, "n_epochs": 1})
    env = open_gym(tree.prepare.gym, 1, torch.arange(2))
    seen, _ = env.reset()
    for row in (0, 1):
        masks = torch.eye(2, dtype=torch.bool).roll(row, 0)
        taken = player(env)(
            Observation(seen.features, seen.categories, {"action_0": masks}),
            torch.ones(2).bool(),
            0,
        )
        assert taken.tolist() == [[row], [1 - row]]
    env.close()


def test_headroom_has_what_the_peer_reached(tmp_path: Path) -> None:
    tree = params.load(ROOT / "params.yaml", [*SMALL])
    prepare(tree.prepare.gym, tree.rng_seed, tmp_path / "prepared")
    found = evaluation.measure(tree, tmp_path / "prepared", lambda *_: None)
    assert (found.policies[evaluation.PEER], found.peer) == learn()[:2]


def test_without_steps_there_is_no_peer() -> None:
    assert learn("headroom.gym.peer_steps=0")[:2] == (None, "none: headroom.gym.peer_steps is 0")
