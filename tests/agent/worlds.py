"""Small environments and policies for the tests of the agent."""

from dataclasses import dataclass
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from simic import params, rng
from simic.agent.normalization import Normalizers, ObservationNormalizer
from simic.agent.policy import ActorCritic, Rescoring
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import Rollout, collect
from simic.agent.spec import ActionSpec, Head, Observation, ObservationSpec
from tests import standard

FEATURES = 5
SLOTS = 3
BLUEPRINTS = 4

# Op 0 uses nothing, 1 everything, 2 the slot alone, 3 the style without a slot. The last features are about blueprints.
HIERARCHY = ActionSpec(
    (
        Head("op", 4),
        Head("slot", SLOTS, "op"),
        Head("blueprint", BLUEPRINTS, "slot", described=1),
        Head("style", 2),
    ),
    (
        (True, False, False, False),
        (True,) * 4,
        (True, True, False, False),
        (True, False, False, True),
    ),
)
SEEN = ObservationSpec(FEATURES, categories=SLOTS, cardinality=BLUEPRINTS)
SMALL = standard.Policy(encoder_units=12, core_units=10, window=4, head_units=8, embedding_units=3)


def make_policy(
    core: str = "lstm",
    spec: ActionSpec = HIERARCHY,
    seen: ObservationSpec = SEEN,
    sizes: params.Policy = SMALL,
) -> ActorCritic:
    """With weights far from the nearly uniform start, so that every term of a law is visible."""
    policy = ActorCritic(spec, seen, sizes.model_copy(update={"core": core}), rng_seed=5)
    with torch.no_grad():
        for index, parameter in enumerate(policy.parameters()):
            parameter += 0.3 * rng.normal(
                rng.key(9, rng.Purpose.BASELINE, index), tuple(parameter.shape)
            )
    return policy


def random_masks(seed: int, rows: int) -> dict[str, Tensor]:
    return masks_of(rng.key(seed, rng.Purpose.BASELINE, torch.arange(rows)))


def masks_of(stream: Tensor) -> dict[str, Tensor]:
    """Legal masks of HIERARCHY by hash: WAIT always; an op only if it has a slot, GERMINATE only with a blueprint."""
    draws = rng.uniform(stream, (SLOTS * BLUEPRINTS + 4 * SLOTS + 1,))
    blueprint = draws[..., : SLOTS * BLUEPRINTS].unflatten(-1, (SLOTS, BLUEPRINTS)) < 0.5
    slot = draws[..., SLOTS * BLUEPRINTS : -1].unflatten(-1, (4, SLOTS)) < 0.6
    # Op 0 and op 3 have no slot: their mask is empty and nothing may come of it
    slot[..., 0, :] = False
    slot[..., 3, :] = False
    slot[..., 1, :] &= blueprint.any(dim=-1)
    op = slot.any(dim=-1)
    op[..., 0] = True
    op[..., 3] = draws[..., -1] < 0.5
    return {"op": op, "slot": slot, "blueprint": blueprint}


@dataclass(frozen=True)
class WorldInfo:
    final: Observation | None


class TensorWorld:
    """Features, masks and rewards are hashes of (env, step since reset); the reward also reads the action.

    ``ends[e]`` maps a step to (terminated, truncated). ``same_step`` switches autoreset on; the observation after an
    end is then another episode's and ``info.final`` tells where the old one ended.
    """

    def __init__(
        self,
        env_ids: list[int],
        ends: dict[int, dict[int, tuple[bool, bool]]],
        same_step: bool = False,
    ):
        self.env_ids = torch.tensor(env_ids)
        self.num_envs = len(env_ids)
        self.ends = ends
        self.same_step = same_step
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP if same_step else AutoresetMode.DISABLED
        }
        self.time = 0

    def observation(self, shift: int = 0) -> Observation:
        stream = rng.key(3, rng.Purpose.BASELINE, self.env_ids, self.time + shift)
        categories = rng.bits(stream, (SLOTS,)).remainder(BLUEPRINTS + 1) - 1
        return Observation(rng.normal(stream, (FEATURES,)), categories, masks_of(stream))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, None]:
        self.time = 1000 * (options or {}).get("iteration", 0)
        self.start = self.time
        return self.observation(), None

    def step(self, actions: Tensor, /) -> tuple[Observation, Tensor, Tensor, Tensor, WorldInfo]:
        flags = [
            self.ends.get(int(e), {}).get(self.time - self.start, (False, False))
            for e in self.env_ids
        ]
        terminated, truncated = torch.tensor(flags).unbind(dim=1)
        reward = (
            rng.normal(rng.key(4, rng.Purpose.BASELINE, self.env_ids, self.time))
            + 0.5 * actions[:, 0]
        )
        self.time += 1
        final = (
            self.observation(shift=500)
            if self.same_step and (truncated & ~terminated).any()
            else None
        )
        return self.observation(), reward, terminated, truncated, WorldInfo(final)


def episodes(envs: int, steps: int, early: int | None = 2) -> TensorWorld:
    """All end at ``steps`` (truncated), except env ``early`` which terminates after half of them."""
    ends = {e: {steps - 1: (False, True)} for e in range(envs)}
    if early is not None:
        ends[early] = {steps // 2: (True, False)}
    return TensorWorld(list(range(envs)), ends)


def make_rollout(
    policy: ActorCritic, world: TensorWorld, steps: int, iteration: int = 0
) -> Rollout:
    """Collected the real way, with advantages of the raw rewards."""
    rollout, _ = collect(world, policy, Normalizers(), iteration, rng_seed=1, steps=steps)
    return with_advantages(rollout, rollout.rewards, 0.9, 0.8)


def learner(
    settings: params.PPOParams, policy: ActorCritic | None = None, total_updates: int = 5
) -> tuple[PPO, Rollout]:
    """And what it has played: 8 steps of 6 environments, of which the third ends after 5."""
    ppo = PPO(policy or make_policy(), settings, rng_seed=1, total_updates=total_updates)
    return ppo, make_rollout(ppo.policy, episodes(6, 8), 8)


def learned_scales(seen: ObservationSpec = SEEN) -> Normalizers:
    """Scales that have seen something, so that a raw observation is another one than a normalised one."""
    normalizer = ObservationNormalizer(seen)
    rows = 3 + 2 * torch.randn(50, seen.features, generator=torch.Generator().manual_seed(1))
    normalizer.update(rows, torch.ones(50, dtype=torch.bool))
    return Normalizers(normalizer)


def rescore(policy: ActorCritic, rollout: Rollout) -> Rescoring:
    """As an update of this policy does it."""
    return PPO(policy, standard.PPOParams(), 1, total_updates=1).rescore(rollout)


def weights(ppo: PPO) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in ppo.policy.parameters()])
