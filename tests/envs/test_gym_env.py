"""Episodes of environments that are repeated from their numbers and actions; vector environments on tensors."""

from pathlib import Path

import pytest
import torch

from simic import durable
from simic.agent.repeatable import episode_seed
from simic.data.batches import ENVIRONMENT_FILE, read_meta
from simic.envs import gym_env, gym_rules
from simic.envs.gym_env import EVALUATION, GymEnv, describe, open_gym
from simic.errors import SimicError
from simic.params import GymParams
from tests import gym_toys

CARTPOLE = GymParams(id="CartPole-v1")
LIMITED = ({"name": "gymnasium.wrappers:TimeLimit", "options": {"max_episode_steps": 7}},)


def actions(step: int, envs: int = 3) -> torch.Tensor:
    return (torch.arange(envs)[:, None] + step) % 2


@pytest.mark.parametrize(("vector", "steps"), [("one", 0), ("one", 40), ("processes", 1)])
def test_running_episodes_go_on_from_numbers_and_actions(vector: str, steps: int) -> None:
    task = CARTPOLE.model_copy(update={"vector": vector})
    first, second = (open_gym(task, 5, torch.arange(3)) for _ in range(2))
    first.reset()
    for step in range(steps):
        first.step(actions(step))
    observation = second.load_state_dict(first.state_dict())
    assert torch.equal(observation.features, first.seen.features)
    # Each step pays 1.
    returns = second.returns.tolist()
    assert returns == first.returns.tolist() == first.state_dict()["running_steps"].tolist()
    for step in range(steps, steps + 30):
        observations, *expected = first.step(actions(step))[:4]
        observation, *results = second.step(actions(step))[:4]
        assert torch.equal(observation.features, observations.features)
        assert all(map(torch.equal, results, expected))
    first.close()
    second.close()


def test_an_environment_that_does_not_repeat_itself_is_named() -> None:
    env = open_gym(GymParams(id="Wandering-v0"), 1, torch.arange(2))
    env.reset()
    env.step(actions(0, 2))
    with pytest.raises(SimicError, match=r"environments \[0, 1\] do not repeat their episode"):
        env.load_state_dict(env.state_dict())


def test_an_environment_that_strays_in_a_category_alone_is_named() -> None:
    env = open_gym(GymParams(id="Signs-v0"), 1, torch.arange(2))
    env.reset()
    state = env.state_dict()
    env.load_state_dict(state)
    with pytest.raises(SimicError, match=r"environments \[1\] do not repeat their episode"):
        env.load_state_dict(state | {"categories": state["categories"] + torch.tensor([[0], [1]])})


def test_no_episode_has_the_seed_of_another() -> None:
    names = [(n, env, k) for n in (0, EVALUATION) for env in range(8) for k in range(8)]
    assert len({episode_seed(1, *name) for name in names}) == len(names)


def test_a_description_changes_with_what_decides_the_environment() -> None:
    plain = describe(CARTPOLE)
    limited = describe(GymParams(id="CartPole-v1", wrappers=LIMITED))
    assert plain["heads"] == ["action_0 2"] and "gymnasium" in plain["versions"]
    assert plain != limited and limited["layers"][0] == "gymnasium.wrappers.common:TimeLimit"
    assert list(describe(GymParams(id="Wandering-v0"))["files"]) == [gym_toys.__name__]


def test_what_is_prepared_names_the_environment_and_the_hash_of_its_description(
    tmp_path: Path,
) -> None:
    gym_env.prepare(CARTPOLE, 3, tmp_path / "prepared")
    meta = read_meta(tmp_path / "prepared")
    digest = durable.sha256(tmp_path / "prepared" / ENVIRONMENT_FILE)
    assert (meta.task, meta.source, meta.split_rng_seed) == ("gym", "CartPole-v1", 3)
    assert meta.source_sha256 == digest and meta.sha256 == {ENVIRONMENT_FILE: digest}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"id": "Nowhere-v0"}, "Nowhere"),
        ({"id": "CartPole-v1", "options": {"zzz": 1}}, "zzz"),
        ({"id": "CartPole-v1", "wrappers": ({"name": "TimeLimit"},)}, "must be module:Name"),
        ({"id": "CartPole-v1", "wrappers": ({"name": "gymnasium.wrappers:Zzz"},)}, "Zzz"),
        ({"id": "CartPole-v1", "wrappers": ({"name": "subprocess:run"},)}, "must be a subclass"),
        ({"id": "CartPole-v1", "wrappers": ({"name": "gymnasium:Env"},)}, "must be a subclass"),
        ({"id": "CartPole-v1", "vector": "tensors"}, "CartPole-v1"),
    ],
)
def test_what_cannot_be_made_is_said_in_a_line(params: dict, words: str) -> None:
    with pytest.raises(SimicError, match=words) as refused:
        open_gym(GymParams(**params), 1, torch.arange(2))
    assert "\n" not in str(refused.value)


def test_a_vector_environment_on_tensors_is_recorded_and_goes_on() -> None:
    task = GymParams(id="Counting-v0", vector="tensors")
    env, copy = (open_gym(task, 1, torch.arange(3)) for _ in range(2))
    finals = [env.step(actions(step))[4].final for step in range(7)]
    assert [final is not None for final in finals] == [False] * 4 + [True, False, False]
    assert finals[4].features[1].item() == 5.0
    assert torch.equal(copy.load_state_dict(env.state_dict()).features, env.seen.features)
    assert torch.equal(copy.returns, env.returns) and not isinstance(env, GymEnv)


def test_a_rule_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_rules, "RULES", {})
    gym_rules.rule("mine")(lambda history, masks: 0)
    for name in ("mine", "peer"):
        with pytest.raises(SimicError, match="the name is taken"):
            gym_rules.rule(name)
    with pytest.raises(SimicError, match="must be one of @rule: mine"):
        gym_rules.named("absent")
