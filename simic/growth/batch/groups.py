"""Who runs with whom: the group lists of one epoch, built on the CPU from a single read of the slots.

A *stream* is one network to be run: in training, stream i is host i; in evaluation a host has a stream for each way its
seeds are switched, and a stream splits only at the first slot where its configurations differ.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simic.growth.life.lifecycle import ACTIVE_STAGES
from simic.growth.life.vocabulary import Blend, Ramp, Slots, Stage
from simic.transfer import upload

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SlotState:
    """The slots as the CPU sees them, all ``[E, K]``: the one device-to-host read of an environment step."""

    stage: Integers
    blueprint: Integers
    operator: Integers
    frozen: Flags  # a down-ramp: forward as ever, parameters fixed
    silent: Flags  # alpha is 0
    age: Integers  # epochs since germination: seeds of one age have trained equally long
    flags: tuple[Flags, ...] = ()  # that were read along

    @classmethod
    def read(cls, slots: Slots, *flags: Tensor) -> Self:
        """Copy what grouping needs, and any further ``flags [E, K]`` bool, in one transfer."""
        # Stacked into one tensor: each transfer by itself would make this device wait for the other.
        integers = (slots.stage, slots.blueprint, slots.operator, slots.age)
        bools = (slots.ramp == Ramp.DOWN, slots.alpha <= 0, *flags)
        stage, blueprint, operator, age, *rest = torch.stack((*integers, *bools)).cpu().numpy()
        frozen, silent, *read_along = (values.astype(bool) for values in rest)
        return cls(stage, blueprint, operator, frozen, silent, age, tuple(read_along))

    def of(self, rows: slice | Integers) -> Self:
        """Select what grouping needs of some hosts."""
        return type(self)(
            **{name: values[rows] for name, values in vars(self).items() if name != "flags"}
        )

    @property
    def active(self) -> Flags:
        """Seeds with a module in the forward pass."""
        return np.isin(self.stage, list(ACTIVE_STAGES))

    @property
    def learning(self) -> Flags:
        """Seeds that run in training; past TRAINING, one at alpha 0 gets no gradient and does not."""
        return self.active & ((self.stage == Stage.TRAINING) | ~self.silent)

    @property
    def acting(self) -> Flags:
        """Seeds that change the host's output."""
        return self.active & (self.stage != Stage.TRAINING) & ~self.silent


@dataclass(frozen=True)
class Blended:
    """Seeds of one slot that join by one operator: positions in the slot's order, their streams and amplitudes."""

    operator: Blend
    positions: Tensor
    streams: Tensor
    alpha: Tensor
    frozen: Flags  # parameters do not move


@dataclass(frozen=True)
class SlotGroups:
    """The seeds that run at one slot, in the order of their blueprints; positions index this order."""

    streams: Tensor  # [R] whose features they read and change
    hosts: Tensor  # [R] which have the seeds
    blueprints: tuple[tuple[int, int, int], ...]  # (blueprint, first, last + 1)
    open_positions: Tensor  # those that are not isolated
    blended: tuple[Blended, ...]
    frozen: Flags  # [R] parameters do not move
    # [R] amplitudes, where all seeds act by ADD in the order of their positions
    added: Tensor | None = None

    def gated(self) -> Blended | None:
        """Find the seeds that have a gate."""
        return next((item for item in self.blended if item.operator is Blend.GATE), None)


@dataclass(frozen=True)
class Plan:
    """One epoch's groups. ``hosts[k]`` is the host of each stream when segment k runs (the head last); ``parents[k]``
    the stream that each stream after slot k comes from. None = stream i is host i; nothing splits.
    """

    hosts: tuple[Tensor | None, ...]
    parents: tuple[Tensor | None, ...]
    slots: tuple[SlotGroups | None, ...]


def training_plan(state: SlotState, alpha: Tensor, isolated: Set[Stage]) -> Plan:
    """Plan a pass with a stream for each host.

    Args:
        state: Slots of the hosts.
        alpha: Of their seeds, ``[E, K]``.
        isolated: Stages whose seeds send the host no gradient.
    """
    # Stream i is host i, and none splits.
    envs, slots = state.stage.shape
    learning = state.learning
    hosts = np.arange(envs)
    groups = tuple(
        group_seeds(state, slot, hosts, learning[:, slot], alpha, isolated) for slot in range(slots)
    )
    return Plan((None,) * (slots + 1), (None,) * slots, groups)


def evaluation_plan(state: SlotState, off: Flags, alpha: Tensor) -> tuple[Plan, Tensor]:
    """Plan a pass for several configurations of the same hosts, which share what they have in common.

    Args:
        state: Slots of the hosts.
        off: Seeds that are switched off, bool ``[Cfg, E, K]``.
        alpha: Of the seeds, ``[E, K]``.

    Returns:
        The plan, and the stream that answers for each configuration, ``[Cfg, E]``.
    """
    configurations, envs, slots = off.shape
    on = state.acting & ~off
    # At first each host has one stream, for all its configurations.
    owner = np.arange(envs)
    stream_of = np.tile(owner, configurations)
    hosts: list[Tensor | None] = [None]
    parents: list[Tensor | None] = []
    groups: list[SlotGroups | None] = []
    for slot in range(slots):
        # A stream splits where the seed at this slot is on in one configuration and off in another.
        codes, stream_of = np.unique(
            stream_of * 2 + on[:, :, slot].reshape(-1), return_inverse=True
        )
        parents.append(upload(codes // 2, alpha.device) if len(codes) > len(owner) else None)
        owner = owner[codes // 2]
        groups.append(group_seeds(state, slot, owner, codes % 2 == 1, alpha, frozenset()))
        hosts.append(upload(owner, alpha.device) if len(owner) > envs else None)
    return Plan(tuple(hosts), tuple(parents), tuple(groups)), upload(stream_of, alpha.device).view(
        configurations, envs
    )


def group_seeds(
    state: SlotState,
    slot: int,
    owner: Integers,
    runs: Flags,
    alpha: Tensor,
    isolated: Set[Stage],
) -> SlotGroups | None:
    """Group the seeds of the streams in ``runs`` at a slot; stable order, so equal structure means equal groups."""
    streams = np.flatnonzero(runs)
    if not len(streams):
        return None
    device = alpha.device

    # By blueprint, within one by age.
    hosts = owner[streams]
    streams = streams[np.lexsort((state.age[hosts, slot], state.blueprint[hosts, slot]))]
    hosts = owner[streams]
    kinds, first = np.unique(state.blueprint[hosts, slot], return_index=True)

    # By operator; seeds in TRAINING have none.
    stage = state.stage[hosts, slot]
    operators = np.where(stage == Stage.TRAINING, -1, state.operator[hosts, slot])
    blended: list[Blended] = []
    for operator in Blend:
        positions = np.flatnonzero(operators == operator)
        if len(positions):
            blended.append(
                Blended(
                    operator=operator,
                    positions=upload(positions, device),
                    streams=upload(streams[positions], device),
                    alpha=alpha[upload(hosts[positions], device), slot],
                    frozen=state.frozen[hosts[positions], slot],
                )
            )
    # Where all seeds add, the forward needs no copies by operator.
    only_added = [item.operator for item in blended] == [Blend.ADD] and len(
        blended[0].positions
    ) == len(streams)
    return SlotGroups(
        added=blended[0].alpha if only_added else None,
        streams=upload(streams, device),
        hosts=upload(hosts, device),
        blueprints=tuple(
            zip(kinds.tolist(), first.tolist(), [*first[1:].tolist(), len(streams)], strict=True)
        ),
        open_positions=upload(np.flatnonzero(~np.isin(stage, list(isolated))), device),
        blended=tuple(blended),
        frozen=state.frozen[hosts, slot],
    )
