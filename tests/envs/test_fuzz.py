"""Random legal play in every host family and preset: laws of every step, with every reward mode on the same steps."""

import pytest
import torch

from simic.envs import rewards
from simic.envs.observations import columns
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
    before, after = transition.before.stage, transition.after.stage
    sampled = torch.where(info.valid, actions[:, 0], int(Op.WAIT))
    was_refused = (info.gate >= 0) & ~info.gate_passed
    assert torch.equal(info.effective_op, torch.where(was_refused, int(Op.WAIT), sampled))
    allowed = torch.eye(len(Stage), dtype=torch.bool)
    for stage, following in TRANSITIONS.items():
        allowed[int(stage), [int(to) for to in following]] = True
    assert (allowed[before, after] | info.panicked[:, None]).all()
    seed_params = transition.seed_params_after
    assert (
        torch.equal(info.params, env.host.params + seed_params.sum(dim=1))
        and (seed_params >= 0).all()
    )
    assert (info.params >= env.host.params).all() and (
        info.committed_params >= env.host.params
    ).all()
    assert (seed_params.sum(dim=1) <= env.train.lifecycle.param_budget * env.host.params).all()
    assert (
        in_stages(after, LIVE_STAGES).sum(dim=1)
        <= (env.train.lifecycle.max_seeds or env.host.slots)
    ).all()
    table = [row for _, row in columns(env.host.slots, len(env.blueprints))]
    low, high = torch.tensor([row.low for row in table]), torch.tensor([row.high for row in table])
    assert ((observation.features >= low) & (observation.features <= high)).all()
    assert (observation.categories >= -1).all() and (
        observation.categories < len(env.blueprints)
    ).all()
    assert observation.masks["op"][:, Op.WAIT].all()
    assert (sum(info.components.values()) - reward).abs().max() < 1e-6


def check_modes(transition, setting, info) -> None:
    """Finite, the sum of its components, of order 10 at most, in every mode."""
    lives = info.valid & ~info.panicked
    for mode, names in rewards.MODES.items():
        parts = rewards.components(mode, transition, setting)
        assert tuple(parts) == names
        paid = rewards.total(parts)
        assert (
            paid.isfinite().all()
            and (paid - torch.stack(list(parts.values())).sum(dim=0)).abs().max() < 1e-6
        )
        assert (paid.abs() <= LARGEST)[lives].all(), (
            mode,
            {name: float(v.abs().max()) for name, v in parts.items()},
        )
        gain = progress(transition.before).gather(1, transition.slot[:, None])[:, 0]
        if "fossilize" in parts:
            assert (parts["fossilize"][(gain <= 0) & lives] <= 0).all()  # ransomware
        for name in COSTS & parts.keys():
            assert (parts[name] <= 0).all(), name


def walk(env, play, transitions, episodes: int) -> None:
    """Plays and checks. Every other episode hurries: otherwise hardly a seed lives to be fossilized."""
    executed, refused, price = set(), 0, env.train.price
    for iteration in range(episodes):
        transitions.clear()
        steps = play(env, iteration, prefer=() if iteration % 2 else (Op.ADVANCE, Op.FOSSILIZE))
        recorded = list(transitions)
        for (transition, setting), (_, actions, result) in zip(recorded, steps, strict=True):
            info = result[4]
            check_step(env, transition, actions, result)
            check_modes(transition, setting, info)
            # What is reported as the score is what the mode of that name pays for.
            kept = info.committed_params - env.host.params
            assert torch.equal(
                info.score, info.committed_accuracy - price * (kept / env.host.params)
            )
            assert torch.equal(info.score, info.committed_accuracy) == (
                price == 0 or not kept.any()
            )
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
    assert (env.budget.reserve > env.budget.limit).any() and (
        env.budget.reserve <= env.budget.limit
    ).any()
    walk(env, play, transitions, episodes=4)


def test_every_mode_pays_in_its_own_run_what_it_says_of_recorded_steps(make_env, play, transitions):
    """Any mode can be computed for the steps of another; no credit, penalty or bonus goes around the recorded terms."""
    recorded = []
    for mode in rewards.MODES:
        transitions.clear()
        env = make_env(envs=4, family="mlp", steps=8, reward=Reward(mode=mode))
        played = play(env)
        recorded = recorded or list(transitions)
        for (_, _, (_, reward, *_, info)), step in zip(played, recorded, strict=True):
            assert torch.equal(reward, rewards.total(rewards.components(mode, *step))), mode
            assert (reward - sum(info.components.values())).abs().max() < 1e-9, mode
            assert reward.dtype == torch.float64
