"""The peer is the kind that the environment asks for, plays every episode, and leaves nothing behind."""

import tempfile
from pathlib import Path

import pytest

from simic import params, registry
from simic.errors import SimicError
from simic.evaluation import gym_peer
from tests.faults import test_gym_faults as gym
from tests.helpers import ROOT

SMALL = (
    *gym.SMALL, "evaluate.eval_seeds=3", "headroom.gym.peer_steps=64",
    "headroom.gym.peer_settings=[{n_steps: 8, batch_size: 64, n_epochs: 1}]",
)  # fmt: skip


def learn(*changes: str) -> tuple[gym_peer.PlayedEpisodes | None, str, list[int]]:
    told = list[int]()
    tree = params.load(ROOT / "params.yaml", [*SMALL, *changes])
    return *gym_peer.learn_peer(tree, lambda _, done, of: told.append(done)), told


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
    assert told == [1, 2, 3] and list(tmp_path.glob("SB3*")) == []  # torch has a folder of its own there


def test_the_best_of_the_settings_counts_and_a_misspelt_one_is_named() -> None:
    one, other = "{n_steps: 8, batch_size: 64, n_epochs: 1}", "{n_steps: 16, batch_size: 64, n_epochs: 2}"
    alone = [learn(f"headroom.gym.peer_settings=[{each}]")[0] for each in (one, other)]
    both, _, told = learn(f"headroom.gym.peer_settings=[{one}, {other}]")
    assert both is not None and sum(both.returns) == max(sum(each.returns) for each in alone if each is not None)
    assert told == [1, 2, 3] * 2
    with pytest.raises(SimicError, match=r"peer_settings: \{'n_stepz': 8\}: .*n_stepz"):
        learn("headroom.gym.peer_settings=[{n_stepz: 8}]")


def test_no_steps_and_tensors_have_no_peer() -> None:
    assert learn("headroom.gym.peer_steps=0")[:2] == (None, "none: headroom.gym.peer_steps is 0")
    assert learn("prepare.gym.vector=tensors")[1] == "none: it has no vector environments on tensors"
