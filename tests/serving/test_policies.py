"""A policy behind HTTP acts as the agent itself; its memory is kept by session, or goes with the request."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from simic.agent import Agent
from simic.serving import policies as serving
from simic.serving.policies import Sessions
from simic.serving.sources import FolderSource
from tests.agent.test_export import Depot, trained
from tests.serving.conftest import Server, running

# One a line, with the status that it deserves.
BAD = """
422 {}
400 []
422 {"rows": [{"a": 1}]}
422 {"observations": []}
422 {"observations": [0, 0, 0, 0]}
422 {"observations": [[1, 2, 3]]}
422 {"observations": [["a", 1, 2, 3]]}
422 {"observations": [null]}
422 {"observations": {"a": 1}}
422 {"observations": [[[1], [2, 3]]]}
422 {"observations": [[1e300, 0, 0, 0]]}
422 {"observations": [[HUGE, 0, 0, 0]]}
422 {"inputs": {"features": [START]}}
422 {"inputs": {"features": [START], "categories": [[1]]}}
422 {"inputs": {"features": [START], "categories": [[], []]}}
422 {"inputs": {"features": "many", "categories": [[]]}}
422 {"inputs": {"features": 1, "categories": [[]]}}
422 {"inputs": [START]}
422 {"observations": [START], "inputs": {"mask_op": [[true, true]]}}
422 {"observations": [START], "session": 1}
422 {"observations": [START], "session": ""}
422 {"observations": [START], "session": "LONG"}
409 {"observations": [START], "session": "nobody"}
422 {"observations": [START, START], "session": "a", "start": true}
422 {"observations": [START], "session": "a", "start": "yes"}
422 {"observations": [START], "session": "a", "memory": {"model": "policy1"}}
422 {"observations": [START], "start": true, "memory": {"model": "policy1"}}
422 {"observations": [START], "memory": []}
409 {"observations": [START], "memory": {"model": "policy1"}}
422 {"observations": [START], "memory": {"model": "VERSION", "h": [[1]], "c": null}}"""


class Changing(FolderSource):
    """A source whose newest version is another folder from some time on."""

    def change(self, folder: Path) -> None:
        super().__init__(folder)


def episode(folder: Path) -> tuple[list[list[float]], list[int]]:
    """What the agent itself observes and does in seven steps."""
    agent = Agent.load(folder.with_name(folder.name.replace("policy", "agent") + ".safetensors"))
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=3)
    observations, actions, state = [], [], None
    for _ in range(7):
        observations.append(observation.tolist())
        action, state = agent.predict(observation, state)
        actions.append(int(action))
        observation = env.step(int(action))[0]
    return observations, actions


@pytest.fixture(scope="module")
def server(policies: list[Path]) -> Iterator[Server]:
    with running(policies[0]) as server:
        yield server


def step(server: Server, observation: list[float], **more: Any) -> dict[str, Any]:
    status, answer = server.ask({"observations": [observation]} | more)
    assert status == 200, answer
    return answer


def test_by_session_and_by_hand_it_acts_as_the_agent(server: Server, policies: list[Path]) -> None:
    observations, actions = episode(policies[0])
    by_hand: dict[str, Any] = {}
    for number, observation in enumerate(observations):
        by_session = step(server, observation, session="x", start=number == 0)
        more = {"memory": by_hand["memory"]} if by_hand else {}
        by_hand = step(server, observation, **more)
        assert by_session["actions"] == by_hand["actions"] == [[actions[number]]]
        assert by_session["value"] == pytest.approx(by_hand["value"], abs=1e-6)
        assert by_session.keys() == {"model", "actions", "value", "session"}
    # The memory matters: with an empty one the last value is another.
    assert step(server, observations[-1])["value"] != by_hand["value"]
    # A step that is refused changes none.
    for wrong in ([0.0] * 3, [1e300] * 4):
        assert server.ask({"observations": [wrong], "session": "x"})[0] == 422
        restart = {"observations": [wrong], "session": "x", "start": True}
        assert server.ask(restart)[0] == 422
    last = step(server, observations[0], memory=by_hand["memory"])
    again = step(server, observations[0], session="x")
    assert again["value"] == pytest.approx(last["value"], abs=1e-6)


def test_with_memory_and_masks_it_acts_as_the_agent_for_200_steps(tmp_path: Path) -> None:
    """On pictures, categories and numbers, with masks that depend on earlier choices."""
    agent = trained(Depot, "lstm", "own")
    agent.export(tmp_path / "depot")
    env = Depot()
    state = None
    largest = 0.0
    with running(tmp_path / "depot") as server:
        for number in range(200):
            starts = number % 30 == 0
            if starts:
                observation, _ = env.reset(seed=number)
                state = agent.policy.initial_state(1)
            inputs = {f"mask_{head}": [mask] for head, mask in env.masks.items()}
            body = {"observations": [observation], "inputs": inputs, "session": "x"}
            content = json.dumps(body | {"start": starts}, default=np.ndarray.tolist)
            status, answer = server.ask(content.encode())
            assert status == 200, answer
            # The agent, from its own memory.
            rows = agent.normalizers.see(agent.env.rows([observation], [env.masks]))
            readings, _ = agent.policy.step(rows, state)
            value = agent.policy.state_value(readings.value).item()
            largest = max(largest, abs(answer["value"][0] - value))
            action, state = agent.predict(observation, state, env.masks)
            assert answer["actions"] == [agent.env.action_layout.from_env(action).tolist()]
            observation, *_ = env.step(action)
    print(f"largest difference of values in 200 steps: {largest:.1e}")
    assert largest <= 1e-6


def test_rows_of_a_batch_are_of_their_own(server: Server, policies: list[Path]) -> None:
    observations, _ = episode(policies[0])
    before = server.metric("simic_rows_total")
    inputs = {"features": observations, "categories": [[]] * len(observations)}
    status, answer = server.ask({"inputs": inputs})
    assert status == 200 and len(answer["memory"]["h"]) == len(observations)
    assert server.metric("simic_rows_total") == before + len(observations)
    alone = [step(server, row)["value"][0] for row in observations]
    assert answer["value"] == pytest.approx(alone, abs=1e-6)
    model = server.ask(path="/model")[1]
    assert model["contract"]["observation"][0]["columns"] == [0, 4] and model["card"] == ""


def test_an_episode_goes_on_with_the_policy_that_it_began_with(policies: list[Path]) -> None:
    observations, actions = episode(policies[0])
    source = Changing(policies[0])
    with running(source) as server:
        first = step(server, observations[0], session="x", start=True)["model"]
        memory = step(server, observations[0])["memory"]
        source.change(policies[1])
        server.service.refresh()
        for observation, action in zip(observations[1:], actions[1:], strict=True):
            answer = step(server, observation, session="x")
            assert (answer["model"], answer["actions"]) == (first, [[action]])
        assert step(server, observations[1], memory=memory)["model"] == first
        assert step(server, observations[0])["model"] == server.service.model.version != first


def test_of_too_many_sessions_the_one_unused_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "MOST_SESSIONS", 2)
    sessions = Sessions()
    for name in "abac":
        sessions.take(name)
        sessions.put(name, {"h": name})
    assert [sessions.take(name) for name in "abc"] == [{"h": "a"}, None, {"h": "c"}]
    # What is in use cannot be taken twice.
    assert sessions.take("a") is None


def test_what_does_not_fit_is_one_sentence(server: Server) -> None:
    words = {"START": "[0, 0.1, 0, 0]", "HUGE": "1" + "0" * 400, "LONG": "x" * 201}
    words["VERSION"] = server.service.model.version
    for line in BAD.split("\n")[1:]:
        for word, text in words.items():
            line = line.replace(word, text)
        expected, _, body = line.partition(" ")
        status, answer = server.ask(body.encode())
        assert (str(status), [*answer]) == (expected, ["detail"]), (line, answer)
        assert 10 < len(answer["detail"]) < 300, answer
    assert np.isfinite(step(server, json.loads(words["START"]))["value"]).all()
