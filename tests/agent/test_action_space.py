"""Action spaces as rows: where each leaf stands, the way there and back, and what is refused."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Tuple

from simic.agent import Agent
from simic.agent.action_space import ActionLayout, columns_of, heads_of
from simic.agent.agent import settings, sizes
from simic.agent.spec import ActionSpec, Head
from simic.errors import SimicError
from tests import gym_toys

WIDE = Box(np.array([-3.0, 0.0], np.float32), np.array([2.0, np.inf], np.float32))
SPACE = Dict(
    {
        "aim": WIDE,
        "inner": Tuple((MultiDiscrete([[3, 2]]), Box(0.1, 0.3, (), np.float64))),
        "move": Discrete(4, start=-1),
        "switches": MultiBinary(2),
    }
)


def test_rows_have_choices_first_and_come_back() -> None:
    layout = ActionLayout(SPACE)
    spec = heads_of(layout, None)
    assert spec.column_names == [
        *("inner.0.0", "inner.0.1", "move", "switches.0", "switches.1"),
        *("aim.0", "aim.1", "inner.1"),
    ]
    assert [head.first for head in spec.discrete_heads] == [0, 0, -1, 0, 0]
    action = layout.to_env(spec.to_env(torch.tensor([2.0, 1, 0, 1, 0, 9.0, 5.0, 9.0])).numpy())
    assert SPACE.contains(action)
    assert action["move"] == -1 and action["inner"][0].tolist() == [[2, 1]]
    # Bounded numbers are in units of half their range and clipped, others are as they are; 0.3 is no float32.
    assert action["aim"].tolist() == [2.0, 5.0] and action["inner"][1] == 0.3
    for seed in range(20):
        SPACE.seed(seed)
        action = SPACE.sample()
        again = layout.to_env(spec.to_env(columns_of(layout, spec, action)).numpy())
        assert again["move"] == action["move"]
        np.testing.assert_allclose(again["aim"], action["aim"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(again["inner"][1], action["inner"][1], rtol=1e-5)
        assert (again["switches"] == action["switches"]).all()


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Dict({"a": Sequence(Discrete(2))}), r"action space .* at action\['a'\]: must be Box"),
        (Box(0, 9, (2,), np.int64), "must be a Box of floats"),
        (Dict({}), "must hold a space"),
        (Dict({"a": Box(0.0, 9.0, (0,))}), r"^action\['a'\] is of Box\(.*\): must hold something"),
        (MultiDiscrete([]), "must hold something"),
        (Dict({"a": Tuple((Discrete(2),)), "a.0": Discrete(2)}), "two leaves are called 'a.0'"),
    ],
)
def test_spaces_that_no_agent_acts_in_are_refused(space: gymnasium.Space, words: str) -> None:
    with pytest.raises(SimicError, match=words):
        heads_of(ActionLayout(space), None)


def test_specs_that_are_not_of_the_space_are_refused() -> None:
    layout = ActionLayout(Tuple((Discrete(2), Box(-1.0, 1.0, (3,)))))
    narrow = ActionSpec.trivial([Head("op", 2), Head("aim", 2, continuous=True)])
    with pytest.raises(
        SimicError, match=r"sizes \[2, '2 numbers'\]: must be .* \[2, '3 numbers'\]"
    ):
        heads_of(layout, narrow)
    number = Head("aim", 3, continuous=True)
    for heads, relevance, words in (
        ((number, Head("op", 2)), ((True, True),), "'op' must be before the continuous ones"),
        ((Head("op", 1), Head("aim", 3, "op", continuous=True)), ((True, True),), "no choices"),
        ((number, number), ((True, False),), "there is no op"),
    ):
        with pytest.raises(ValueError, match=words):
            ActionSpec(heads, relevance)
    for action in ({"op": 1}, (1,), (2, np.zeros(3)), (1, np.full(3, 2.0))):
        with pytest.raises(SimicError, match=r"action\[[01]\] is"):
            columns_of(layout, heads_of(layout, None), action)


def test_an_agent_learns_what_to_throw_where_and_is_saved_whole(tmp_path: Path) -> None:
    policy = sizes(core="none", encoder_units=32, head_units=32, critic="detached")
    agent = Agent(
        "Throw-v0", envs=8, rollout_steps=64, policy=policy, ppo=settings(learning_rate=3e-3)
    )
    reports = []
    agent.train(20_000, reports.append)
    assert max(report.metrics.first_ratio_deviation for report in reports) < 1e-5
    returns = agent.evaluate(24)
    assert sum(returns) / len(returns) > 4 * 0.6
    agent.save(tmp_path / "agent")
    again = Agent.load(tmp_path / "agent")
    action, _ = agent.predict([0.5, -0.5], mask={"throw": [True, True]})
    other, _ = again.predict([0.5, -0.5], mask={"throw": [True, True]})
    assert gym_toys.Throw.action_space.contains(action)
    assert action["throw"] == other["throw"] == 2 and (action["where"] == other["where"]).all()
    assert abs(action["where"] - [0.5, -0.5]).max() < 0.3
    with pytest.raises(SimicError, match="no such discrete head; they are throw"):
        agent.predict([0.5, -0.5], mask={"where": [True, True]})
