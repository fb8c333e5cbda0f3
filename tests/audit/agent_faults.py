"""Faults of the learner, each of one line: planted in the code that trains, to be caught by the reference.

Each names the setting of test_certify_agent.py in which it shows.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from simic.agent import distributions, policy, ppo, rollout
from simic.agent.core import RecurrentState, Trunk
from simic.agent.distributions import Choice
from simic.agent.normalization import Normalizers, ObservationNormalizer, RewardNormalizer
from simic.agent.optimizer import Adam
from simic.agent.policy import ActorCritic
from simic.agent.ppo import PPO
from simic.agent.rollout import Rollout
from simic.training import trainer
from simic.training.learned import LearnedActor
from simic.training.state import TrainState

Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[str, Fault]] = {}


def fault(setting: str) -> Callable[[Fault], Fault]:
    def noted(plant: Fault) -> Fault:
        FAULTS[plant.__name__] = setting, plant
        return plant

    return noted


def around(patch: pytest.MonkeyPatch, owner: object, name: str, changed: Callable) -> None:
    """``changed(original, *arguments)`` in place of what is there."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **named: changed(original, *arguments, **named))


# Advantages


@fault("free")
def gamma_squared(patch):
    around(patch, trainer, "with_advantages", lambda f, r, rewards, gamma, decay: f(r, rewards, gamma**2, decay))


@fault("free")
def lambda_is_one(patch):
    around(patch, trainer, "with_advantages", lambda f, r, rewards, gamma, decay: f(r, rewards, gamma, 1.0))


@fault("free")
def bootstrap_at_a_terminal_state(patch):
    def changed(f, rewards, values, after, terminated, truncated, *rest):
        return f(rewards, values, after, torch.zeros_like(terminated), terminated | truncated, *rest)

    around(patch, ppo, "gae", changed)


@fault("free")
def no_bootstrap_at_a_truncated_state(patch):
    def changed(f, rewards, values, after, terminated, truncated, *rest):
        return f(rewards, values, after, terminated | truncated, truncated, *rest)

    around(patch, ppo, "gae", changed)


@fault("free")
def returns_without_the_value(patch):
    around(patch, ppo, "gae", lambda f, *rest: (f(*rest)[0],) * 2)


@fault("free")
def last_value_from_an_empty_memory(patch):
    around(patch, ActorCritic, "value", lambda f, self, seen, state: f(self, seen, self.initial_state(len(state.h))))


# Scales


@fault("free")
def scales_move_while_acting(patch):
    def changed(f, self, observation):
        self.update(observation.features, torch.ones(len(observation.features), dtype=torch.bool))
        return f(self, observation)

    around(patch, ObservationNormalizer, "see", changed)


@fault("free")
def scales_never_move(patch):
    patch.setattr(ObservationNormalizer, "update", lambda *_: None)


@fault("free")
def scales_take_in_steps_that_never_were(patch):
    around(patch, ObservationNormalizer, "update", lambda f, self, x, valid, r: f(self, x, torch.ones_like(valid), r))


@fault("free")
def rewards_not_scaled(patch):
    patch.setattr(RewardNormalizer, "normalize", lambda self, rewards: rewards)


@fault("free")
def rewards_scaled_before_the_scale_moves(patch):
    def changed(f, self, features, rewards, *rest):
        scaled = self.reward.normalize(rewards)
        f(self, features, rewards, *rest)
        return scaled

    around(patch, Normalizers, "update", changed)


@fault("free")
def running_return_not_discounted(patch):
    def changed(f, self, envs, gamma, *rest):
        f(self, envs, 1.0, *rest)

    around(patch, RewardNormalizer, "__init__", changed)


# Network and distribution


@fault("free")
def memory_never_emptied(patch):
    """What is left of an episode before, here a half in each cell, stays."""
    patch.setattr(RecurrentState, "zeroed", lambda self, rows: self)

    def changed(f, self, envs):
        return RecurrentState(*(part + 0.5 for part in f(self, envs)))

    around(patch, ActorCritic, "initial_state", changed)


@fault("free")
def no_norm_behind_the_memory(patch):
    def changed(f, self, *rest):
        f(self, *rest)
        self.core_norm.eps = 0.1

    around(patch, Trunk, "__init__", changed)


@fault("free")
def mask_of_the_slot_ignored(patch):
    around(
        patch, policy, "legal", lambda f, spec, masks, head, chosen: None if head == 1 else f(spec, masks, head, chosen)
    )


@fault("free")
def mask_of_the_style_ignored_in_replay(patch):
    def changed(f, self, z, masks, *, noise=None, actions=None, valid=None):
        kept = masks if noise is not None else {name: mask for name, mask in masks.items() if name != "style"}
        return f(self, z, kept, noise=noise, actions=actions, valid=valid)

    around(patch, ActorCritic, "choose", changed)


@fault("free")
def log_probability_of_one_head_missing(patch):
    around(patch, Choice, "log_prob", lambda f, self: f(self) * (self.log_probs.shape[-1] != 4))


@fault("free")
def one_head_thought_irrelevant(patch):
    def changed(f, self, *rest, **named):
        f(self, *rest, **named)
        self.relevance = self.relevance.clone()
        self.relevance[1, 3] = False

    around(patch, ActorCritic, "__init__", changed)


@fault("free")
def heads_do_not_know_the_op(patch):
    def changed(f, self, group, weight):
        told = f(self, group, weight)
        return told if told is None else 0.0 * told

    around(patch, ActorCritic, "_told", changed)


@fault("free")
def heads_read_the_memory_alone(patch):
    around(patch, Trunk, "_read", lambda f, self, encoded, hidden: f(self, 0.0 * encoded, hidden))


@fault("stopped")
def the_critic_pulls_at_the_actor(patch):
    def changed(f, self, z, observation):
        read = f(self, z, observation)
        return torch.cat((z, read[..., z.shape[-1] :]), dim=-1)

    around(patch, ActorCritic, "_of_value", changed)


@fault("stopped")
def the_critic_is_told_nothing(patch):
    around(patch, ActorCritic, "_of_value", lambda f, self, z, seen: f(self, z, replace(seen, told=None)))


@fault("free")
def the_first_policy_leans_to_nothing(patch):
    def changed(f, self, *rest, **named):
        f(self, *rest, **named)
        with torch.no_grad():
            self.get_parameter("heads.0.out.bias").zero_()

    around(patch, ActorCritic, "__init__", changed)


@fault("free")
def noise_without_the_step(patch):
    around(
        patch,
        rollout,
        "_noise",
        lambda f, ids, seed, iteration, steps, heads: f(ids, seed, iteration, 1, heads).expand(steps, -1, -1),
    )


@fault("free")
def sampled_from_the_upper_end(patch):
    around(patch, policy, "sample", lambda f, log_probs, noise: f(log_probs, 0.999 - noise * 0.99))


@fault("free")
def validation_is_sampled(patch):
    def changed(f, self, weights, normalizers, greedy):
        f(self, weights, normalizers, False)

    around(patch, LearnedActor, "__init__", changed)


@fault("free")
def decisions_begin_far_from_uniform(patch):
    patch.setattr(policy, "POLICY_GAIN", 1.0)


@fault("free")
def entropy_not_normalized(patch):
    patch.setattr(
        Choice, "normalized_entropy", lambda self: distributions.entropy(self.log_probs) * (self.options() > 1)
    )


# Update


@fault("free")
def one_ratio_per_head(patch):
    around(
        patch,
        ppo,
        "policy_objective",
        lambda f, logs, relevant, a, s, w: f(logs, relevant, a, s.model_copy(update={"ratio": "per_head"}), w),
    )


@fault("stopped")
def one_ratio_of_all_heads(patch):
    around(
        patch,
        ppo,
        "policy_objective",
        lambda f, logs, relevant, a, s, w: f(logs, relevant, a, s.model_copy(update={"ratio": "joint"}), None),
    )


@fault("stopped")
def heads_over_all_rows(patch):
    patch.setattr(ppo, "head_weights", lambda used, settings: None)


@fault("free")
def clip_range_times_ten(patch):
    around(patch, ppo, "surrogate", lambda f, log_ratio, a, clip: f(log_ratio, a, 10.0 * clip))


@fault("free")
def the_larger_of_both_terms(patch):
    around(patch, ppo, "surrogate", lambda f, log_ratio, a, clip: -f(log_ratio, -a, clip))


@fault("free")
def entropy_of_the_wrong_sign(patch):
    around(patch, ppo, "terms", lambda f, seen, batch, used, s, coef: f(seen, batch, used, s, -coef))


@fault("free")
def entropy_never_annealed(patch):
    patch.setattr(PPO, "entropy_coef", lambda self: self.settings.entropy_coef)


@fault("stopped")
def entropy_without_its_floor(patch):
    patch.setattr(ppo, "floor_pull", lambda entropy, floors, coefficient: torch.zeros_like(entropy))


@fault("free")
def advantages_not_normalized(patch):
    patch.setattr(ppo, "normalized", lambda a, valid, reduce: torch.where(valid, a, 0.0))


@fault("free")
def advantages_normalized_over_steps_without_a_choice(patch):
    around(patch, ppo, "normalized", lambda f, a, decided, reduce: f(a, torch.ones_like(decided), reduce))


@fault("free")
def advantages_normalized_by_environment(patch):
    def changed(f, a, valid, reduce):
        return torch.cat([f(a[:, [k]], valid[:, [k]], reduce) for k in range(a.shape[1])], dim=1)

    around(patch, ppo, "normalized", changed)


@fault("free")
def value_loss_not_halved(patch):
    around(
        patch,
        ppo,
        "terms",
        lambda f, seen, batch, used, s, c: f(seen, batch, used, s.model_copy(update={"value_coef": 1.0}), c),
    )


@fault("free")
def minibatches_always_in_order(patch):
    patch.setattr(ppo.rng, "permutation", lambda stream, n: torch.arange(n).expand(*stream.shape, n))


@fault("free")
def the_same_order_in_every_epoch(patch):
    def changed(f, self, *rest):
        first = [rows for epoch, rows in f(self, *rest) if epoch == 0]
        for epoch in range(self.settings.epochs):
            yield from ((epoch, rows) for rows in first)

    around(patch, PPO, "_minibatches", changed)


@fault("stopped")
def never_stopped_by_the_divergence(patch):
    patch.setattr(ppo, "EARLY_STOP", 1e9)


@fault("free")
def rate_never_falls(patch):
    patch.setattr(ppo, "LINEAR_END", 1.0)


@fault("stopped")
def half_a_minibatch_lost(patch):
    def changed(f, self, batch, used, pieces, *rest):
        return f(self, batch, used, pieces[:1], *rest)

    around(patch, PPO, "_gradients", changed)


@fault("free")
def gradient_not_clipped(patch):
    around(patch, PPO, "_step", lambda f, self, norm, go: f(self, norm * 0.0, go))


@fault("free")
def weights_decay(patch):
    def changed(f, self, *rest):
        f(self, *rest)
        self.param_groups[0]["weight_decay"] = 0.01

    around(patch, Adam, "__init__", changed)


@fault("free")
def updates_not_counted(patch):
    def changed(f, self, *rest, **named):
        found = f(self, *rest, **named)
        self.updates = 0
        return found

    around(patch, PPO, "_report", changed)


# Resume and record


@fault("free")
def moments_lost_at_a_resume(patch):
    patch.setattr(Adam, "load_tensors", lambda self, state: None)


@fault("free")
def scales_lost_at_a_resume(patch):
    patch.setattr(Normalizers, "load_state_dict", lambda self, state: None)


@fault("free")
def updates_lost_at_a_resume(patch):
    def changed(f, self, state):
        f(self, state)
        self.updates = 0

    around(patch, PPO, "load_state_dict", changed)


@fault("free")
def chain_without_the_link_before(patch):
    def changed(f, self):
        self.counters.chain = ""
        return f(self)

    around(patch, TrainState, "link", changed)


@fault("free")
def decisions_recorded_that_were_not_made(patch):
    def changed(f, self, t, step, *rest):
        f(self, t, replace(step, actions=step.actions.roll(1, 0)), *rest)

    around(patch, Rollout, "record_done", changed)


@fault("free")
def rewards_of_the_step_before(patch):
    def changed(f, self, t, step, reward, *rest):
        f(self, t, step, reward, *rest)
        self.rewards[t - 1], self.rewards[t] = reward.to(self.rewards), 0.0

    around(patch, Rollout, "record_done", changed)
