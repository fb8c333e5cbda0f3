"""What crosses the border between the agent and an environment is checked and copied, in both directions."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from simic.agent import Agent, export
from simic.agent.agent import CARD, PLAY_ITERATION, RUNNING, settings, sizes
from simic.agent.core import RecurrentState
from simic.agent.gym_adapter import vectorized
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO
from simic.agent.spec import ActionSpec, Head, ObservationSpec
from simic.errors import SimicError

from .worlds import HIERARCHY, make_policy

PLAIN = sizes(core="none", encoder_units=16, core_units=16, head_units=16)


class Counter(gymnasium.Env):
    """Counts to 5 in one array that it fills again and again; ``answers`` replaces parts of what it returns."""

    observation_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.state = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.state[:] = 0
        return self.answers.get("reset", (self.answers.get("state", self.state), {}))

    def step(self, action: int):
        self.state += 1
        ended = bool(self.state[0] >= 5)
        reward = self.answers.get("reward", 1.0) if ended else 1.0
        state = self.answers.get("state", self.state)
        # Infos change their types and shapes.
        info = {"shape": np.zeros(int(self.state[0]))} if ended else {"shape": None}
        return self.answers.get("step", (state, reward, False, ended, info))


def agent(make, **options) -> Agent:
    return Agent(make, envs=2, rollout_steps=8, policy=PLAIN, **options)


def test_an_array_that_is_filled_again_is_copied():
    env = vectorized(Counter, 2, 1)
    env.reset()
    for _ in range(5):
        *_, truncated, info = env.step(torch.zeros(2, 1, dtype=torch.int64))
    assert truncated.all() and info.final.features.flatten().tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"reward": None}, "pays None: a reward must be one real number"),
        ({"reward": 10**400}, "pays 1000.*: a reward must be one"),
        ({"reward": 1e300}, r"environment 0 pays 1e\+300"),
        (
            {"reset": np.zeros(1, np.float32)},
            r"reset\(\) returns one ndarray: must be \(observation, info\)",
        ),
        (
            {"step": (np.zeros(1), 0.0, True, {})},
            r"step\(\) returns 4 values: must be \(observation, reward, ",
        ),
        (
            {"state": np.zeros(2, np.float32)},
            r"observation is float32 of shape \[2\]: its space is Box",
        ),
        (
            {"step": (np.zeros(1), 0.0, None, False, {})},
            "terminated is None: must be True or False",
        ),
        ({"step": (np.zeros(1), 0.0, False, "no", {})}, "truncated is 'no': must be True or False"),
        (
            {"step": (np.zeros(1), 0.0, [True] * 2, False, {})},
            r"terminated is \[True, True\]: must",
        ),
        ({"state": [0.0, [1.0]]}, "list: cannot be made an array"),
        ({"state": np.full(1, np.nan)}, "environment 0 observes a number that is not finite"),
    ],
)
def test_answers_that_cannot_be_learned_from_are_refused_by_name(answers, words):
    with pytest.raises(SimicError, match=words):
        agent(lambda: Counter(**answers)).train(64)


@pytest.mark.parametrize("reward", [True, np.ones(1), torch.tensor(1.0)], ids=repr)
def test_a_reward_is_any_one_number_and_infos_are_anything(reward):
    assert set(agent(lambda: Counter(reward=reward)).train(64)) == {5.0}
    without = (np.zeros(1, np.float32), None)
    assert set(agent(lambda: Counter(reset=without, reward=reward)).train(64)) == {5.0}


@pytest.mark.parametrize("vector", ["one", "processes"])
@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_copies_that_differ_where_their_rows_do_not_are_refused(name: str, vector: str) -> None:
    envs = [Counter(), Counter()]
    for high, env in enumerate(envs, 1):
        setattr(env, name, gymnasium.spaces.Dict(part=gymnasium.spaces.Box(-high, high, (1,))))
    rows = iter(envs)
    with pytest.raises(
        RuntimeError, match=r"spaces? (are not equivalent|.*different|doesn't make)"
    ):
        agent(lambda: next(rows), vector=vector)


class Spaceless(gymnasium.Env):
    def reset(self, *, seed: int | None = None, options: dict | None = None):
        return 0, {}


class Actionless(Counter):
    action_space = "Discrete(2)"


class Old(Counter):
    def reset(self):
        return np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            Counter(),
            "must be a registered id, or a function without arguments that makes an environment",
        ),
        (None, "environment None: must be a registered id"),
        (
            lambda needed: Counter(),
            "missing a required argument: 'needed'; must be a registered id",
        ),
        (lambda: "CartPole-v1", "makes a str; must be a registered id"),
        (str, "no signature found .*; must be a registered id"),
        (Spaceless, "observation_space is NoneType, must be a gymnasium.Space"),
        (Actionless, "action_space is str, must be a gymnasium.Space"),
        (Old, r"reset\(\) takes no seed and options"),
        ("Nothing-v0", "environment 'Nothing-v0': Environment `Nothing` doesn't exist"),
        ("nowhere:X-v0", "environment 'nowhere:X-v0': No module named 'nowhere'"),
    ],
)
def test_what_makes_no_environment_to_learn_from_is_refused(make, words):
    with pytest.raises(SimicError, match=words):
        agent(make)


class FromOne(Counter):
    """Pays for its second action, which it calls 2."""

    action_space = gymnasium.spaces.Discrete(2, start=1)

    def step(self, action: int):
        observation, _, *rest = super().step(action)
        assert self.action_space.contains(action)
        return observation, float(action == 2), *rest


def test_the_exported_program_speaks_of_actions_as_the_environment_does(tmp_path):
    learner = agent(FromOne, ppo=settings(learning_rate=1e-2))
    learner.train(512)
    normalizer = learner.normalizers.observation
    export.export_policy(learner.policy, normalizer, tmp_path, learner.env.masked)
    description = json.loads((tmp_path / "policy.json").read_text())
    program = torch.export.load(tmp_path / "policy.pt2").module()
    nothing = torch.zeros(1, 0)
    assert int(program(torch.zeros(1, 1), nothing.long(), (), nothing, nothing)[0]) == 2
    assert description["heads"] == [{"name": "action_0", "size": 2, "first": 1}]
    assert learner.evaluate(2) == [5.0, 5.0]


def test_a_saved_agent_goes_on_in_another_number_of_environments(tmp_path):
    learner = agent(Counter)
    learner.train(64)
    learner.save(tmp_path / "saved")
    more = Agent.load(tmp_path / "saved", Counter, envs=6)
    assert more.env.num_envs == 6 and more.env_steps > 0
    more.train(96)
    for wrong in (0, -1, 2.0, True, "8", 10**9):
        with pytest.raises(SimicError, match=f"envs = {wrong!r}: must be a whole number from 1 to"):
            Agent.load(tmp_path / "saved", Counter, envs=wrong)


def test_numbers_are_of_any_integer_type_and_others_are_refused() -> None:
    learner = Agent(
        Counter, rng_seed=np.uint8(3), envs=np.int16(2), rollout_steps=torch.tensor(8), policy=PLAIN
    )
    learner.train(np.int64(16))
    assert learner.evaluate(np.int32(2)) and learner.rng_seed == 3
    for act, words in [
        (lambda: learner.train(-1), "steps = -1: must be a whole number from 0"),
        (lambda: learner.train(1e3), r"steps = 1000.0: must be a whole"),
        (lambda: learner.evaluate(0), "episodes = 0: must be a whole number from 1"),
        (lambda: Agent(Counter, rng_seed=0.5), "rng_seed = 0.5: must be"),
        (lambda: sizes(core="rnn"), r"^sizes\(\): core = 'rnn': must be 'lstm', 'gru', "),
        (lambda: settings(gamma=2), r"^settings\(\): gamma = 2: must be less than or equal to 1"),
        (lambda: settings(lr=1e-3), r"^settings\(\): lr: unknown key; "),
        (lambda: Agent(Counter, rollout_steps=2**50), "a rollout: at least .* GiB"),
    ]:
        with pytest.raises(SimicError, match=words):
            act()


def test_arguments_of_another_kind_are_refused_before_anything_happens() -> None:
    for arguments, words in (
        ({"policy": {"core": "gru"}}, r"must be made by sizes\(\)$"),
        ({"ppo": {}}, r"must be made by settings\(\)$"),
        ({"vector": ["one"]}, r"vector = \['one'\]: must be one of one, processes, tensors"),
        ({"log": __file__}, "test_border.py: is a file, must be a folder; choose another path"),
    ):
        with pytest.raises(SimicError, match=words):
            Agent("CartPole-v1", **arguments)
    learner = Agent("CartPole-v1", rollout_steps=16)
    with pytest.raises(SimicError, match=r"^callback 5: must be a Callback, or a function$"):
        learner.train(128, 5)  # type: ignore[arg-type]
    assert learner.env_steps == 0


class Painting(Counter):
    """Observes a picture."""

    observation_space = gymnasium.spaces.Box(0, 255, (16, 12, 3), np.uint8)

    def reset(self, **arguments):
        super().reset(**arguments)
        return np.zeros((16, 12, 3), np.uint8), {}


def test_a_picture_with_other_axes_is_refused() -> None:
    learner = Agent(Painting, rollout_steps=16, policy=sizes(core="none"))
    picture = np.arange(576).astype(np.uint8).reshape(16, 12, 3)
    actions = [learner.predict(x)[0] for x in (picture, picture.ravel(), picture[None])]
    assert len(set(actions)) == 1
    with pytest.raises(SimicError, match=r"must be \[16, 12, 3\] finite numbers$"):
        learner.predict(picture.transpose(2, 0, 1))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    learner = agent(Counter, log="~/runs")
    learner.train(16)
    learner.save("~/runs/saved")
    assert Agent.load("~/runs/saved", Counter, log=Path("~/runs")).env_steps == 16
    assert sorted(os.listdir("runs")) == ["progress.csv", "saved"] and not Path("~").exists()
    with pytest.raises(SimicError, match="path '~nobody-here/x': Could not determine home"):
        learner.save("~nobody-here/x")


def changed(path: Path, change: Callable[[dict, dict], None]) -> None:
    """Write a saved agent again with another card or other tensors."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        card = json.loads(file.metadata()[CARD])
    change(card, tensors)
    save_file(tensors, path, {CARD: json.dumps(card)})


OTHER_SIZES = "its description asks for other sizes than its tensors have"
NOT_SAVED = r"not an agent that Agent\.save wrote"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card, _: card["policy"].update(encoder_units=8192), OTHER_SIZES),
        (lambda card, _: card["policy"].update(core="lstm", core_units=8192), OTHER_SIZES),
        (lambda card, _: card.update(envs=9_000), OTHER_SIZES),
        (lambda card, _: card.update(envs=10**9), NOT_SAVED),
        (lambda card, _: card.update(rollout_steps=-1), NOT_SAVED),
        (lambda card, _: card.update(iteration="7"), NOT_SAVED),
        (lambda card, _: card.update(ppo=[]), NOT_SAVED),
        (lambda card, _: card.update(more=1), NOT_SAVED),
        (
            lambda card, tensors: tensors["ppo/policy.actor.encoder.bias"].fill_(torch.nan),
            "tensor 'ppo/policy.actor.encoder.bias' holds numbers that are not finite",
        ),
        (
            lambda card, tensors: tensors["normalizers/observation.mean"].fill_(-torch.inf),
            "tensor 'normalizers/observation.mean' holds numbers that are not finite",
        ),
        (lambda card, tensors: tensors.pop(RUNNING), f"tensor '{RUNNING}' is missing"),
    ],
)
def test_a_hostile_file_is_refused_before_it_asks_for_anything(tmp_path, change, words) -> None:
    path = tmp_path / "saved"
    agent(Counter).save(path)
    changed(path, change)
    with pytest.raises(SimicError, match=words):
        Agent.load(path, Counter)


def test_a_file_neither_imports_a_module_nor_is_waited_for(tmp_path) -> None:
    path = tmp_path / "saved"
    agent("CartPole-v1").save(path)
    changed(path, lambda card, _: card.update(env="antigravity:CartPole-v1"))
    with pytest.raises(SimicError, match="'antigravity:CartPole-v1' is in a module that loading"):
        Agent.load(path)
    assert Agent.load(path, "CartPole-v1").env_steps == 0
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SimicError, match="pipe: must be a regular file"):
        Agent.load(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("core", "make"), [("lstm", "CartPole-v1"), ("transformer", "CartPole-v1"), ("none", FromOne)]
)
def test_predictions_step_by_step_are_the_decisions_of_an_evaluation(core, make):
    learner = Agent(
        make, envs=1, rollout_steps=32, policy=sizes(core=core), ppo=settings(minibatches=1)
    )
    learner.train(64)
    env = vectorized(make, 1, learner.rng_seed)
    observation, _ = env.reset(options={"iteration": PLAY_ITERATION})
    total = 0.0
    state = None
    ended = False
    while not ended:
        action, state = learner.predict(observation.features[0].numpy(), state)
        choice = torch.tensor([[action]]) - env.action_spec.heads[0].first
        observation, reward, terminated, truncated, _ = env.step(choice)
        total += float(reward)
        ended = bool(terminated | truncated)
    assert [total] == learner.evaluate(1)
    with pytest.raises(SimicError, match=r"^observation .*: must be \[\d\] finite numbers$"):
        learner.predict("left")
    with pytest.raises(SimicError, match=r"^mask .*: must be None, as training had it$"):
        learner.predict(observation.features[0].numpy(), state, mask=[True, True])


MEMORY = r"RecurrentState of torch\.float32 "


class Gated(Counter):
    """Says what is legal."""

    def action_masks(self) -> np.ndarray:
        return np.array([True, self.state[0] > 1])


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_batch_is_decided_as_its_rows_are(core: str) -> None:
    small = sizes(core=core, encoder_units=16, core_units=16, head_units=16)
    learner = Agent(Gated, envs=4, rollout_steps=8, policy=small)
    seen = np.array([[0.0], [2.0], [4.0]], np.float32)
    masks = np.array([[True, False], [False, True], [True, True]])
    actions, state = learner.predict_batch(seen, masks=masks)
    again, after = learner.predict_batch(list(seen), state, list(masks))
    for row in range(3):
        action, alone = learner.predict(seen[row], mask=masks[row])
        assert actions[row] == action
        action, alone = learner.predict(seen[row], alone, masks[row])
        assert again[row] == action
        assert torch.allclose(after.h[row], alone.h[0], atol=1e-6)
    assert actions[:2] == [0, 1]
    for arguments, words in [
        ((seen, state, None), r"^mask None: must be action_masks\(\)"),
        ((seen, state, masks[:2]), r"mask 'action_0' is bool \[2, 2\]: must be bool \[3, 2\]"),
        ((seen[:2], state, masks[:2]), rf"^state is {MEMORY}\[3, .*: must be {MEMORY}\[2, "),
        ((seen, masks, masks), rf"^state is ndarray: must be {MEMORY}\[3, .* returned it, or None"),
        ((seen, (state.h, state.c), masks), "^state is tuple: must be"),
        ((seen, RecurrentState(state.h.numpy(), state.c), masks), "^state is .* of float32"),
        ((seen, state._replace(h=state.h.double()), masks), "^state is .* of torch.float64"),
        ((seen, state._replace(c=torch.zeros(3, 1)), masks), "^state is RecurrentState"),
        ((seen, RecurrentState(None, None), masks), "^state is RecurrentState of .*NoneType"),
        ((seen, None, [{}] * 3), r"^mask \[{}, {}, {}\]: must be of action_0, as training had"),
        ((seen[:0], None, masks[:0]), r"observations array.*: must be a list or array with one"),
        (({"x": seen}, None, masks), r"observations {'x': .*: must be a list or array"),
        ((seen, None, {"action_0": masks}), r"masks {'action_0': .*: must be a list or array"),
        ((np.float32(1.0), None, masks), r"observations np.float32\(1.0\): must be a list"),
    ]:
        with pytest.raises(SimicError, match=words):
            learner.predict_batch(*arguments)


def test_a_log_of_another_program_stays(tmp_path):
    file = tmp_path / "progress.csv"
    for text in (b"time/iterations,rollout\n22.5,2\n", b"\xff\x00"):
        file.write_bytes(text)
        with pytest.raises(
            SimicError, match="is a file of another program; choose another folder for the log"
        ):
            agent(Counter, log=tmp_path).train(64)
        assert file.read_bytes() == text


SPEC = ActionSpec(
    (Head("op", 2), Head("slot", 3, "op"), Head("kind", 4, "slot")),
    ((True, False, False), (True, True, True)),
)


def masks(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    shapes = {"op": (5, 2), "slot": (5, 2, 3), "kind": (5, 3, 4)}
    return {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()} | changed


def test_a_spec_that_cannot_be_is_refused() -> None:
    """A mask cannot hang on a later or unused choice, every op has a row of relevance, and of one head the choices can
    be described, by features that there are.
    """
    with pytest.raises(ValueError, match="relevance must have 2 rows of 2 heads"):
        ActionSpec((Head("op", 2), Head("slot", 3)), ((True, True),))
    with pytest.raises(ValueError, match="no op is chosen before it"):
        ActionSpec((Head("op", 2, "op"),), ((True,), (True,)))
    with pytest.raises(
        ValueError, match="'kind' is masked by the slot, but some op uses it without"
    ):
        ActionSpec(SPEC.heads, ((True, True, True), (True, False, True)))
    with pytest.raises(ValueError, match="more than one head are described"):
        replace(SPEC, heads=tuple(replace(head, described=1) for head in SPEC.heads))
    with pytest.raises(SimicError, match="described by 4 features: there are 3"):
        ActorCritic(HIERARCHY, ObservationSpec(3), PLAIN)
    with pytest.raises(SimicError, match=r"entropy_scale: there is no head 'ops'; the heads are"):
        PPO(make_policy(), settings(entropy_scale={"ops": 0.5}), 1, total_updates=5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"slot": torch.ones(5, 3, dtype=torch.bool)},
            r"mask 'slot' is bool \[5, 3\]: must be bool \[5, 2, 3\]",
        ),
        (
            {"kind": torch.ones(5, 3, 4)},
            r"mask 'kind' is float32 \[5, 3, 4\]: must be bool \[5, 3, 4\]",
        ),
        (
            {"king": torch.ones(5, 1)},
            "mask 'king': there is no such discrete head; they are op, slot, kind",
        ),
    ],
)
def test_any_other_would_be_broadcast_and_is_refused(
    changed: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(SimicError, match=message):
        SPEC.check_masks(masks(**changed), 5)
