"""A policy whose weights say what it does: it germinates in the first step and in no other, keeps what it has as soon
as it may, and never prunes. Which slot and blueprint come first, and what it expects, is drawn.
"""

import torch

from simic.agent.normalization import Normalizers
from simic.agent.policy import ActorCritic
from simic.agent.spec import ActionSpec, ObservationSpec
from simic.envs.observations import columns
from simic.growth.life.vocabulary import Op
from simic.training.learned import LearnedActor
from tests.standard import Policy

LIKED = {
    Op.WAIT: 0.0,
    Op.GERMINATE: -6.0,
    Op.FOSSILIZE: 6.0,
    Op.PRUNE: -6.0,
    Op.SET_ALPHA_TARGET: -9.0,
    Op.ADVANCE: -9.0,
}
FIRST_STEP = "missing_lag_1"  # one validation so far
READER = 0  # the unit of the encoder, and of the op's head, that sees it


def hand_made(action_spec: ActionSpec, observation_spec: ObservationSpec) -> LearnedActor:
    policy = (
        ActorCritic(action_spec, observation_spec, Policy(core="none"), 5)
        .eval()
        .requires_grad_(False)
    )
    place = [
        name for name, _ in columns(observation_spec.categories, observation_spec.cardinality)
    ].index(FIRST_STEP)
    encoder, op = policy.actor.encoder, policy.heads[0]
    encoder.weight[READER] = encoder.bias[READER] = 0.0
    encoder.weight[READER, place] = 9.0
    hidden, out = op.get_submodule("hidden"), op.get_submodule("out")
    for layer in (hidden, out):
        layer.weight.zero_()
        layer.bias.zero_()
    hidden.weight[READER, READER] = 9.0
    out.weight[Op.GERMINATE, READER] = 12.0
    for each, bias in LIKED.items():
        out.bias[each] = bias
    return LearnedActor(policy, Normalizers(), greedy=True)


def ops(turns, host: int = 0) -> list[tuple[int, str]]:
    """Return step and op of all that was done for a host but to wait."""
    done = [(turn.situation.step, Op(int(turn.action.op[host])).name) for turn in turns]
    return [each for each in done if each[1] != "WAIT"]


def shown(turns) -> torch.Tensor:
    """All that a policy saw ``[T, H, D]``."""
    return torch.stack([turn.situation.observation.features for turn in turns])
