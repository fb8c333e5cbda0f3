"""The exported greedy policy, played beside the agent by its description alone, as another language would."""

import importlib.util
import json
import runpy
from collections.abc import Callable
from functools import partial, reduce
from math import nan
from operator import getitem
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from simic import rng
from simic.agent import Agent
from simic.agent.agent import settings, sizes
from simic.agent.export import export_policy, masked_heads
from simic.agent.spec import ActionSpec, Head
from simic.errors import SimicError
from tests import gym_toys  # noqa: F401 - registers Throw-v0
from tests.helpers import ROOT

from .test_agent import Sign, equal, make_agent
from .worlds import TensorWorld, make_policy

# Float32 alone is 7e-6 from float64 with these rough weights, in torch as in onnxruntime; it does not grow with steps.
ROUNDING = 5e-5
SMALL = {"encoder_units": 16, "core_units": 16, "head_units": 16}


class Depot(gymnasium.Env):
    """Observes one of everything at random, and says what is legal by head: a slot by op, a kind by slot."""

    observation_space = Dict(
        {
            "at": Box(-1.0, 1.0, (2,)),
            "count": Box(0, 2**40, (1,), np.int64),
            "flags": MultiBinary(3),
            "goal": Discrete(4, start=1),
            "inner": Tuple((MultiDiscrete([3, 2]), Box(0, 255, (8, 9, 3), np.uint8))),
        }
    )
    action_space = MultiDiscrete([3, 4, 5], start=[1, 0, 2])
    action_spec = ActionSpec(
        (Head("op", 3), Head("slot", 4, "op"), Head("kind", 5, "slot")),
        ((True, False, False), (True, True, False), (True, True, True)),
    )

    def _look(self) -> dict[str, Any]:
        draw = self.np_random
        return {
            "at": draw.uniform(-1, 1, 2).astype(np.float32),
            "count": 2**35 + draw.integers(1000, size=1),
            "flags": draw.integers(2, size=3).astype(np.int8),
            "goal": int(draw.integers(1, 5)),
            "inner": (draw.integers([3, 2]), draw.integers(256, size=(8, 9, 3), dtype=np.uint8)),
        }

    def action_masks(self) -> dict[str, np.ndarray]:
        return self.masks

    def _turn(self) -> dict[str, Any]:
        shapes = {"op": (3,), "slot": (3, 4), "kind": (4, 5)}
        self.masks = {name: self.np_random.random(shape) < 0.4 for name, shape in shapes.items()}
        for name, mask in self.masks.items():
            mask[..., 2 if name == "op" else 0] = True
        return self._look()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._turn(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        return self._turn(), 1.0, False, self.time == 30, {}


def trained(make: str | Callable, core: str, critic: str, **changes: Any) -> Agent:
    """An agent that has scales, and weights far from the nearly uniform start."""
    policy = sizes(core=core, critic=critic, **SMALL, **changes)
    agent = Agent(make, envs=4, rollout_steps=16, policy=policy, ppo=settings(epochs=1))
    agent.train(64)
    with torch.no_grad():
        for index, parameter in enumerate(agent.policy.parameters()):
            stream = rng.key(9, rng.Purpose.BASELINE, index)
            parameter += 0.3 * rng.normal(stream, tuple(parameter.shape))
    return agent


class Exported:
    """What is known of a folder to who has no simic: the page, and a program that is run by names."""

    def __init__(self, folder: Path) -> None:
        self.page = json.loads((folder / "policy.json").read_text())
        file = folder / self.page["program"]
        if file.suffix == ".onnx":
            self.session = onnxruntime.InferenceSession(file)
        else:
            self.module = torch.export.load(file).module()

    def inputs(self, observation: Any, masks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Fill a row of each input; memory is empty."""
        row = {
            name: np.zeros((1, *tensor["shape"][1:]), tensor["dtype"])
            for name, tensor in self.page["inputs"].items()
        }
        for leaf in self.page["observation"]:
            values = np.ravel(reduce(getitem, leaf["path"], observation))
            row[leaf["input"]][0, slice(*leaf["columns"])] = values + leaf.get("add", 0)
        return row | {f"mask_{head}": mask[None] for head, mask in masks.items()}

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.page["program"] == "policy.onnx":
            outputs = self.session.run(None, inputs)
        else:
            features, categories, *masks, h, c = map(torch.from_numpy, inputs.values())
            outputs = [
                x.detach().numpy() for x in self.module(features, categories, tuple(masks), h, c)
            ]
        return dict(zip(self.page["outputs"], outputs, strict=True))


def differences(agent: Agent, make: Callable, folder: Path, steps: int) -> dict[str, float]:
    """Play a real environment by the agent and the exported folder; actions must be equal at every step.

    Returns:
        The largest difference of op logits, value and memory.
    """
    exported = Exported(folder)
    env = make()
    largest = dict.fromkeys(("op_logits", "value", "next_h", "next_c"), 0.0)
    ended, episodes = True, 0
    for _ in range(steps):
        if ended:
            observation, _ = env.reset(seed=episodes)
            state, memory, episodes = None, {}, episodes + 1
        masks = getattr(env.unwrapped, "action_masks", dict)()
        outputs = exported.run(exported.inputs(observation, masks) | memory)
        memory = {name: outputs[f"next_{name}"] for name in ("h", "c")}
        # The agent, from its own memory.
        seen = agent.normalizers.see(agent.env.rows([observation], [masks] if masks else None))
        before = agent.policy.initial_state(1) if state is None else state
        readings, _ = agent.policy.step(seen, before)
        action, state = agent.predict(observation, state, masks or None)
        expected = {
            "op_logits": agent.policy.choose(readings.actor.z, seen.masks)[0].outputs,
            "value": agent.policy.state_value(readings.value),
            "next_h": state.h,
            "next_c": state.c,
        }
        columns = agent.env.action_layout.from_env(action)
        assert len(columns) == len(exported.page["actions"])
        np.testing.assert_allclose(outputs["actions"][0], columns, rtol=1e-5, atol=ROUNDING)
        for name, tensor in expected.items():
            assert outputs[name].shape == tensor.shape
            if tensor.numel():
                difference = np.abs(outputs[name] - tensor.detach().numpy()).max()
                largest[name] = max(largest[name], float(difference))
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    assert episodes > 1
    return largest


@pytest.fixture(scope="module")
def cartpole() -> Agent:
    return trained("CartPole-v1", "none", "own")


@pytest.fixture(scope="module")
def depot() -> Agent:
    return trained(Depot, "lstm", "own")


@pytest.mark.parametrize(
    ("core", "critic"), [("lstm", "own"), pytest.param("gru", "detached", marks=pytest.mark.slow)]
)
def test_onnxruntime_plays_as_the_agent(core: str, critic: str, tmp_path: Path) -> None:
    """With memory, pictures, categories, wide numbers, and masks that depend on earlier choices."""
    agent = trained(Depot, core, critic)
    folder = tmp_path / "depot"
    agent.export(folder, "onnx")
    assert max(differences(agent, Depot, folder, 200).values()) < ROUNDING
    assert str(ROOT).encode() not in (folder / "policy.onnx").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.onnx"]

    # The file alone says the same.
    exported = Exported(folder)
    session = exported.session
    text = session.get_modelmeta().custom_metadata_map["policy.json"]
    assert text == (folder / "policy.json").read_text()
    for kind, nodes in {"inputs": session.get_inputs(), "outputs": session.get_outputs()}.items():
        shapes = {name: tensor["shape"] for name, tensor in exported.page[kind].items()}
        assert {node.name: node.shape for node in nodes} == shapes

    # Many rows at once; one that cannot be decided has no action and keeps its memory.
    env = Depot()
    observation, _ = env.reset(seed=5)
    row = exported.inputs(observation, env.masks)
    row["h"] += 0.5
    rows = {name: np.repeat(array, 5, axis=0) for name, array in row.items()}
    rows["features"][1, 0] = np.nan
    rows["mask_op"][2] = False
    alone, together = exported.run(row), exported.run(rows)
    for k in range(5):
        if k in (1, 2):
            assert together["actions"][k].tolist() == [0, -1, 1]
            assert (together["next_h"][k] == 0.5).all()
        else:
            assert together["actions"][k].tolist() == alone["actions"][0].tolist()
            assert together["next_h"][k] == pytest.approx(alone["next_h"][0], abs=ROUNDING)


@pytest.mark.parametrize(("format", "box"), [("torch", "clipped"), ("onnx", "squashed")])
def test_choices_with_numbers_are_exported_in_the_units_of_the_environment(
    format: Literal["torch", "onnx"], box: str, tmp_path: Path
) -> None:
    """By a transformer, whose memory is longer than an episode."""
    agent = trained("Throw-v0", "transformer", "detached", box=box)
    agent.export(tmp_path / "throw", format)
    make = partial(gymnasium.make, "Throw-v0")
    assert max(differences(agent, make, tmp_path / "throw", 30).values()) < ROUNDING
    exported = Exported(tmp_path / "throw")
    assert exported.page["actions"] == ["throw", "where.0", "where.1"]
    row = exported.inputs(np.zeros(2), {"throw": np.array([True, True])})
    row["features"][:] = np.nan
    assert exported.run(row)["actions"][0].tolist() == pytest.approx([0, nan, nan], nan_ok=True)


def test_torch_plays_as_the_agent(depot: Agent, tmp_path: Path) -> None:
    depot.export(tmp_path)
    assert max(differences(depot, Depot, tmp_path, 60).values()) < ROUNDING
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.pt2"]


def test_the_example_runs_an_onnx_file(cartpole: Agent, tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    cartpole.export(folder, "onnx")
    example = runpy.run_path(str(ROOT / "examples" / "onnx_policy.py"))
    last = example["main"](str(folder / "policy.onnx"))
    largest = differences(cartpole, partial(gymnasium.make, "CartPole-v1"), folder, 100)
    assert max(largest.values()) < ROUNDING

    # The agent ends its episode from the same start in the same state.
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    ended = False
    while not ended:
        observation, _, terminated, truncated, _ = env.step(cartpole.predict(observation)[0])
        ended = terminated or truncated
    assert last.tolist() == observation.tolist()


def test_the_example_runs_a_torch_program_with_memory_and_a_mask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "torch_policy.py"))
    agent = trained(example["Lock"], "lstm", "own")
    folder = tmp_path / "torch"
    agent.export(folder)
    actions = example["main"](str(folder))

    # The agent takes the same actions from the same start.
    env = example["Lock"]()
    observation, _ = env.reset(seed=1)
    state = None
    expected = []
    ended = False
    while not ended:
        action, state = agent.predict(observation, state, env.action_masks())
        expected.append(action.tolist())
        observation, reward, ended, *_ = env.step(action)
    assert actions == expected and len({*map(tuple, actions)}) > 0
    assert capsys.readouterr().out == f"{len(expected)} steps, last reward {reward}\n"


def test_a_hub_folder_has_a_card_and_loads(cartpole: Agent, tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    cartpole.export(folder, "hub", returns=[10.0, 20.0])
    names = ["README.md", "agent.safetensors", "config.json", "policy.json", "policy.pt2"]
    assert sorted(path.name for path in folder.iterdir()) == names
    loaded = Agent.load(folder)
    assert equal(loaded, cartpole) and loaded.env_steps == 64
    _, front, card = (folder / "README.md").read_text().split("---\n")
    metadata = yaml.safe_load(front)
    assert metadata["library_name"] == "simic"
    assert metadata["tags"] == ["reinforcement-learning", "simic", "CartPole-v1"]
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["type"] == "CartPole-v1"
    assert result["metrics"][0]["value"] == "15.00 +/- 5.00"
    assert "hf upload USER/NAME ." in card and "core none, trained for 64 environment" in card
    assert json.loads((folder / "config.json").read_text())["policy"]["core"] == "none"
    for wrong in ([np.nan], 5, ["a"], None):
        with pytest.raises(SimicError, match=r"^returns = .*: must be a list of finite numbers$"):
            cartpole.export(tmp_path / "other", "hub", returns=wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub"]


def test_an_earlier_export_is_replaced_and_nothing_else(cartpole: Agent, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    for _ in range(2):
        cartpole.export(folder)
        page = folder / "policy.json"
        assert json.loads(page.read_text())["program"] == "policy.pt2"
        page.write_text("{}")
    # What torch alone wrote is part of what hub writes; not the other way round: the agent would be lost.
    cartpole.export(folder, "hub")
    (tmp_path / "file").touch()
    (tmp_path / "reader").mkdir()
    (tmp_path / "reader" / "README.md").touch()
    for path, format in (("export", "torch"), ("reader", "hub"), ("file", "torch")):
        with pytest.raises(SimicError, match="already exists; choose another directory or remove"):
            cartpole.export(tmp_path / path, format)
    with pytest.raises(SimicError, match="file: is a file, must be a folder; choose another path"):
        cartpole.export(tmp_path / "file" / "inside")
    assert equal(Agent.load(folder), cartpole)


def test_an_environment_without_an_id_is_handed_to_load_as_the_card_says(tmp_path: Path) -> None:
    agent = make_agent(Sign)
    agent.export(tmp_path, "hub")
    card = (tmp_path / "README.md").read_text()
    assert "# An agent for Sign" in card and '"USER/NAME"), make_env)' in card
    assert "It was not evaluated." in card and "model-index" not in card
    assert equal(Agent.load(tmp_path, Sign), agent)
    (tmp_path / "agent.safetensors").unlink()
    with pytest.raises(SimicError, match=r"agent\.safetensors: not readable: No such file"):
        Agent.load(tmp_path, Sign)


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent(Sign)
    with pytest.raises(SimicError, match="format = 'tflite': must be one of torch, onnx, hub"):
        agent.export(tmp_path / "new", "tflite")  # type: ignore[arg-type]
    with pytest.raises(SimicError, match="returns: format 'torch' has no card"):
        agent.export(tmp_path / "new", returns=[1.0])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SimicError, match=r"onnx is not installed; pip install 'simic-grow\[onnx\]'"
    ):
        agent.export(tmp_path / "new", "onnx")
    assert not list(tmp_path.iterdir())
    (tmp_path / "thesis.tex").touch()
    for path in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(SimicError, match="already exists; choose another directory"):
            agent.export(path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_row_that_cannot_be_decided_has_no_action_and_keeps_its_memory(tmp_path: Path) -> None:
    """A number that is not finite, or a mask of a relevant head without a choice; other rows are as ever."""
    policy = make_policy()
    export_policy(policy, None, tmp_path)
    program = torch.export.load(tmp_path / "policy.pt2").module()
    observation, _ = TensorWorld(list(range(6)), {}).reset()
    masks = [observation.masks[name].clone() for name in masked_heads(policy.action_spec)]
    features, categories = observation.features, observation.categories
    usual = policy.initial_state(6)
    expected = program(features, categories, tuple(masks), *usual)
    h, c = (part.clone() for part in usual)
    features[0, 1] = torch.nan
    features[1, 0] = -torch.inf
    h[2, 3] = torch.nan
    masks[0][3] = False
    actions, _, _, h_after, c_after = program(features, categories, tuple(masks), h, c)
    assert (actions[:4] == -1).all() and torch.equal(actions[4:], expected[0][4:])
    assert torch.equal(h_after[:4].nan_to_num(9.0), h[:4].nan_to_num(9.0))
    assert torch.equal(h_after[4:], expected[3][4:]) and torch.equal(c_after[4:], expected[4][4:])
    assert not c_after[:4].any()
