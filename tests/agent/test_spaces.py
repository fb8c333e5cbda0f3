"""Observations of several kinds as one row: where each number stands, what is a picture, and what is refused."""

import json
import re
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from simic.agent.checked_env import CheckedEnv
from simic.agent.gym_adapter import GymAdapter
from simic.agent.normalization import ObservationNormalizer
from simic.agent.spaces import Layout
from simic.agent.spec import Image
from simic.errors import SimicError

SPACE = Dict(
    {
        "at": Box(-1.0, 1.0, (2,)),
        "flags": MultiBinary(3),
        "goal": Discrete(4, start=1),
        "inner": Tuple((MultiDiscrete([3, 2]), Box(0, 255, (8, 9, 3), np.uint8))),
    }
)
SEEN: dict[str, Any] = {
    "at": np.array([0.5, -0.25], np.float32),
    "flags": np.array([1, 0, 1], np.int8),
    "goal": 3,
    "inner": (np.array([2, 0]), np.arange(216, dtype=np.uint8).reshape(8, 9, 3)),
}


class Mixed(gymnasium.Env):
    """Observes ``SEEN``, whose number counts the steps; an episode is cut off after three."""

    observation_space = SPACE
    action_space = Discrete(2)

    def _look(self) -> dict[str, Any]:
        return SEEN | {"at": np.array([self.time, 0.0], np.float32), "goal": 1 + self.time}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        self.time += 1
        return self._look(), 1.0, False, self.time == 3, {}


def test_pixels_are_first_and_categories_last_each_value_with_a_number_of_its_own() -> None:
    layout = Layout(SPACE)
    spec = layout.spec
    row = layout.row(SEEN)
    assert row.dtype == np.float32 and len(row) == spec.width == 216 + 5 + 3
    assert row[:216].tolist() == list(range(216))
    assert row[216:221].tolist() == [0.5, -0.25, 1.0, 0.0, 1.0]
    # Goals are 0 to 3, then come the three and the two of the pair.
    assert row[221:].tolist() == [2.0, 4 + 2.0, 4 + 3 + 0.0]
    assert (spec.categories, spec.cardinality, spec.pixels) == (3, 9, 216)
    assert spec.images == (Image((8, 9, 3), "last", 255.0),) and spec.pixel_dtype == "uint8"
    assert spec.features == 5 and spec.raw == (False,) * 2 + (True,) * 3


def test_columns_tell_another_language_where_each_value_goes() -> None:
    layout = Layout(SPACE)
    columns = json.loads(json.dumps(layout.columns()))
    assert [leaf["path"] for leaf in columns] == [
        ["inner", 1],
        ["at"],
        ["flags"],
        ["goal"],
        ["inner", 0],
    ]
    inputs = {"features": np.full(221, np.nan), "categories": np.full(3, -9.0)}
    for leaf in columns:
        values = np.asarray(reduce(getitem, leaf["path"], SEEN))
        assert list(values.shape) == leaf["shape"]
        inputs[leaf["input"]][slice(*leaf["columns"])] = values.ravel() + leaf.get("add", 0)
    assert np.concatenate(list(inputs.values())).tolist() == layout.row(SEEN).tolist()
    assert columns[0]["kind"] == "image" and columns[0]["channels"] == "last"
    assert columns[0]["bounds"] == [0.0, 255.0] and columns[4]["choices"] == [3, 2]


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (Box(0, 255, (84, 84), np.uint8), Image((1, 84, 84), "first", 255.0)),
        (Box(0, 255, (4, 84, 84), np.uint8), Image((4, 84, 84), "first", 255.0)),
        (Box(0.0, 1.0, (9, 8, 3)), Image((9, 8, 3), "last", 1.0)),
        (Box(0.0, 255.0, (8, 9)), Image((1, 8, 9), "first", 255.0)),
        (Box(0, 9, (8, 8), np.int64), None),  # a board
        (Box(0.0, 10.0, (84, 84)), None),  # distances
        (Box(0, 255, (7, 7, 3), np.uint8), None),  # too small for a convolution
        (Box(0, 255, (30, 30, 20), np.uint8), None),  # no picture has so many channels
        (Box(-1.0, 1.0, (84, 84)), None),
        (Box(0.0, np.inf, (84, 84)), None),
        (Box(0.0, 1.0, (84,)), None),
        (Box(np.zeros((9, 9), np.float32), np.eye(9, dtype=np.float32)), None),
    ],
)
def test_shape_and_bounds_say_what_is_a_picture(space: Box, image: Image | None) -> None:
    assert Layout(space).spec.images == ((image,) if image else ())
    assert Layout(Dict(x=space)).spec.images == ((image,) if image else ())


def test_numbers_that_float32_cannot_hold_stay_float64() -> None:
    space = Dict(count=Box(0, 2**40, (1,), np.int64), kind=Discrete(3))
    assert Layout(space).row({"count": np.array([2**31 + 1]), "kind": 1}).tolist() == [2**31 + 1, 1]


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_an_environment_is_observed_in_rows_and_its_last_observation_too(kind: type) -> None:
    vector = kind([lambda: CheckedEnv(Mixed())] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    adapter = GymAdapter(vector, 1)
    assert str(adapter).splitlines() == [
        "observation['inner'][1]: image [8, 9, 3] of uint8, from 0 to 255, channels last",
        "observation['at']: numbers [2] of float32, from -1 to 1",
        "observation['flags']: flags [3]",
        "observation['goal']: categories, 4 choices from 1",
        "observation['inner'][0]: categories [2], [3, 2] choices from 0",
        "action: categories, 2 choices from 0",
        "head action_0: 2 choices",
        "nothing masked",
    ]
    observation, _ = adapter.reset()
    assert observation.features.shape == (2, 5)
    assert observation.pixels is not None and observation.pixels.dtype == torch.uint8
    assert observation.pixels[1].tolist() == list(range(216))
    assert observation.categories.tolist() == [[0, 6, 7]] * 2
    for _ in range(2):
        observation, *_ = adapter.step(torch.zeros(2, 1, dtype=torch.int64))
    assert observation.categories[:, 0].tolist() == [2, 2]
    observation, _, _, truncated, info = adapter.step(torch.zeros(2, 1, dtype=torch.int64))
    assert truncated.all() and info.final is not None
    assert info.final.features[:, 0].tolist() == [3.0, 3.0]
    assert info.final.pixels is not None and torch.equal(info.final.pixels, observation.pixels)
    assert info.final.categories[:, 0].tolist() == [3, 3]
    assert observation.categories[:, 0].tolist() == [0, 0]
    single = adapter.rows([SEEN], None)
    assert single.numbers[0].tolist() == Layout(SPACE).row(SEEN)[:221].tolist()
    assert single.categories.tolist() == [[2, 6, 7]]
    adapter.env.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"goal": 0}, "observation['goal'] is 0: its space is Discrete(4, start=1)"),
        ({"goal": 5}, "observation['goal'] is 5: its space is"),
        ({"goal": 1.5}, "observation['goal'] is 1.5, which its space's int64 cannot hold"),
        ({"at": np.zeros(3)}, "observation['at'] is float64 of shape [3]: its space is Box"),
        ({"at": "here"}, "observation['at'] is <U4 of shape []: its space is Box"),
        ({"inner": ()}, "observation['inner'][1] is missing: observation['inner'] is a tuple"),
        ({"inner": (np.array([3, 0]), SEEN["inner"][1])}, "observation['inner'][0] is [3, 0]: its"),
        ({"at": None}, "observation['at'] is object of shape []"),
        ({"at": [0, [1]]}, "observation['at'] is a list: cannot be made an array"),
    ],
)
def test_what_is_not_of_the_space_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SimicError, match=re.escape(message)):
        Layout(SPACE).row(SEEN | change)


def test_what_is_missing_or_cannot_be_learned_from_is_named() -> None:
    with pytest.raises(SimicError, match=r"observation\['at'\] is missing: observation is a dict$"):
        Layout(SPACE).row({name: value for name, value in SEEN.items() if name != "at"})
    with pytest.raises(SimicError, match="is missing: observation is a int"):
        Layout(SPACE).row(3)
    for empty in (Dict(), Tuple(())):
        with pytest.raises(SimicError, match=r"^observation space \w+\(\): must hold a space$"):
            _ = Layout(empty).spec
    with pytest.raises(SimicError, match=r"^observation space Sequence: must be Box, .* of these$"):
        _ = Layout(Sequence(Discrete(2))).spec


@pytest.mark.parametrize(
    ("space", "leaf", "keys"),
    [
        (Dict(image=Box(0, 255, (7, 7, 3), np.uint8), mission=Text(5)), "['mission']", "['image']"),
        (Dict(a=Dict(b=Text(5), c=Discrete(2)), d=Tuple((Discrete(2),) * 2)), "['a']['b']", "['d']"),
        (Tuple((Discrete(2), Text(5), Box(0, 1, (2,)))), "[1]", "[0, 2]"),
    ],
)  # fmt: skip
def test_a_leaf_that_cannot_be_learned_from_is_named_and_can_be_left_out(
    space: gymnasium.Space, leaf: str, keys: str
) -> None:
    """As the message says, word for word."""

    class Env(gymnasium.Env):
        observation_space = space

    words = f"observation space Text at observation{leaf}: must be Box, Discrete"
    with pytest.raises(SimicError, match=re.escape(words)) as refused:
        _ = Layout(space).spec
    remedy = str(refused.value).rpartition("to leave it out: ")[2]
    assert remedy == f"gymnasium.wrappers.FilterObservation(env, {keys})"
    filtered = eval(remedy, {"gymnasium": gymnasium, "env": Env()})  # noqa: S307 - our own
    assert Layout(filtered.observation_space).spec.width > 0


def test_flags_are_not_scaled() -> None:
    layout = Layout(SPACE)
    normalizer = ObservationNormalizer(layout.spec)
    rows = torch.from_numpy(layout.row(SEEN)[None, 216:221]).repeat(4, 1)
    rows[:, 0] = torch.tensor([0.0, 10.0, 20.0, 30.0])
    normalizer.update(rows, torch.ones(4, dtype=torch.bool))
    seen = normalizer.normalize(rows)
    assert torch.equal(seen[:, 2:], rows[:, 2:])
    assert seen[:, 0].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert seen[:, 0].std(correction=0).item() == pytest.approx(1.0, abs=1e-3)


def test_pictures_of_several_types_are_held_as_floats() -> None:
    byte, number = Box(0, 255, (8, 8), np.uint8), Box(0.0, 1.0, (8, 8))
    assert Layout(Dict(a=byte, b=byte)).spec.pixel_dtype == "uint8"
    assert Layout(Dict(a=byte, b=number)).spec.pixel_dtype == "float32"
    assert Layout(Dict(a=Discrete(2))).spec.pixels == 0
