"""``train.actions``: what it closes is masked for everyone who acts, and everyone is told clearly."""

import re

import pytest
import torch

from simic.envs.actions import choices, grammar, grammar_mask
from simic.envs.patient import Patient
from simic.envs.play import play as play_episode
from simic.errors import SimicError
from simic.evaluation.schedules import OpenLoop, Schedule
from tests.standard import Lifecycle

NARROW = {
    "op": ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "ADVANCE"),
    "slot": (0, 2),
    "blueprint": ("conv_light", "norm"),
    "style": ("sigmoid_add",),
    "tempo": (3, 8),
    "alpha_target": (1,),
    "alpha_speed": (0,),
    "alpha_curve": ("LINEAR", "COSINE"),
}


def test_masks_are_those_of_an_open_environment_without_the_closed_choices(make_env, play):
    env = make_env(4, steps=9, actions=NARROW)
    free = make_env(4, steps=9)
    rows = grammar(env.action_spec)
    relevant = env.action_spec.relevance_table()[rows[:, 0]]
    open_rows = torch.ones(len(rows), dtype=torch.bool)
    names = choices(3, [item.name for item in env.blueprints])
    for number, (head, values) in enumerate(NARROW.items()):
        indices = torch.tensor([names[head].index(value) for value in values])
        open_rows &= torch.isin(rows[:, number], indices) | ~relevant[:, number]
    narrowed = 0
    free.reset(options={"iteration": 0})
    for before, actions, (observation, *_) in play(env):
        env.action_spec.check_masks(before.masks, env.num_envs)
        assert tuple(before.masks) == env.masked
        free_observation, *_ = free.step(actions)
        legal = grammar_mask(env.action_spec, observation, rows)
        assert torch.equal(legal, grammar_mask(env.action_spec, free_observation, rows) & open_rows)
        narrowed += int((legal.sum(dim=1) > 1).sum())
    assert narrowed > 0


def test_an_open_space_is_masked_as_without_the_option(make_env):
    """No list, an empty one and a complete one are the same: not even an additional tensor."""
    env = make_env(2)
    masks = env.reset()[0].masks
    complete = choices(3, [item.name for item in env.blueprints])
    for actions in (dict.fromkeys(complete, ()), complete):
        observation, _ = make_env(2, actions=actions).reset()
        torch.testing.assert_close(observation.masks, masks, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (
            {"speed": (3,)},
            "train.actions: there is no head 'speed'; the heads are op, slot, blueprint, style, tempo",
        ),
        ({"tempo": (3, 4)}, "train.actions.tempo: there is no 4; allowed are 0, 3, 5, 8"),
        ({"slot": (3,)}, "train.actions.slot: there is no 3; allowed are 0, 1, 2"),
        ({"blueprint": ("mlp",)}, "train.actions.blueprint: there is no 'mlp'; allowed are "),
        ({"op": ("GERMINATE", "PRUNE")}, "train.actions.op = GERMINATE, PRUNE: must include WAIT"),
    ],
)
def test_what_there_is_not_is_named(make_env, actions, message):
    with pytest.raises(SimicError, match=re.escape(message)):
        make_env(1, actions=actions)


@pytest.mark.parametrize(
    ("plan", "need", "head", "choice"),
    [
        (Patient(Lifecycle(), ((0, 0),)), "Patient needs style linear", "style", "sigmoid_add"),
        (OpenLoop([Schedule((-1, 1, -1))] * 2), "OpenLoop needs blueprint", "blueprint", "norm"),
    ],
)
def test_a_plan_that_needs_what_is_closed_is_refused_before_it_begins(
    make_env, plan, need, head, choice
):
    env = make_env(envs=2, steps=2, actions={head: (choice,)})
    message = f"{need}.*, which train.actions.{head} closes: allow it, or leave this"
    with pytest.raises(SimicError, match=message):
        play_episode(env, plan, 0, lambda *step: pytest.fail("a step was played"))
