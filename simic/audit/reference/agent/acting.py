"""What the policy saw, thought and decided in one episode."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from simic.audit.reference import rng
from simic.audit.reference.agent.network import Network64
from simic.audit.reference.agent.scales import Tally64, seen
from simic.audit.reference.agent.transcript import Transcript
from simic.audit.reference.rng import Draw

Mode = Literal["sampled", "greedy"]


@dataclass(frozen=True)
class Acted:
    """``[T, E]`` each, of ``log_probs [T, E, factors]``, of ``features [T, E, F]``; 0 behind the end of an episode.

    ``next_values`` are of the state that each step led to. ``misplaced``: how far the decision lies from the one that
    the noise (or the likelihood) asks for, as a probability; 0 where it is that one.
    """

    features: Tensor
    log_probs: Tensor
    values: Tensor
    next_values: Tensor
    misplaced: Tensor


def act(
    transcript: Transcript,
    network: Network64,
    tally: Tally64 | None,
    rng_seed: int,
    mode: Mode,
    draw: Draw = Draw.ACTIONS,
) -> Acted:
    """One environment after the other, with one set of scales (None: features are seen as they are)."""
    flags = network.interface.flags
    scaled = transcript.features if tally is None else seen(transcript.features, tally, flags)
    steps, envs, factors = transcript.actions.shape
    valid, starts = transcript.valid(), [t == 0 for t in range(steps + 1)]
    log_probs = torch.zeros(steps, envs, factors, dtype=torch.float64)
    values = torch.zeros(steps + 1, envs, dtype=torch.float64)
    misplaced = torch.zeros(steps, envs, dtype=torch.float64)
    for env, env_id in enumerate(transcript.env_ids):
        z, values[:, env] = network.read(scaled[:, env], transcript.categories[:, env], transcript.told[:, env], starts)
        masks, actions = transcript.masks_of(env), transcript.actions[:, env].tolist()
        for t in range(int(valid[:, env].sum())):
            log_probs[t, env] = network.judge(z[t], masks[t], actions[t]).log_probs
            noise = rng.uniform(rng.stream(rng_seed, draw, transcript.iteration, env_id, t), factors)
            misplaced[t, env] = _misplaced(network, z[t], masks[t], actions[t], noise if mode == "sampled" else None)
    shown = torch.where(valid[..., None], scaled[:-1], 0.0)
    return Acted(shown, log_probs, torch.where(valid, values[:-1], 0.0), torch.where(valid, values[1:], 0.0), misplaced)


def _misplaced(network: Network64, z: Tensor, masks: dict, action: list[int], noise: list[float] | None) -> float:
    """Over the factors that the op uses; of the others the choice must be 0."""
    worst = 0.0
    for factor, matters in enumerate(network.interface.matters[action[0]]):
        if not matters:
            worst = max(worst, float(action[factor] != 0))
            continue
        offer = network.offer(z, masks, factor, action[0], action[1] if len(action) > 1 else 0)
        shares = torch.exp(offer.log_probs).tolist()
        if action[factor] not in offer.legal:
            return 1.0
        place = offer.legal.index(action[factor])
        if noise is None:
            worst = max(worst, max(shares) - shares[place])
        else:  # its piece of the cumulative distribution should hold the noise
            below = sum(shares[:place])
            worst = max(worst, below - noise[factor], noise[factor] - below - shares[place])
    return worst
