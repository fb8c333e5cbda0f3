"""Policies without learning behind one interface: never grow, random, a heuristic, a fixed schedule."""

from collections.abc import Callable

import torch
from torch import Tensor

from simic.agent.spec import ActionSpec
from simic.envs.actions import random_legal, to_action
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Episode, Situation
from simic.errors import SimicError
from simic.growth.life.lifecycle import LIVE_STAGES, gate_passes, in_stages
from simic.growth.life.vocabulary import (
    ALPHA_SPEED_STEPS,
    ALPHA_TARGETS,
    STYLE_NAMES,
    TEMPO_STEPS,
    Action,
    Curve,
    Op,
    Slots,
    Stage,
)
from simic.growth.networks.blueprints import blueprints_of
from simic.params import Lifecycle


class Static:
    """Never grows: the do-nothing floor."""

    def start(self, episode: Episode) -> None:
        """Nothing to forget."""

    def act(self, situation: Situation) -> Action:
        """WAIT."""
        return Action.wait(situation.slots.stage.shape[0], situation.slots.stage.device)


class RandomLegal:
    """Uniform over legal ops, then over what the op leaves open."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec

    def start(self, episode: Episode) -> None:
        """Remember what keys the draws."""
        self.episode = episode

    def act(self, situation: Situation) -> Action:
        """A legal action, a hash of (rng_seed, iteration, env, step)."""
        noise = self.episode.noise(situation.step, len(self.spec.heads))
        return to_action(random_legal(self.spec, situation.observation, noise))


# --- heuristic -------------------------------------------------------------------------------------------

PLATEAU_EPOCHS = 3
MIN_EPOCHS_BEFORE_GERMINATE = 5
EMBARGO_EPOCHS = 5  # after its own prunes, on top of the slot's embargo
PRUNE_AFTER_EPOCHS = 5  # in the same stage
PRUNE_BELOW_PCT = -2.0  # accuracy lost in that stage
MIN_FOSSILIZE_PCT = 0.5
RANSOM_CONTRIBUTION_PCT = 0.1  # indispensable, yet the host is worse than at germination
PENALTY_PER_PRUNE = 2.0
PENALTY_DECAY = 0.5
PENALTY_FORGOTTEN = 0.1
PENALTY_SKIPS = 3.0
# Which blueprints are tried, in turn: of a user's family all of its own. The orders are
# ours; but for the convolutional one, cheapest last.
ROTATION = {
    "cnn": ("conv_light", "conv_heavy", "bottleneck", "attention", "norm", "depthwise"),
    "mlp": ("mlp_small", "mlp", "lora", "norm"),
    "transformer": ("attention", "mlp_small", "lora", "norm"),
}
STYLE, TEMPO = STYLE_NAMES.index("sigmoid_add"), TEMPO_STEPS.index(5)
FULL_ALPHA, AT_ONCE = ALPHA_TARGETS.index(1.0), ALPHA_SPEED_STEPS.index(0)


def rotation_of(family: str) -> tuple[int, ...]:
    """Action indices of the family's rotation; SimicError when a name in it is no blueprint of the family."""
    kinds = blueprints_of(family)
    names = [item.name for item in kinds]
    rotation = ROTATION.get(kinds[0].family, tuple(names))
    unknown = [name for name in rotation if name not in names]
    if unknown:
        raise SimicError(f"heuristic rotation of family {family!r} names {unknown[0]!r}: known are {', '.join(names)}")
    return tuple(names.index(name) for name in rotation)


class Heuristic:
    """One seed at a time, blueprints in rotation, judged by contribution; pruned blueprints are avoided for a while.

    The contribution is a measured ablation, and a seed without one is never fossilized; blueprints that do not belong
    to the family are refused; all hosts are decided at once.
    """

    def __init__(self, family: str) -> None:
        self.rotation = torch.tensor(rotation_of(family))
        self.asks = {
            "op": (Op.GERMINATE, Op.PRUNE, Op.FOSSILIZE),
            "style": (STYLE,),
            "tempo": (TEMPO,),
            "alpha_target": (FULL_ALPHA,),
            "alpha_speed": (AT_ONCE,),
            "alpha_curve": (Curve.LINEAR,),
        }

    def start(self, episode: Episode) -> None:
        """No penalties, no embargo, the rotation at its first blueprint."""
        envs, device = len(episode.env_ids), episode.env_ids.device
        self.rotation = self.rotation.to(device)
        self.penalty = torch.zeros(envs, len(self.rotation), device=device)
        self.turn = torch.zeros(envs, dtype=torch.int64, device=device)
        self.embargo = torch.zeros(envs, dtype=torch.int64, device=device)

    def act(self, situation: Situation) -> Action:
        """Manage the first unfinished seed, or look for a reason to germinate one."""
        slots, legal = situation.slots, situation.observation.masks
        unfinished = in_stages(slots.stage, LIVE_STAGES - {Stage.FOSSILIZED})
        managed = unfinished.int().argmax(dim=1)
        busy = unfinished.any(dim=1)
        op = torch.where(busy, _manage(slots, managed), self._germinate_or_wait(situation))
        choice, affordable = self._next_blueprint(legal["blueprint"])
        slot = torch.where(op == Op.GERMINATE, affordable, managed)
        rows = torch.arange(len(op), device=op.device)
        op = torch.where(legal["slot"][rows, op, slot], op, int(Op.WAIT))
        self._remember(op, choice, slots.blueprint[rows, slot])
        zero = torch.zeros_like(op)
        blueprint = self.rotation[choice]
        return Action(op, slot, blueprint, zero + STYLE, zero + TEMPO, zero + FULL_ALPHA, zero + AT_ONCE, zero)

    def _germinate_or_wait(self, situation: Situation) -> Tensor:
        tracker = situation.tracker
        reason = tracker.stabilised & (tracker.plateau >= PLATEAU_EPOCHS) & (self.embargo == 0)
        reason &= situation.step >= MIN_EPOCHS_BEFORE_GERMINATE
        return torch.where(reason, int(Op.GERMINATE), int(Op.WAIT))

    def _next_blueprint(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Index into the rotation ``[E]`` and the first slot ``[E]`` that takes it.

        The next in turn whose penalty does not skip it; the least penalised when all are skipped. What no slot can
        afford is out of the question.
        """
        count = len(self.rotation)
        affordable = mask[:, :, self.rotation]  # [E, K, R]
        distance = (torch.arange(count, device=mask.device) - self.turn[:, None]) % count
        skipped = self.penalty >= PENALTY_SKIPS
        cost = distance + skipped * count * (1.0 + self.penalty) + ~affordable.any(dim=1) * 1e9
        choice = cost.argmin(dim=1)
        rows = torch.arange(len(choice), device=mask.device)
        return choice, affordable[rows, :, choice].int().argmax(dim=1)

    def _remember(self, op: Tensor, choice: Tensor, pruned: Tensor) -> None:
        germinated, prunes = op == Op.GERMINATE, op == Op.PRUNE
        self.turn = torch.where(germinated, (choice + 1) % len(self.rotation), self.turn)
        self.embargo = torch.where(prunes, EMBARGO_EPOCHS, (self.embargo - 1).clamp(min=0))
        self.penalty = self.penalty * PENALTY_DECAY
        self.penalty = torch.where(self.penalty < PENALTY_FORGOTTEN, 0.0, self.penalty)
        guilty = prunes[:, None] & (self.rotation == pruned[:, None])
        self.penalty = self.penalty + PENALTY_PER_PRUNE * guilty


def _manage(slots: Slots, managed: Tensor) -> Tensor:
    """What to do with the seed in slot ``managed [E]``."""

    def of(values: Tensor) -> Tensor:
        return values.gather(1, managed[:, None])[:, 0]

    stage = of(slots.stage)
    gained = of(slots.accuracy) - of(slots.stage_accuracy)
    failing = (of(slots.dwell) >= PRUNE_AFTER_EPOCHS) & (gained < PRUNE_BELOW_PCT)
    advance = torch.full_like(stage, int(Op.ADVANCE))
    training = torch.where(failing, int(Op.PRUNE), advance)
    blended = of(slots.alpha) >= 1.0
    blending = torch.where(failing, int(Op.PRUNE), torch.where(blended, advance, int(Op.WAIT)))
    # Comparisons with NaN are False: an unmeasured contribution waits.
    contribution, progress = of(slots.contribution), of(slots.accuracy) - of(slots.germination_accuracy)
    ransom = (contribution > RANSOM_CONTRIBUTION_PCT) & (progress < 0)
    worth_it = (contribution > MIN_FOSSILIZE_PCT) & ~ransom
    holding = torch.where(worth_it, int(Op.FOSSILIZE), int(Op.PRUNE))
    holding = torch.where(contribution.isnan(), int(Op.WAIT), holding)
    decision = torch.where(stage == Stage.GERMINATED, advance, int(Op.WAIT))
    decision = torch.where(stage == Stage.TRAINING, training, decision)
    decision = torch.where(stage == Stage.BLENDING, blending, decision)
    return torch.where(stage == Stage.HOLDING, holding, decision)


# --- fixed schedule --------------------------------------------------------------------------------------------------

SCHEDULED_BLUEPRINT = {"cnn": "conv_light", "mlp": "mlp_small", "transformer": "attention"}
OTHERWISE = {"cnn": "bottleneck", "mlp": "lora", "transformer": "mlp_small"}  # where that one is closed
SHORT_TEMPO = TEMPO_STEPS.index(min(TEMPO_STEPS))


def scheduled_blueprint(env: GrowthEnv) -> str:
    """The family's own that ``train.actions`` leaves open, or the first that is."""
    names, left_open = [item.name for item in env.blueprints], env.left_open.get("blueprint")
    among = [name for name, yes in zip(names, left_open, strict=True) if yes] if left_open is not None else names
    family = env.blueprints[0].family
    return next((table[family] for table in (SCHEDULED_BLUEPRINT, OTHERWISE) if table.get(family) in among), among[0])


def one_blueprint(blueprint: int) -> dict[str, tuple[int, ...]]:
    """What a policy asks for that takes every seed of one blueprint through to FOSSILIZED."""
    return {
        "op": (Op.GERMINATE, Op.FOSSILIZE),
        "blueprint": (blueprint,),
        "style": (0,),
        "tempo": (SHORT_TEMPO,),
        "alpha_target": (FULL_ALPHA,),
    }


def germination_steps(slots: int, episode_steps: int) -> tuple[int, ...]:
    """One germination per slot, evenly over the first half of the episode: the rest is needed to finish them."""
    return tuple(k * (episode_steps // 2) // slots for k in range(slots))


class FixedSchedule:
    """Germinates one blueprint at given steps, lowest free slot first, and takes every seed through to FOSSILIZED;
    ``steps`` may depend on the length of the episode.

    A germination that is not possible yet stays due. Each step goes to the lowest seed whose next gate is open, else to
    a germination that is due: the growth policy of fixed-schedule papers, blind to what the measurements say.
    """

    def __init__(
        self,
        family: str,
        lifecycle: Lifecycle,
        steps: tuple[int, ...] | Callable[[int], tuple[int, ...]],
        blueprint: str | None = None,
    ) -> None:
        kinds = blueprints_of(family)
        names = [item.name for item in kinds]
        name = blueprint or SCHEDULED_BLUEPRINT.get(kinds[0].family, names[0])
        if name not in names:
            raise SimicError(f"fixed schedule: blueprint {name!r} of family {family!r}; known are {', '.join(names)}")
        self.blueprint, self.lifecycle, self.asked = names.index(name), lifecycle, steps
        self.asks = one_blueprint(self.blueprint)

    def start(self, episode: Episode) -> None:
        """Set when to germinate; the slots say what has been."""
        self.steps = self.asked(episode.steps) if callable(self.asked) else self.asked

    def act(self, situation: Situation) -> Action:
        """Advance, fossilize, germinate or wait."""
        slots, masks = situation.slots, situation.observation.masks
        forward = self._ready(slots, masks["slot"])
        due = sum(step <= situation.step for step in self.steps) > slots.germinations.sum(dim=1)
        free = masks["blueprint"][:, :, self.blueprint]
        germinate = due & free.any(dim=1)
        op = torch.where(germinate, int(Op.GERMINATE), int(Op.WAIT))
        slot = torch.where(germinate, free.int().argmax(dim=1), 0)
        first = forward.int().argmax(dim=1)
        finish = slots.stage.gather(1, first[:, None])[:, 0] == Stage.HOLDING
        moving = forward.any(dim=1)
        op = torch.where(moving, torch.where(finish, int(Op.FOSSILIZE), int(Op.ADVANCE)), op)
        slot = torch.where(moving, first, slot)
        zero = torch.zeros_like(op)
        return Action(op, slot, zero + self.blueprint, zero, zero + SHORT_TEMPO, zero + FULL_ALPHA, zero, zero)

    def _ready(self, slots: Slots, legal: Tensor) -> Tensor:
        """Bool ``[E, K]``: seeds that may move on now, by mask and by gate."""
        passes = gate_passes(slots, self.lifecycle)
        following = {
            Stage.GERMINATED: Stage.TRAINING,
            Stage.TRAINING: Stage.BLENDING,
            Stage.BLENDING: Stage.HOLDING,
            Stage.HOLDING: Stage.FOSSILIZED,
        }
        ready = torch.zeros_like(slots.stage, dtype=torch.bool)
        for stage, target in following.items():
            op = Op.FOSSILIZE if stage is Stage.HOLDING else Op.ADVANCE
            ready |= (slots.stage == stage) & passes[target] & legal[:, op]
        return ready
