"""The agent on its own: what a user of Gymnasium does with it."""

import csv
import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from simic.agent import Agent
from simic.agent import play as play_module
from simic.agent.callbacks import Callback
from simic.agent.rollout import StepRecord
from simic.agent.spec import ActionSpec, Head
from simic.errors import SimicError
from tests import gym_toys, standard  # noqa: F401 - the first registers environments
from tests.standard import Policy

PAGE = Path(__file__).parents[2] / "docs" / "agent.md"
SIZES = Policy(encoder_units=16, core="gru", core_units=16, head_units=16)
SETTINGS = standard.PPOParams(
    learning_rate=1e-2, minibatches=2, epochs=4, target_kl=None, gamma=0.9
)


class Sign(gymnasium.Env):
    """Pays 1 for the sign that is shown; ``length`` steps, then cut off. The observation is never normalised away."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def _look(self) -> np.ndarray:
        self.sign = self.np_random.choice([-1.0, 1.0])
        return np.array([self.sign], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        reward = float((self.sign > 0) == (action == 1))
        self.time += 1
        return self._look(), reward, False, self.time == self.length, {}


def make_agent(env: str | Callable = Sign, **changes) -> Agent:
    return Agent(
        env, **({"envs": 4, "rollout_steps": 16, "policy": SIZES, "ppo": SETTINGS} | changes)
    )


def equal(first: Agent, second: Agent) -> bool:
    tensors = second.tensors()
    return first.tensors().keys() == tensors.keys() and all(
        torch.equal(tensor, tensors[name]) for name, tensor in first.tensors().items()
    )


def test_it_learns_and_its_episodes_are_counted() -> None:
    agent = make_agent()
    reports = []
    returns = agent.train(950, reports.append)
    # Whole updates, at least 950 steps; 64 steps are 16 episodes of 4.
    assert [report.env_steps for report in reports] == list(range(64, 961, 64))
    assert [value for report in reports for value in report.returns] == returns
    assert all(len(report.returns) == 16 for report in reports)
    assert np.mean(reports[-1].returns) > 3.5 > np.mean(reports[0].returns)
    # The bonus falls until the last update of the call.
    coefficients = [report.metrics.entropy_coef for report in reports[::7]]
    final = SETTINGS.entropy_coef_final
    assert coefficients == pytest.approx([0.01, (0.01 + final) / 2, final])
    for greedy in (True, False):
        assert np.mean(agent.evaluate(8, greedy)) > 3.5


def test_every_environment_plays_equally_many_episodes() -> None:
    lengths = cycle([1, 2, 4, 8])
    agent = make_agent(lambda: Sign(next(lengths)))
    returns = agent.evaluate(8)
    assert len(returns) == 8
    assert np.all(returns <= np.repeat([1, 2, 4, 8], 2))
    assert len(agent.evaluate(6)) == 6  # two of the four environments: three episodes each


def test_an_episode_without_end_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(play_module, "LONGEST_EPISODE", 20)
    with pytest.raises(SimicError, match="an episode goes on for 20 steps: wrap the environment"):
        make_agent(lambda: Sign(10**9)).evaluate(4)


def test_an_evaluation_that_waits_says_for_what(monkeypatch, caplog) -> None:
    """Also where other environments go on to end their episodes."""
    lengths = iter([4, 4, 4, 4, 4, 30])
    agent = make_agent(lambda: Sign(next(lengths)))
    monkeypatch.setattr(play_module, "PATIENCE", 0.0)
    assert len(agent.evaluate(2)) == 2
    said = [record.message for record in caplog.records]
    assert "waits 0 seconds for the end of an episode, now at step 29; one without end" in said[-1]
    assert "TimeLimit" in said[-1]


class InStep(Callback):
    """Does something in the middle of the rollout behind so many updates."""

    def __init__(self, updates: int, action: Callable[[], None]) -> None:
        self.updates = updates
        self.action = action

    def on_step(self, agent: Agent, step: StepRecord) -> None:
        if agent.iteration == self.updates and step.step == 5:
            self.action()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("core", "vector"), [("gru", "one"), ("lstm", "processes"), ("none", "one")]
)
def test_a_loaded_agent_goes_on_in_mid_episode_as_if_it_had_never_been_saved(
    core: str, vector: str, tmp_path: Path
) -> None:
    ppo = {"target_kl": 0.01, "normalize_rewards": True, "entropy_coef_final": 0.01}
    straight = make_agent(
        "CartPole-v1",
        ppo=SETTINGS.model_copy(update=ppo),
        policy=SIZES.model_copy(update={"core": core}),
        rng_seed=3,
        vector=vector,
    )
    before = straight.train(192, InStep(2, lambda: straight.save(tmp_path / "periodic")))
    straight.save(tmp_path / "half")
    straight.evaluate(4)  # changes nothing
    expected = straight.train(128)
    # Each step pays 1: an episode that ended in the second call began in the first.
    assert sum(before) + sum(expected) + straight.tensors()["running/returns"].sum() == 320
    again = Agent.load(tmp_path / "half", vector=vector)
    again.predict(np.zeros(4))
    assert again.env_steps == 192
    assert not equal(again, straight)
    assert again.train(128) == expected
    assert equal(again, straight)
    assert again.iteration == straight.iteration
    assert again.evaluate(4) == straight.evaluate(4)
    # From what was saved inside a rollout, and after an error inside another one.
    killed = Agent.load(tmp_path / "periodic", vector=vector)
    assert killed.env_steps == 128
    killed.train(64)
    with pytest.raises(KeyboardInterrupt):
        killed.train(128, InStep(4, interrupt))
    killed.train(64)
    assert equal(killed, straight)
    for agent in (straight, again, killed):
        agent.close()


def test_an_environment_that_does_not_repeat_itself_begins_anew_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_agent("Wandering-v0")
    agent.train(64)
    agent.save(tmp_path / "agent")
    agent = Agent.load(tmp_path / "agent")
    assert not caplog.records  # it may be there to play
    agent.train(64)
    [said] = [record.message for record in caplog.records]
    assert said == (
        "not continued bit for bit: environments [0, 1, 2, 3] do not repeat their episode from its seed and actions;"
        " every episode begins anew"
    )
    assert agent.tensors()["running/running_steps"].tolist() == [16] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("running/actions"), "tensor 'actions' is missing"),
        (lambda tensors: tensors.pop("running/h"), "tensor 'h' is missing"),
        (
            lambda tensors: tensors.update({"running/returns": torch.zeros(3)}),
            r"tensor 'returns' has shape \(3,\); this policy needs \(4,\)",
        ),
    ],
)
def test_episodes_that_are_damaged_in_the_file_are_refused(
    change: Callable[[dict], None], message: str, tmp_path: Path
) -> None:
    agent = make_agent()
    agent.train(64)
    agent.save(tmp_path / "agent")
    with safe_open(tmp_path / "agent", framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(tmp_path / "agent")
    change(tensors)
    save_file(tensors, tmp_path / "agent", metadata)
    with pytest.raises(SimicError, match=message):
        Agent.load(tmp_path / "agent", Sign)
    # Of another number of environments all begin anew.
    agent.save(tmp_path / "agent")
    assert len(Agent.load(tmp_path / "agent", Sign, envs=2).train(64)) == 16


def test_an_environment_without_an_id_is_handed_over_again_and_what_is_no_agent_is_refused(
    tmp_path,
) -> None:
    agent = make_agent()
    agent.save(tmp_path / "agent")
    with pytest.raises(
        SimicError, match=r"agent: its environment has no registered id; pass what makes it"
    ):
        Agent.load(tmp_path / "agent")
    assert equal(Agent.load(tmp_path / "agent", Sign), agent)
    with pytest.raises(SimicError, match=r"nowhere: not readable: No such file"):
        Agent.load(tmp_path / "nowhere")
    content = (tmp_path / "agent").read_bytes()
    for broken in (b"", content[:-1], content.replace(b"format_version", b"format_vision_")):
        (tmp_path / "agent").write_bytes(broken)
        with pytest.raises(SimicError, match=r"agent: not an agent that Agent\.save wrote"):
            Agent.load(tmp_path / "agent")
    (tmp_path / "agent").write_bytes(content.replace(b'version\\": 4,', b'version\\": 7,'))
    with pytest.raises(SimicError, match="agent: format version 7: must be 4"):
        Agent.load(tmp_path / "agent")


def of_spaces(observation: gymnasium.Space, action: gymnasium.Space, **more: object) -> type:
    return type(
        "Spaced", (Sign,), {"observation_space": observation, "action_space": action, **more}
    )


AT, ACTION = Box(-1.0, 1.0, (2,)), MultiDiscrete([2, 3])
SEEN = Dict(at=AT, goal=Discrete(3))
FIRST, SECOND = Head("action_0", 2), Head("action_1", 3)


@pytest.mark.parametrize(
    ("env", "saved", "present"),
    [
        (
            of_spaces(Dict(by=AT, goal=Discrete(3)), ACTION),
            "observation['at']: numbers [2] of float32, from -1 to 1",
            "observation['by']: numbers [2] of float32, from -1 to 1",
        ),
        (
            of_spaces(Dict(at=Box(np.float32([-1, -2]), np.float32(1)), goal=Discrete(3)), ACTION),
            "observation['at']: numbers [2] of float32, from -1 to 1",
            "observation['at']: numbers [2] of float32, from [-1, -2] to 1",
        ),
        (
            of_spaces(Dict(at=MultiBinary(2), goal=Discrete(3, start=1)), ACTION),
            "observation['at']: numbers [2] of float32, from -1 to 1;"
            " observation['goal']: categories, 3 choices from 0",
            "observation['at']: flags [2]; observation['goal']: categories, 3 choices from 1",
        ),
        (
            of_spaces(Dict(at=AT, goal=Discrete(3), more=AT), ACTION),
            "nothing more",
            "observation['more']: numbers [2] of float32, from -1 to 1",
        ),
        (
            of_spaces(SEEN, ACTION, action_spec=ActionSpec((FIRST, SECOND), ((True, False), (True, True)))),
            "head action_1: 3 choices",
            "head action_1: 3 choices, for ops [1]",
        ),
        (
            of_spaces(SEEN, ACTION, action_spec=ActionSpec.trivial((FIRST, Head("action_1", 3, "op")))),
            "head action_1: 3 choices",
            "head action_1: 3 choices, masked by op",
        ),
        (
            of_spaces(SEEN, ACTION, action_spec=ActionSpec.trivial((Head("action_0", 2, described=1), SECOND))),
            "head action_0: 2 choices",
            "head action_0: 2 choices, each described by 1 numbers",
        ),
    ],
)  # fmt: skip
def test_another_environment_is_refused_and_what_differs_is_said(
    env: type, saved: str, present: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent"
    make_agent(of_spaces(SEEN, ACTION)).save(path)
    assert Agent.load(path, of_spaces(SEEN, ACTION)).env_steps == 0
    words = f"{path}: saved with {saved}, where this environment has {present}; pass the one"
    with pytest.raises(SimicError, match=re.escape(words)):
        Agent.load(path, env)


def test_other_bounds_of_an_action_and_another_order_of_parts_are_refused(tmp_path: Path) -> None:
    def aiming(low: float) -> type:
        return of_spaces(AT, Box(low, np.inf, (2,)))

    def in_order(*names: str) -> type:
        return of_spaces(Dict([(name, AT) for name in names]), ACTION)

    for env, other, words in (
        (aiming(0.0), aiming(-1.0), "with action: numbers [2] of float32, from 0 to inf, where"),
        (in_order("a", "b"), in_order("b", "a"), "with observation['a']: "),
    ):
        make_agent(env).save(tmp_path / "agent")
        with pytest.raises(SimicError, match=re.escape(words)):
            Agent.load(tmp_path / "agent", other)


def lines(folder: Path) -> list[dict[str, str]]:
    with (folder / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def logged_steps(folder: Path) -> list[int]:
    return [int(row["env_steps"]) for row in lines(folder)]


def test_the_log_has_a_line_for_every_update_of_this_agent(tmp_path) -> None:
    agent = make_agent(log=tmp_path)
    reports = []
    returns = agent.train(128, reports.append)
    agent.save(tmp_path / "agent")
    agent.train(128)
    assert logged_steps(tmp_path) == [64, 128, 192, 256]
    row = lines(tmp_path)[1]
    assert float(row["episode_return"]) == pytest.approx(np.mean(returns))
    entropy = reports[1].metrics.entropy_by_head["action_0"]
    assert float(row["entropy_by_head/action_0"]) == entropy
    # Lines of the first agent after its save are not of the loaded one.
    again = Agent.load(tmp_path / "agent", Sign, log=tmp_path)
    again.train(64)
    assert logged_steps(tmp_path) == [64, 128, 192]
    # A line that was cut off leaves.
    log = tmp_path / "progress.csv"
    log.write_bytes(log.read_bytes()[:-20])
    again.train(64)
    assert logged_steps(tmp_path) == [64, 128, 256]
    log.write_bytes(b"")
    again.train(64)
    assert logged_steps(tmp_path) == [320]


def test_the_page_works_as_printed(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)
    assert len(block.splitlines()) <= 12
    program = re.sub(r"\d+_000", "1_024", block)
    assert program != block
    exec(compile(program, PAGE.name, "exec"), {})  # noqa: S102 - our own
    assert float(capsys.readouterr().out) > 0
    assert logged_steps(Path("runs/cartpole")) == [1024, 2048]


def test_with_memory_every_minibatch_needs_an_environment() -> None:
    with pytest.raises(SimicError, match=r"envs = 1: must be at least ppo.minibatches \(2\)"):
        make_agent(envs=1)
    make_agent(envs=1, policy=SIZES.model_copy(update={"core": "none"})).train(16)


class Switches(gymnasium.Env):
    """Pays for each of three switches that stands as its lamp shows; slower environments may run in processes."""

    observation_space = MultiBinary(3)
    action_space = MultiBinary(3)

    def _look(self) -> np.ndarray:
        self.lamps = self.np_random.integers(2, size=3).astype(np.int8)
        return self.lamps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float((action == self.lamps).mean())
        self.time += 1
        return self._look(), reward, False, self.time == 4, {}


def test_environments_in_processes_of_their_own_give_the_same_agent(tmp_path: Path) -> None:
    """Each takes three flags and gives three."""
    agents = [make_agent(Switches, vector=vector) for vector in ("one", "processes")]
    returns = [agent.train(2000) for agent in agents]
    assert returns[0] == returns[1] and equal(*agents)
    assert np.mean(returns[0][-20:]) > 3.5  # of 4; at random 2
    assert agents[0].evaluate(8) == agents[1].evaluate(8)
    agents[0].save(tmp_path / "agent")
    loaded = Agent.load(tmp_path / "agent", Switches, vector="processes")
    assert isinstance(loaded.env.env, AsyncVectorEnv) and equal(loaded, agents[1])
    agents.append(loaded)
    action, _ = agents[1].predict(np.array([1, 0, 1], np.int8))
    assert action.dtype == np.int8 and action.shape == (3,)
    for agent in agents:
        agent.close()
    with pytest.raises(SimicError, match="vector = 'threads': must be one of one, processes"):
        make_agent(Switches, vector="threads")
