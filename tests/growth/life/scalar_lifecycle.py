"""The lifecycle a second time, one host and one slot at a time, in plain Python: the oracle of the tensor version."""

import math
from dataclasses import dataclass

from simic.params import Lifecycle

NAN = math.nan
LIVE = {"GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED"}
COOLING = {"PRUNED": "EMBARGOED", "EMBARGOED": "RESETTING", "RESETTING": "DORMANT"}
OPS = ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "FOSSILIZE", "ADVANCE")
STYLE_OPERATOR, STYLE_CURVE = (0, 1, 0, 2), (0, 0, 3, 0)  # add / multiply / add / gate; linear but for sigmoid 12
TEMPO, TARGET, SPEED = (0, 3, 5, 8), (0.5, 0.7, 1.0), (0, 3, 5, 8)
NEXT_GATE = {"GERMINATED": ("TRAINING", 1), "TRAINING": ("BLENDING", 2), "BLENDING": ("HOLDING", 3)}


@dataclass
class Seat:
    stage: str = "DORMANT"
    dwell: int = 0
    germinations: int = 0
    stage_accuracy: float = NAN

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.blueprint, self.operator, self.age, self.prune_scheduled = -1, 0, 0, False
        self.alpha = self.alpha_start = self.alpha_target = self.first_target = 0.0
        self.ramp, self.ramp_curve, self.ramp_steps, self.ramp_done = "HOLD", 0, 0, 0
        self.tempo_steps, self.first_curve = 0, 0
        self.germination_accuracy = self.accuracy = self.contribution = self.contribution_se = NAN
        self.contribution_velocity = self.gradient_ratio = NAN
        self.steps_since_measured, self.gradient_healthy = 0, False

    def enter(self, stage: str, accuracy: float) -> None:
        self.stage, self.dwell, self.stage_accuracy = stage, 0, accuracy

    def remove(self) -> None:
        self.clear()
        self.enter("PRUNED", NAN)

    def retarget(self, target: float, steps: int, curve: int) -> None:
        assert self.ramp == "HOLD"
        self.alpha_start, self.alpha_target = self.alpha, target
        self.ramp_curve, self.ramp_steps, self.ramp_done = curve, steps, 0
        if steps == 0 or target == self.alpha:
            self.alpha = target
        else:
            self.ramp = "UP" if target > self.alpha else "DOWN"

    def tick(self) -> None:
        if self.stage != "BLENDING" or self.ramp == "HOLD":
            return
        self.ramp_done += 1
        if self.ramp_done >= self.ramp_steps:
            self.alpha, self.ramp = self.alpha_target, "HOLD"
            return
        t = self.ramp_done / self.ramp_steps
        if self.ramp_curve == 0:
            f = t
        elif self.ramp_curve == 1:
            f = 0.5 - 0.5 * math.cos(math.pi * t)
        else:
            s = {2: 6.0, 3: 12.0, 4: 24.0}[self.ramp_curve]
            low, high = 1 / (1 + math.exp(s / 2)), 1 / (1 + math.exp(-s / 2))
            f = (1 / (1 + math.exp(-s * (t - 0.5))) - low) / (high - low)
        self.alpha = self.alpha_start + (self.alpha_target - self.alpha_start) * f

    def gate(self, target: str, params: Lifecycle) -> bool:
        strict = params.gates == "strict"
        if target == "BLENDING":
            # Permissive without a dwell: nothing of it has been measured, and nothing need be.
            healthy = self.gradient_healthy or (params.training_dwell == 0 and not strict)
            passes = self.dwell >= params.training_dwell and healthy
            if strict:
                passes = passes and self.accuracy - self.stage_accuracy >= params.min_improvement_pct
                passes = passes and self.gradient_ratio >= params.min_gradient_ratio
            return passes
        if target == "HOLDING":
            arrived = abs(self.alpha - self.alpha_target) <= 1e-6
            passes = self.ramp == "HOLD" and self.alpha_target >= 1 - 1e-6 and arrived
            return passes and (not strict or self.dwell >= params.blending_dwell)
        if target == "FOSSILIZED":
            passes = math.isfinite(self.contribution) and self.gradient_healthy
            return passes and (not strict or self.contribution >= params.min_contribution_pct)
        return True

    def advance_to(self, stage: str, accuracy: float) -> None:
        coming_from = self.stage
        self.enter(stage, accuracy)
        if stage == "BLENDING" and coming_from == "TRAINING":
            self.retarget(self.first_target, self.tempo_steps, self.first_curve)
        if stage == "HOLDING":
            self.alpha = self.alpha_start = self.alpha_target = 1.0
            self.ramp = "HOLD"

    def record(self, accuracy: float, contribution: float, error: float, ratio: float, healthy: bool) -> None:
        if self.stage not in LIVE:
            self.gradient_healthy = False
            return
        self.age, self.dwell, self.accuracy = self.age + 1, self.dwell + 1, accuracy
        self.steps_since_measured += 1
        if math.isfinite(contribution):
            if math.isfinite(self.contribution):
                old = 0.0 if math.isnan(self.contribution_velocity) else self.contribution_velocity
                self.contribution_velocity = 0.7 * old + 0.3 * (contribution - self.contribution)
            self.contribution, self.contribution_se, self.steps_since_measured = contribution, error, 0
        if math.isfinite(ratio):
            self.gradient_ratio = ratio if math.isnan(self.gradient_ratio) else 0.9 * self.gradient_ratio + 0.1 * ratio
        self.gradient_healthy = healthy


class ScalarHost:
    """The slots of one host."""

    def __init__(self, slots: int, params: Lifecycle) -> None:
        self.seats, self.params = [Seat() for _ in range(slots)], params

    def legal(self, op: str, slot: int) -> bool:
        seat, params = self.seats[slot], self.params
        if op == "WAIT":
            return True
        if op == "GERMINATE":
            free = seat.stage == "DORMANT"
            if params.embargo_steps == params.reset_steps == 0:  # nothing to wait for, and a seed can be replaced
                free = seat.stage != "FOSSILIZED" and (seat.stage not in LIVE or self.legal("PRUNE", slot))
            others = [s.stage for s in self.seats if s is not seat]
            if not free or sum(stage in LIVE for stage in others) >= (params.max_seeds or 99):
                return False
            blocked = {"GERMINATED", "TRAINING", "PRUNED", "EMBARGOED", "RESETTING"}
            return not (params.sequential_development and any(stage in blocked for stage in others))
        if op == "SET_ALPHA_TARGET":
            return seat.stage in {"BLENDING", "HOLDING"} and seat.ramp == "HOLD"
        if op == "PRUNE":
            old_enough = seat.age >= params.min_prune_age
            return seat.stage in LIVE - {"FOSSILIZED"} and seat.ramp == "HOLD" and old_enough
        if op == "FOSSILIZE":
            return seat.stage == "HOLDING"
        return seat.stage in NEXT_GATE and not params.auto_advance

    def step(self, action: dict[str, int], accuracy: float) -> tuple[str, int, bool]:
        """Effective op, gate asked (-1: none), gate passed."""
        before = [seat.stage for seat in self.seats]
        op, seat = OPS[action["op"]], self.seats[action["slot"]]
        gate, passed, effective = -1, False, "WAIT"
        if self.legal(op, action["slot"]):
            effective, gate, passed = self._execute(op, seat, action, accuracy)
        for each in self.seats:
            each.tick()
            if each.prune_scheduled and each.ramp == "HOLD":
                each.remove()
        for each, stage in zip(self.seats, before, strict=True):
            new = each is seat and effective == "GERMINATE"
            self._pass_time(each, accuracy, settled=each.stage == stage and not new)
        return effective, gate, passed

    def _execute(self, op: str, seat: Seat, action: dict[str, int], accuracy: float) -> tuple[str, int, bool]:
        if op == "GERMINATE":
            seat.clear()
            seat.enter("GERMINATED", accuracy)
            seat.blueprint, seat.operator = action["blueprint"], STYLE_OPERATOR[action["style"]]
            seat.first_curve, seat.tempo_steps = STYLE_CURVE[action["style"]], TEMPO[action["tempo"]]
            seat.first_target, seat.germinations = TARGET[action["alpha_target"]], seat.germinations + 1
            seat.germination_accuracy = seat.accuracy = accuracy
            return op, 0, True
        if op in ("ADVANCE", "FOSSILIZE"):
            target, gate = ("FOSSILIZED", 5) if op == "FOSSILIZE" else NEXT_GATE[seat.stage]
            if not seat.gate(target, self.params):
                return "WAIT", gate, False
            seat.advance_to(target, accuracy)
            return op, gate, True
        steps, curve = SPEED[action["alpha_speed"]], action["alpha_curve"]
        if op == "SET_ALPHA_TARGET":
            target = TARGET[action["alpha_target"]]
            if seat.stage == "HOLDING" and target < 1:
                seat.enter("BLENDING", accuracy)
            seat.operator = STYLE_OPERATOR[action["style"]]
            seat.retarget(target, steps, curve)
        elif op == "PRUNE":
            if seat.stage in {"BLENDING", "HOLDING"} and seat.alpha > 0 and steps > 0:
                if seat.stage == "HOLDING":
                    seat.enter("BLENDING", accuracy)
                seat.retarget(0.0, steps, curve)
                seat.prune_scheduled = True
            else:
                seat.remove()
        return op, -1, False

    def _pass_time(self, seat: Seat, accuracy: float, settled: bool) -> None:
        """One transition of a slot that had none in this step; more only out of stages that take no time."""
        if seat.stage in COOLING:
            if settled:
                seat.dwell += 1
                wait = {"PRUNED": 0, "EMBARGOED": self.params.embargo_steps, "RESETTING": self.params.reset_steps}
                if seat.dwell >= wait[seat.stage]:
                    seat.enter(COOLING[seat.stage], NAN)
            return
        blends_now = False
        while self.params.auto_advance and seat.stage in NEXT_GATE:
            untrained = seat.stage in ("GERMINATED", "TRAINING") and self.params.training_dwell == 0
            no_time = untrained or (blends_now and seat.tempo_steps == 0)
            target, _ = NEXT_GATE[seat.stage]
            if not ((settled or no_time) and seat.gate(target, self.params)):
                return
            seat.advance_to(target, accuracy)
            settled, blends_now = False, target == "BLENDING"

    def prune_live(self) -> None:
        for seat in self.seats:
            if seat.stage in LIVE - {"FOSSILIZED"}:
                seat.remove()
