"""Decisions that see everything once: legal actions, chosen so that what was chosen least so far comes next."""

from collections import Counter

from simic.audit.reference.world import life, random
from simic.audit.reference.world.masks import USED, Choice, Masks

Action = dict[str, int]
HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
TOUR = 1 << 20  # names the stream of numbers that break ties
# How much a choice of each op counts: waiting is most of what hosts do, and what ends a seed comes late.
COST = {
    life.WAIT: 0.15,
    life.GERMINATE: 1.0,
    life.SET_ALPHA_TARGET: 2.0,
    life.PRUNE: 3.0,
    life.FOSSILIZE: 3.0,
    life.ADVANCE: 1.0,
}


class Tour:
    """Chooses for one host after the other; ``made`` counts the choices of every head."""

    def __init__(self, rng_seed: int, choices: dict[str, tuple[Choice, ...]]) -> None:
        self._rng_seed, self._choices = rng_seed, choices
        self.made: Counter[tuple[str, int]] = Counter()
        self.offered: set[tuple[str, int]] = set()
        self._decisions = 0

    def choose(self, masks: Masks) -> Action:
        """A legal action."""
        self._decisions += 1
        action = dict.fromkeys(HEADS, 0)
        action["op"] = self._least("op", masks.op)
        for head in USED[action["op"]]:
            action[head] = self._least(head, self._mask(head, masks, action))
        return action

    def missed(self) -> list[str]:
        """Choices that were possible at some time and never made."""
        left = sorted(self.offered - set(self.made))
        return [f"{head} {self._choices[head][place]}" for head, place in left]

    def _mask(self, head: str, masks: Masks, action: Action) -> list[bool]:
        if head == "slot":
            return masks.slot[action["op"]]
        if head == "blueprint":
            return masks.blueprint[action["slot"]]
        return masks.others.get(head, [True] * len(self._choices[head]))

    def _least(self, head: str, mask: list[bool]) -> int:
        """The possible choice that was made least, ties by hash."""
        possible = [place for place, free in enumerate(mask) if free]
        self.offered |= {(head, place) for place in possible}
        ties = random.words(random.key(self._rng_seed, TOUR, self._decisions, HEADS.index(head)), len(mask))
        weights = COST if head == "op" else {}
        best = min(possible, key=lambda place: (self.made[head, place] * weights.get(place, 1.0), int(ties[place])))
        self.made[head, best] += 1
        return best
