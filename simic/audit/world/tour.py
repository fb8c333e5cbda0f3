"""Decisions that see everything once: legal actions, chosen so that what was chosen least so far comes next."""

from collections import Counter
from collections.abc import Mapping, Sequence

from simic.audit.reference.world import life, streams
from simic.audit.reference.world.host import Action, ReferenceHost
from simic.audit.reference.world.masks import USED, Choice, Masks, choices

HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
TOUR = 1 << 20  # names the stream of numbers that break ties
# How much a choice of each op counts: waiting is most of what hosts do, and what ends a seed comes late.
COST = {
    life.WAIT: 0.15,
    life.GERMINATE: 1.0,
    life.SET_ALPHA_TARGET: 2.0,
    life.PRUNE: 3.0,
    life.FOSSILIZE: 3.0,
    life.ADVANCE: 0.5,
}


class Tour:
    """Chooses for one host after the other; ``made`` counts the choices of every head.

    Some hosts bring their seeds to their end, others prune them and use their slots again.
    """

    def __init__(self, rng_seed: int, host: ReferenceHost) -> None:
        self._rng_seed = rng_seed
        self._choices: Mapping[str, Sequence[Choice]] = choices(host.world.body)
        self.made: Counter[tuple[str, int]] = Counter()
        self._offered: set[tuple[str, int]] = set()
        self._decisions = 0

    def choose(self, host: ReferenceHost, keeps: bool) -> Action:
        """A legal action; who ``keeps`` prunes no seed that is not in HOLDING yet."""
        self._decisions += 1
        masks = host.masks()
        action: Action = dict.fromkeys(HEADS, 0)
        slots = _slots(host, masks, keeps)
        urgent, possible = _urgent(host, slots, keeps), [any(row) for row in slots]
        action["op"] = self._least("op", [free and urgent in (None, op) for op, free in enumerate(possible)])
        for head in USED[action["op"]]:
            mask = slots[action["op"]] if head == "slot" else self._mask(head, masks, action)
            hurried = head == "alpha_speed" and urgent == life.PRUNE and host.host_id // 2 % 2 == 0
            action[head] = self._least(
                head, [free and place == 0 for place, free in enumerate(mask)] if hurried and mask[0] else mask
            )
        return action

    def missed(self) -> list[str]:
        """Choices that were possible at some time and never made."""
        return self._named(self._offered - set(self.made))

    def impossible(self) -> list[str]:
        """Choices that never were possible."""
        every = {(head, place) for head, values in self._choices.items() for place in range(len(values))}
        return self._named(every - self._offered - set(self.made))

    def _named(self, places: set[tuple[str, int]]) -> list[str]:
        return [f"{head} {self._choices[head][place]}" for head, place in sorted(places)]

    def _mask(self, head: str, masks: Masks, action: Action) -> list[bool]:
        if head == "blueprint":
            return masks.blueprint[action["slot"]]
        return masks.others.get(head, [True] * len(self._choices[head]))

    def _least(self, head: str, mask: list[bool]) -> int:
        """The possible choice that was made least, ties by hash."""
        possible = [place for place, free in enumerate(mask) if free]
        self._offered |= {(head, place) for place in possible}
        ties = streams.words(streams.key(self._rng_seed, TOUR, self._decisions, HEADS.index(head)), len(mask))
        weights = COST if head == "op" else {}
        best = min(possible, key=lambda place: (self.made[head, place] * weights.get(place, 1.0), int(ties[place])))
        self.made[head, best] += 1
        return best


def _slots(host: ReferenceHost, masks: Masks, keeps: bool) -> list[list[bool]]:
    """The slots ``[op][slot]`` that the tour wants of those that are possible."""
    wanted = [list(row) for row in masks.slot]
    used = [slot.germinations > 0 and not slot.alive for slot in host.slots]
    for k, slot in enumerate(host.slots):
        if keeps:
            wanted[life.PRUNE][k] &= slot.stage == life.HOLDING
            wanted[life.ADVANCE][k] &= slot.opens(life.NEXT.get(slot.stage), host.world.params.train.lifecycle)
        else:
            wanted[life.GERMINATE][k] &= used[k] or not any(used)
            wanted[life.FOSSILIZE][k] &= _again(host)
            wanted[life.PRUNE][k] &= _again(host) or slot.acts
    return wanted


def _again(host: ReferenceHost) -> bool:
    """A slot was used a second time."""
    return any(slot.germinations > 1 for slot in host.slots)


def _urgent(host: ReferenceHost, slots: list[list[bool]], keeps: bool) -> int | None:
    """The op that brings a host on at what it is there for."""
    if any(slots[life.GERMINATE]) and not any(slot.alive for slot in host.slots):
        return life.GERMINATE
    if keeps:
        return life.ADVANCE if any(slots[life.ADVANCE]) else None
    if _again(host):
        return None
    used = any(slot.germinations and not slot.alive for slot in host.slots)
    if used and any(slots[life.GERMINATE]):
        return life.GERMINATE
    return life.PRUNE if any(slots[life.PRUNE]) and not used else None
