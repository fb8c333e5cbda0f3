"""The patient rule: try a seed, wait until its contribution is known, keep it or try elsewhere."""

from collections.abc import Sequence

import torch
from torch import Tensor

from simic.envs.play import Episode, Situation
from simic.growth.life.lifecycle import LIVE_STAGES, gate_passes, in_stages
from simic.growth.life.vocabulary import ALPHA_TARGETS, TEMPO_STEPS, Action, Op, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Lifecycle

PATIENCE_EPOCHS = 2  # in HOLDING before a seed is judged: its host has to learn to use it
KEEP_ABOVE_PCT = 5.0  # contribution in points, while there is time for another seed
STANDARD_ERRORS = 2.0  # of the contribution: what chance explains is no contribution
# Tried in this order, each in every slot before the next; of a user's family all of its own.
TRIED = {
    "cnn": ("conv_heavy", "conv_light", "bottleneck", "depthwise", "attention"),
    "mlp": ("mlp", "mlp_small", "lora"),
    "transformer": ("attention", "mlp", "lora"),
}
TEMPO = TEMPO_STEPS.index(min(TEMPO_STEPS))
FULL_ALPHA = ALPHA_TARGETS.index(1.0)
# How every hand-made policy germinates.
PLAIN_SEED = {"style": (0,), "tempo": (TEMPO,), "alpha_target": (FULL_ALPHA,)}


def plain_action(op: Tensor, slot: Tensor, blueprint: Tensor) -> Action:
    """Make actions ``[E]`` that choose no more than these; seeds are those of ``PLAIN_SEED``."""
    zero = torch.zeros_like(op)
    return Action(op, slot, blueprint, zero, zero + TEMPO, zero + FULL_ALPHA, zero, zero)


def tries(family: str, slots: int) -> list[tuple[int, int]]:
    """List the slot and blueprint's index of every try, in order: the first slot first."""
    # Of a user's family no order is known: all its blueprints, as they are registered.
    kinds = blueprints_of(family)
    names = [item.name for item in kinds]
    chosen = TRIED.get(kinds[0].family, tuple(names))
    return [(slot, names.index(name)) for name in chosen for slot in range(slots)]


class Patient:
    """One seed at a time: germinated in the next slot and blueprint of ``order``, kept if it contributes more than a
    threshold and than chance explains, else pruned while another one can still be finished.

    What holds at the last step and helps at all is kept. No seed is germinated that cannot be finished within the
    episode. All hosts are decided at once.
    """

    def __init__(self, lifecycle: Lifecycle, order: Sequence[tuple[int, int]]) -> None:
        self.lifecycle = lifecycle
        self.order = torch.tensor(order)  # [tries, 2]: slot, blueprint
        self.asks = {
            "op": (Op.GERMINATE, Op.PRUNE, Op.FOSSILIZE),
            **PLAIN_SEED,
            "alpha_speed": (0,),
            "alpha_curve": (0,),
        }
        self.to_finish = steps_to_finish(lifecycle)
        self.to_clear = steps_to_clear(lifecycle)

    def start(self, episode: Episode) -> None:
        """Forget what was tried."""
        # What can still be finished depends on the length of this episode.
        self.steps = episode.steps
        self.order = self.order.to(episode.env_ids.device)
        shape = (len(episode.env_ids), len(self.order))
        self.tried = torch.zeros(shape, dtype=torch.bool, device=self.order.device)

    def act(self, situation: Situation) -> Action:
        """Look after the unfinished seed, or germinate the next."""
        # At most one seed is unfinished: the next is germinated only when it is kept or gone.
        slots = situation.slots
        masks = situation.observation.masks
        left = self.steps - situation.step
        unfinished = in_stages(slots.stage, LIVE_STAGES - {Stage.FOSSILIZED})
        busy = unfinished.any(dim=1)
        managed = unfinished.int().argmax(dim=1)

        # The next try that is possible, where no seed is unfinished.
        tries_slot, tries_blueprint = self.order.T
        possible = ~self.tried & masks["blueprint"][:, tries_slot, tries_blueprint]
        germinate = ~busy & possible.any(dim=1) & (left > self.to_finish)
        choice = possible.int().argmax(dim=1)
        slot = torch.where(busy, managed, tries_slot[choice])

        # Germinate it, or look after the unfinished seed; wait where that is not legal.
        rows = torch.arange(len(busy), device=busy.device)
        op = torch.where(germinate, int(Op.GERMINATE), int(Op.WAIT))
        op = torch.where(busy, self._manage(slots, managed, left), op)
        op = torch.where(masks["slot"][rows, op, slot], op, int(Op.WAIT))
        self.tried[rows, choice] |= germinate
        return plain_action(op, slot, tries_blueprint[choice])

    def _manage(self, slots: Slots, managed: Tensor, left: int) -> Tensor:
        """Choose the op for the seed in slot ``managed [E]``; comparisons with NaN (not measured) fail."""

        def of(values: Tensor) -> Tensor:
            return values.gather(1, managed[:, None])[:, 0]

        contribution = of(slots.contribution)
        holding = of(slots.stage) == Stage.HOLDING
        # Judged after some patience, by what chance does not explain.
        beyond = contribution > (STANDARD_ERRORS * of(slots.contribution_se)).clamp(
            min=KEEP_ABOVE_PCT
        )
        judged = holding & contribution.isfinite() & (of(slots.dwell) >= PATIENCE_EPOCHS)
        # Older than any seed that is not waiting before a gate that will not open.
        late = ~holding & (of(slots.age) > self.to_finish + PATIENCE_EPOCHS)
        another = (left > self.to_clear + self.to_finish) & ~self.tried.all(dim=1)
        # Later lines win: wait, advance, prune, keep.
        may_advance = self._may_advance(slots, managed)
        op = torch.where(may_advance, int(Op.ADVANCE), int(Op.WAIT))
        op = torch.where((late | (judged & ~beyond)) & another, int(Op.PRUNE), op)
        keep = (judged & beyond) | (holding & (contribution > 0) & (left == 1))
        return torch.where(keep, int(Op.FOSSILIZE), op)

    def _may_advance(self, slots: Slots, managed: Tensor) -> Tensor:
        """Tell whether the gate before the next stage is open, bool ``[E]``; HOLDING seeds are judged instead."""
        # The same gates that the environment asks, so that no step is lost before a closed one.
        passes = gate_passes(slots, self.lifecycle)
        following = {
            Stage.GERMINATED: Stage.TRAINING,
            Stage.TRAINING: Stage.BLENDING,
            Stage.BLENDING: Stage.HOLDING,
        }
        ready = [(slots.stage == stage) & passes[target] for stage, target in following.items()]
        return torch.stack(ready).any(dim=0).gather(1, managed[:, None])[:, 0]


def steps_to_finish(lifecycle: Lifecycle) -> int:
    """Count the steps from germination to FOSSILIZE: GERMINATED for one step, TRAINING, the ramp and its end, then
    measured once; where stages take no time, a seed is measured in the epoch in which it germinated.
    """
    strict = lifecycle.gates == "strict"
    blending = lifecycle.blending_dwell if strict else 0
    if lifecycle.auto_advance and lifecycle.training_dwell == TEMPO_STEPS[TEMPO] == 0:
        # Strict gates open after an epoch in TRAINING was measured.
        return 2 + blending if strict else 1
    # One ADVANCE leads to BLENDING, the next step's to HOLDING.
    by_hand = 0 if lifecycle.auto_advance else 1
    return 2 + max(1, lifecycle.training_dwell) + max(TEMPO_STEPS[TEMPO], blending, by_hand)


def steps_to_clear(lifecycle: Lifecycle) -> int:
    """Count the steps from a prune to the next germination: at once in another slot, or when this one is free again."""
    if not lifecycle.sequential_development:
        return 1
    return 2 + max(1, lifecycle.embargo_steps) + max(1, lifecycle.reset_steps)
