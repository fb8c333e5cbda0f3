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
    counts = list[int]()
    tree = params.load(ROOT / "params.yaml", [*SMALL, *changes])
    return *evaluation.learn_peer(tree, lambda _, count, of: counts.append(count)), counts


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
    scores, words, counts = learn(*changes)
    assert (
        words == f"{name}, n_steps 8, batch_size 64, n_epochs 1, 64 environment steps, rng_seed 1"
    )
    assert scores is not None and len(scores.returns) == len(scores.lengths) == 3
    assert scores.returns == scores.lengths and min(scores.lengths) > 1  # CartPole pays 1 a step
    assert (
        counts == [1] and list(tmp_path.glob("SB3*")) == []
    )  # torch has a folder of its own there


def test_the_best_of_the_settings_counts_and_a_misspelt_one_is_named() -> None:
    first, second = (
        "{n_steps: 8, batch_size: 64, n_epochs: 1}",
        "{n_steps: 16, batch_size: 64, n_epochs: 2}",
    )
    singles = [learn()[0], learn(f"headroom.gym.peer_settings=[{second}]")[0]]
    best, _, counts = learn(f"headroom.gym.peer_settings=[{first}, {second}]")
    assert best is not None and sum(best.returns) == max(
        sum(scores.returns) for scores in singles if scores is not None
    )
    assert counts == [1, 2]
    with pytest.raises(SimicError, match=r"peer_settings: \{'n_stepz': 8\}: .*n_stepz"):
        learn("headroom.gym.peer_settings=[{n_stepz: 8}]")


def test_the_peer_learns_on_tensors_as_many_side_by_side_as_training_has() -> None:
    registry.load_extension(ROOT / "examples/extensions/bandits.py")
    changes = "prepare.gym={id: Bandits-v0, vector: tensors}", "headroom.gym.peer_memory=true"
    scores, words, _ = learn(*changes, "headroom.gym.peer_settings=[{n_steps: 10, n_epochs: 1}]")
    assert words == "RecurrentPPO, n_steps 10, n_epochs 1, 64 environment steps, rng_seed 1"
    assert scores is not None and scores.lengths == (10, 10, 10)


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
            observation, rewards, over, infos = peer.step(np.array([0, step % 2]))
            assert rewards.tolist() == [1.0, 1.0] and over.tolist() == [ended and step == 2] * 2
            if over.all():
                assert [info["TimeLimit.truncated"] for info in infos] == [True, True]
                assert np.abs(infos[0]["terminal_observation"] - first[0]).max() > 0.01
                assert (observation != infos[0]["terminal_observation"]).any()
            else:
                assert infos == [{}, {}]
        forbidden = [[True, True], [True, True]] if ended else [[False, True], [True, True]]
        assert [mask.tolist() for mask in peer.env_method("action_masks")] == forbidden
        peer.close()


def test_masks_that_depend_on_another_head_are_refused() -> None:
    spec = ActionSpec.discrete(3, 2)
    masks = {spec.heads[1].name: torch.ones(2, 3, 2, dtype=torch.bool)}
    observation = Observation(torch.zeros(2, 1), torch.zeros(2, 0, dtype=torch.int64), masks)
    with pytest.raises(SimicError, match="peer_steps: must be 0"):
        legal(SimpleNamespace(action_spec=spec), observation)  # pyright: ignore[reportArgumentType]


def test_a_peer_with_masks_decides_what_is_legal() -> None:
    registry.load_extension(ROOT / "examples/extensions/hidden_cartpole.py")
    tree = params.load(ROOT / "params.yaml", [*SMALL, "prepare.gym.id=HiddenCartPole-v0"])
    _, player = learned(tree, {"n_steps": 8, "batch_size": 64, "n_epochs": 1})
    env = open_gym(tree.prepare.gym, 1, torch.arange(2))
    observation, _ = env.reset()
    for row in (0, 1):
        masks = torch.eye(2, dtype=torch.bool).roll(row, 0)
        actions = player(env)(
            Observation(observation.features, observation.categories, {"action_0": masks}),
            torch.ones(2).bool(),
            0,
        )
        assert actions.tolist() == [[row], [1 - row]]
    env.close()


def test_headroom_has_what_the_peer_reached(tmp_path: Path) -> None:
    tree = params.load(ROOT / "params.yaml", [*SMALL])
    prepare(tree.prepare.gym, tree.rng_seed, tmp_path / "prepared")
    headroom = evaluation.measure(tree, tmp_path / "prepared", lambda *_: None)
    assert (headroom.policies[evaluation.PEER], headroom.peer) == learn()[:2]


def test_without_steps_there_is_no_peer() -> None:
    assert learn("headroom.gym.peer_steps=0")[:2] == (None, "none: headroom.gym.peer_steps is 0")
