"""Random legal play in every host family and preset: laws of every step, with every reward mode on the same steps."""

import pytest
import torch

from simic.envs import rewards
from simic.envs.rewards import progress
from simic.growth.life.lifecycle import LIVE_STAGES, TRANSITIONS, in_stages
from simic.growth.life.vocabulary import Op, Stage
from simic.growth.networks.hosts import PRESETS
from simic.params import Host
from tests.helpers import some
from tests.standard import Reward

from .conftest import QUICK

HOSTS = [(family, preset) for family, presets in PRESETS.items() for preset in presets]
QUICKEST = [
    ("mlp", "baseline"),
    ("tables", "baseline"),
    *(host for host in HOSTS if "impaired" in host),
]
SCARCE = [("cnn", 0.5), ("mlp", 0.5), ("transformer", 0.1)]
COSTS = {"rent", "loss_rent", "toxic"}
KIND = {"envs": 6, "steps": 13, "batches_per_epoch": 1, "backend": "auto"}
LARGEST = 10.0  # of a step's reward, apart from the death penalty


def check_step(env, transition, actions, result) -> None:
    observation, reward, *_, info = result
    before = transition.before.stage
    after = transition.after.stage
    sampled = torch.where(info.valid, actions[:, 0], int(Op.WAIT))
    was_refused = (info.gate >= 0) & ~info.gate_passed
    assert torch.equal(info.effective_op, torch.where(was_refused, int(Op.WAIT), sampled))
    allowed = torch.eye(len(Stage), dtype=torch.bool)
    for stage, following in TRANSITIONS.items():
        allowed[int(stage), [int(to) for to in following]] = True
    assert (allowed[before, after] | info.panicked[:, None]).all()
    seed_params = transition.seed_params_after
    assert torch.equal(info.params, env.host.params + seed_params.sum(dim=1))
    assert (seed_params >= 0).all() and (info.committed_params >= env.host.params).all()
    lifecycle = env.train.lifecycle
    assert (seed_params.sum(dim=1) <= lifecycle.param_budget * env.host.params).all()
    live = in_stages(after, LIVE_STAGES).sum(dim=1)
    assert (live <= (lifecycle.max_seeds or env.host.slots)).all()
    assert observation.masks["op"][:, Op.WAIT].all()
    assert (sum(info.components.values()) - reward).abs().max() < 1e-6


def check_modes(transition, setting, info) -> None:
    """Finite, of order 10 at most, in every mode."""
    lives = info.valid & ~info.panicked
    for mode, names in rewards.MODES.items():
        parts = rewards.components(mode, transition, setting)
        assert tuple(parts) == names
        reward = rewards.total(parts)
        assert reward.isfinite().all() and (reward.abs() <= LARGEST)[lives].all(), (mode, parts)
        gain = progress(transition.before).gather(1, transition.slot[:, None])[:, 0]
        if "fossilize" in parts:
            assert (parts["fossilize"][(gain <= 0) & lives] <= 0).all()  # ransomware
        for name in COSTS & parts.keys():
            assert (parts[name] <= 0).all(), name


def walk(env, play, transitions, episodes: int) -> None:
    """Plays and checks. Every other episode hurries: otherwise hardly a seed lives to be fossilized."""
    executed = set()
    refused = 0
    for iteration in range(episodes):
        transitions.clear()
        steps = play(env, iteration, prefer=() if iteration % 2 else (Op.ADVANCE, Op.FOSSILIZE))
        for (transition, setting), (_, actions, result) in zip(
            list(transitions), steps, strict=True
        ):
            info = result[4]
            check_step(env, transition, actions, result)
            check_modes(transition, setting, info)
            # What is reported as the score is what the mode of that name pays for.
            growth = (info.committed_params - env.host.params) / env.host.params
            assert torch.equal(info.score, info.committed_accuracy - env.train.price * growth)
            executed.update(info.effective_op.tolist())
            refused += int(((info.gate >= 0) & ~info.gate_passed).sum())
    assert executed == set(map(int, Op)) and refused > 0  # the walk saw what it is about


@pytest.mark.parametrize(("family", "preset"), some(HOSTS, *QUICKEST))
def test_random_legal_play_keeps_every_law(make_env, play, transitions, family, preset):
    walk(make_env(host=Host(family=family, preset=preset), **KIND), play, transitions, episodes=2)


@pytest.mark.parametrize(("family", "budget"), some([*SCARCE], SCARCE[1]))
def test_random_legal_play_under_a_scarce_budget_keeps_every_law(
    make_env, play, transitions, family, budget
):
    """One seed at a time in all three slots, parameters for some blueprints only, and a price for what is kept."""
    lifecycle = QUICK.model_copy(update={"max_seeds": 1, "param_budget": budget})
    env = make_env(
        host=Host(family=family, preset="baseline"), **KIND | {"lifecycle": lifecycle, "price": 8.0}
    )
    fits = env.budget.reserve <= env.budget.limit
    assert fits.any() and not fits.all()
    walk(env, play, transitions, episodes=4)


def test_every_mode_pays_in_its_own_run_what_it_says_of_recorded_steps(make_env, play, transitions):
    """Any mode can be computed for the steps of another; no credit, penalty or bonus goes around the recorded terms."""
    recorded = []
    for mode in rewards.MODES:
        transitions.clear()
        env = make_env(envs=4, family="mlp", steps=8, reward=Reward(mode=mode))
        steps = play(env)
        recorded = recorded or list(transitions)
        for (_, _, (_, reward, *_, info)), step in zip(steps, recorded, strict=True):
            assert torch.equal(reward, rewards.total(rewards.components(mode, *step))), mode
            assert (reward - sum(info.components.values())).abs().max() < 1e-9, mode
            assert reward.dtype == torch.float64
