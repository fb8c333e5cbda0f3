"""Name runs wherever they are shown: two words to say aloud, and the start of its fingerprint to find it by."""

import zlib

DIGITS = 8  # of the fingerprint
QUALITIES = (
    "amber", "ample", "bold", "brave", "brief", "bright", "brisk", "calm", "clear", "clever", "crisp", "deep",
    "eager", "early", "even", "fair", "fine", "fond", "frank", "fresh", "gentle", "glad", "grand", "green", "keen",
    "kind", "late", "light", "lively", "lucid", "mellow", "merry", "mild", "neat", "nimble", "noble", "plain",
    "polite", "proud", "quick", "quiet", "rapid", "ready", "round", "sharp", "silent", "silver", "slow", "smart",
    "smooth", "snug", "sober", "solid", "steady", "still", "stout", "subtle", "sunny", "swift", "tidy", "vivid",
    "warm", "wise", "young",
)  # fmt: skip
PLANTS = (
    "acacia", "alder", "almond", "anise", "apple", "ash", "aspen", "aster", "balsam", "bamboo", "barley", "basil",
    "beech", "birch", "bracken", "briar", "broom", "carob", "cedar", "cherry", "clover", "cypress", "dahlia",
    "elder", "elm", "fennel", "fern", "fig", "flax", "hazel", "heather", "hemlock", "holly", "iris", "ivy",
    "jasmine", "juniper", "larch", "laurel", "lemon", "lilac", "lily", "linden", "lotus", "maple", "mint", "moss",
    "myrtle", "nettle", "oak", "olive", "orchid", "palm", "pear", "pine", "plum", "poplar", "quince", "reed",
    "rowan", "sage", "sorrel", "spruce", "willow",
)  # fmt: skip


def run_name(fingerprint: str) -> str:
    """Name the run with this fingerprint, for example ``quiet-rowan-0123abcd``."""
    # Words from a hash of the whole, so that runs whose fingerprints begin alike have other names.
    number = zlib.crc32(fingerprint.encode())
    quality = QUALITIES[number % len(QUALITIES)]
    # Digits of one number, so that quality and plant are drawn apart.
    plant = PLANTS[number // len(QUALITIES) % len(PLANTS)]
    return f"{quality}-{plant}-{fingerprint[:DIGITS]}"
