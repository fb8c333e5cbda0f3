"""Modules of the user's for leaves of the observation."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Space
from torch import nn

from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.leaf_encoder import LeafEncoder
from simic.agent.spaces import Leaf
from simic.errors import SimicError

from .test_agent import Sign, equal
from .test_export import ROUNDING, Depot, differences

ENCODERS: dict[str, Callable[[Any], nn.Module]] = {
    "inner.1": lambda space: nn.Sequential(
        nn.Conv2d(space.shape[0], 4, (3, 2)),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(),
        nn.Flatten(),
        nn.LazyLinear(6),
    ),
    "flags": lambda space: nn.Sequential(nn.Linear(space.shape[0], 5), nn.Tanh()),
    "at": lambda space: nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4)),
}


def make(env: Callable = Depot, core: str = "gru", critic: str = "own", **changes: Any) -> Agent:
    policy = sizes(core=core, critic=critic, encoder_units=16, core_units=16, head_units=16)
    ppo = settings(epochs=2)
    return Agent(env, **{"envs": 4, "rollout_steps": 16, "policy": policy, "ppo": ppo, **changes})


def modules(agent: Agent) -> dict[str, LeafEncoder]:
    named = agent.policy.named_modules()
    return {name: part for name, part in named if isinstance(part, LeafEncoder)}


def test_first_weights_depend_on_the_seed_alone_and_are_those_that_the_module_draws() -> None:
    torch.manual_seed(1)
    first = make(encoders=ENCODERS)
    torch.manual_seed(2)
    expected = torch.rand(1)
    torch.manual_seed(2)
    again, other = make(encoders=ENCODERS), make(encoders=ENCODERS, rng_seed=9)
    assert torch.rand(1) == expected  # torch's generator is as it was
    assert equal(first, again) and not equal(first, other)
    actor, critic = (
        getattr(first.policy, trunk).images[0].module[0] for trunk in ("actor", "critic")
    )
    assert not torch.equal(actor.weight, critic.weight)
    # As torch starts a convolution: uniform in ±1/√(inputs), where simic's own are orthogonal and biases 0.
    assert 0 < actor.weight.abs().max() <= (8 * 3 * 2) ** -0.5 and actor.bias.any()
    # Other layers are as without, by name.
    plain = make().policy.state_dict()
    for name, tensor in first.policy.state_dict().items():
        if name.startswith(("heads", "actor.core", "value_head")):
            assert torch.equal(tensor, plain[name])


def test_weights_that_a_module_comes_with_stay_and_frozen_ones_for_ever() -> None:
    trained = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4))
    nn.init.constant_(trained[0].weight, 0.7)
    nn.init.constant_(trained[1].weight, 3.0)
    trained[0].requires_grad_(False)
    agent = make(encoders={"at": lambda space: trained})
    agent.train(64)
    for encoder in modules(agent).values():
        assert encoder.module is not trained
        assert (encoder.module[0].weight == 0.7).all()
        assert not torch.equal(encoder.module[1].weight, trained[1].weight)
        assert (encoder.module[1].weight - 3.0).abs().max() < 0.1
    assert (trained[1].weight == 3.0).all()


class Spy(nn.Module):
    """Notes what it reads."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space
        self.inputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs.append(x)
        return x.flatten(1)[:, :2]


def test_a_module_reads_its_leaf_in_its_own_shape_scaled_as_usual() -> None:
    agent = make(encoders=dict.fromkeys(ENCODERS, Spy))
    agent.train(64)
    spies = {
        name: encoder.module for name, encoder in modules(agent).items() if name[:5] == "actor"
    }
    assert list(spies) == ["actor.images.0", "actor.leaves.0", "actor.leaves.1"]
    picture, at, flags = spies.values()
    assert isinstance(picture, Spy) and isinstance(at, Spy) and isinstance(flags, Spy)
    assert picture.space == Depot.observation_space["inner"][1]
    assert flags.space == Depot.observation_space["flags"]
    # In updates whole rows, one after the other.
    assert any(len(x) > 4 for x in picture.inputs)
    env = Depot()
    seen, _ = env.reset(seed=3)
    agent.predict(seen, mask=env.action_masks())
    expected = torch.from_numpy(seen["inner"][1]).float() / 255.0
    assert torch.equal(picture.inputs[-1], expected[None])
    scales = agent.normalizers.observation
    assert scales is not None and not torch.equal(at.inputs[-1][0], torch.from_numpy(seen["at"]))
    row = torch.tensor([[*seen["at"], *seen["count"], *seen["flags"]]], dtype=torch.float64)
    assert torch.equal(at.inputs[-1], scales.normalize(row)[:, :2])
    assert torch.equal(flags.inputs[-1], row[:, 3:].float())


def test_bytes_are_read_as_floats_also_where_a_full_pixel_is_one() -> None:
    encoder = LeafEncoder(Leaf((), Box(0, 1, (8, 8), np.uint8)), Spy)
    assert encoder(torch.ones(3, 5, 64, dtype=torch.uint8)).dtype == torch.float32
    assert encoder.units == 2 and isinstance(encoder.module, Spy)
    assert encoder.module.inputs[-1].shape == (15, 8, 8)


def test_numbers_between_encoded_leaves_are_still_read() -> None:
    """Depot's count lies between its place and its flags."""
    agent = make(core="none", encoders=ENCODERS)
    env = Depot()
    seen, _ = env.reset(seed=3)
    values = []
    for count in (0, 1):
        rows = agent.env.rows([seen | {"count": np.array([count])}], [env.action_masks()])
        values.append(float(agent.policy.value(rows, agent.policy.initial_state(1))))
    assert values[0] != values[1]


@pytest.mark.parametrize("critic", ["own", "detached"])
def test_a_loaded_agent_goes_on_as_if_it_had_never_been_saved(critic: str, tmp_path: Path) -> None:
    """With dropout, batch normalisation and a frozen layer: what is learned from is what acted."""
    straight = make(critic=critic, encoders=ENCODERS)
    straight.train(64)
    straight.save(tmp_path / "agent")
    moments = {name: tensor for name, tensor in straight.tensors().items() if "running_" in name}
    again = Agent.load(tmp_path / "agent", Depot, encoders=ENCODERS)
    assert equal(again, straight)
    assert straight.train(64) == again.train(64) and equal(again, straight)
    means = {name: tensor for name, tensor in moments.items() if name.endswith("running_mean")}
    assert means and not any(tensor.any() for tensor in means.values())


def test_missing_or_other_encoders_are_named(tmp_path: Path) -> None:
    agent = make(
        Sign, encoders={"observation": lambda space: nn.Sequential(nn.Linear(1, 3), nn.ReLU())}
    )
    agent.save(tmp_path / "agent")
    words = r"agent: its agent has encoders for observation: pass the same: Agent\.load\(path, enc"
    with pytest.raises(SimicError, match=words):
        Agent.load(tmp_path / "agent", Sign)
    with pytest.raises(
        SimicError, match=r"tensor '.*\.leaves\.0\.module\..*' has shape \(3, 1\); this"
    ):
        Agent.load(
            tmp_path / "agent",
            Sign,
            encoders={"observation": lambda space: nn.Sequential(nn.Linear(1, 4), nn.ReLU())},
        )
    # The same weights, and another function of them.
    with pytest.raises(SimicError, match=r"encoders\['observation'\] computes something else than"):
        Agent.load(
            tmp_path / "agent",
            Sign,
            encoders={"observation": lambda space: nn.Sequential(nn.Linear(1, 3), nn.Tanh())},
        )
    make(Sign).save(tmp_path / "plain")
    with pytest.raises(SimicError, match="plain: its agent has encoders for none: pass the same"):
        Agent.load(
            tmp_path / "plain", Sign, encoders={"observation": lambda space: nn.Linear(1, 3)}
        )
    agent.export(tmp_path / "hub", "hub")
    assert ", make_env, encoders=encoders)" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_an_exported_policy_has_the_modules_in_it(format: Any, tmp_path: Path) -> None:
    agent = make(encoders=ENCODERS)
    agent.train(64)
    agent.export(tmp_path / "depot", format)
    assert max(differences(agent, Depot, tmp_path / "depot", 60).values()) < ROUNDING


@pytest.mark.parametrize(
    ("encoders", "words"),
    [
        ([ENCODERS["at"]], "encoders is a list: must be a mapping by leaf"),
        ({"eye": Spy}, "encoders: there is no leaf 'eye'; they are inner.1, at, count, flags, goal, inner.0"),
        ({"goal": Spy}, "encoders: observation['goal'] holds categories, which have embeddings: must be a Box"),
        ({"at": nn.Linear(2, 3)}, "encoders['at'] is a Linear: must be a function that makes a module"),
        ({"at": 7}, "encoders['at'] is a int: must be a function that makes a module"),
        ({"at": lambda space: torch.relu}, "encoders['at'] makes a builtin_function_or_method: must make a torch"),
        (
            {"at": lambda space: nn.Linear(3, 3)},
            "encoders['at']: its module must take float32 [N, 2]: mat1 and mat2 shapes cannot be multiplied",
        ),
        (
            {"inner.1": lambda space: nn.Linear(3, 5)},
            "encoders['inner.1']: its module makes torch.float32 [2, 8, 9, 5] of [2, 8, 9, 3]: must be float32",
        ),
        ({"at": lambda space: nn.Flatten(0)}, "its module makes torch.float32 [4] of [2, 2]: must be"),
    ],
)  # fmt: skip
def test_what_cannot_encode_is_refused_in_a_line(encoders: Any, words: str) -> None:
    with pytest.raises(SimicError, match=re.escape(words)) as refused:
        make(encoders=encoders)
    assert "\n" not in str(refused.value)
