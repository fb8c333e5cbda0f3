"""The alpha controller: a seed's amplitude moves along a curve to its target, monotone, and lands on it exactly."""

from dataclasses import replace

import torch
from torch import Tensor

from simic.growth.life.vocabulary import Curve, Ramp, Slots

# Steepness of the sigmoid curves: gentle, standard, sharp.
STEEPNESS: dict[Curve, float] = {Curve.SIGMOID_6: 6.0, Curve.SIGMOID_12: 12.0, Curve.SIGMOID_24: 24.0}


def curve_value(curve: Tensor, t: Tensor) -> Tensor:
    """f(t) of each element's curve; f(0) = 0, f(1) = 1, monotone."""
    cosine = (1 - torch.cos(torch.pi * t)) / 2
    value = torch.where(curve == Curve.COSINE, cosine, t)
    for kind, steepness in STEEPNESS.items():
        value = torch.where(curve == kind, _sigmoid(t, steepness), value)
    return value


def _sigmoid(t: Tensor, steepness: float) -> Tensor:
    """(σ(s(t−½)) − σ(−s/2)) / (σ(s/2) − σ(−s/2)): a logistic curve stretched to reach 0 and 1."""
    low = torch.sigmoid(t.new_full((), -steepness / 2))
    return (torch.sigmoid(steepness * (t - 0.5)) - low) / (1 - 2 * low)


def retarget(slots: Slots, where: Tensor, target: Tensor, steps: Tensor, curve: Tensor) -> Slots:
    """Start a ramp from the present alpha ``where [E, K]``; 0 steps, or a target already reached, snap at once.

    The caller asks only in HOLD (anti-dither): a running ramp is never bent.
    """
    difference = target - slots.alpha
    ramp = torch.where(difference > 0, int(Ramp.UP), int(Ramp.DOWN))
    snap = (steps <= 0) | (difference == 0)
    changes = {
        "alpha_start": slots.alpha,
        "alpha_target": target,
        "alpha": torch.where(snap, target, slots.alpha),
        "ramp": torch.where(snap, int(Ramp.HOLD), ramp),
        "ramp_curve": curve,
        "ramp_steps": steps,
        "ramp_done": torch.zeros_like(slots.ramp_done),
    }
    return replace(slots, **{name: torch.where(where, value, getattr(slots, name)) for name, value in changes.items()})


def ramp_tick(slots: Slots, where: Tensor) -> Slots:
    """One tick of the running ramps among ``where [E, K]``: k of N done, alpha = start + (target − start)·f(k/N)."""
    moving = where & (slots.ramp != Ramp.HOLD)
    done = slots.ramp_done + moving
    arrived = moving & (done >= slots.ramp_steps)
    t = done / slots.ramp_steps.clamp(min=1)
    value = slots.alpha_start + (slots.alpha_target - slots.alpha_start) * curve_value(slots.ramp_curve, t)
    # Clamped between where it was and where it goes: rounding may not turn it back or carry it past the target.
    value = value.clamp(torch.minimum(slots.alpha, slots.alpha_target), torch.maximum(slots.alpha, slots.alpha_target))
    return replace(
        slots,
        ramp_done=done,
        alpha=torch.where(arrived, slots.alpha_target, torch.where(moving, value, slots.alpha)),
        ramp=torch.where(arrived, int(Ramp.HOLD), slots.ramp),
    )
