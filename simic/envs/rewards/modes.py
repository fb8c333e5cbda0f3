"""The shipped modes (why each is as it is: docs/history/decisions.md)."""

from simic.envs.rewards import costs, differences, keeping, objectives  # noqa: F401 - they register the terms
from simic.envs.rewards.registration import mode

# Optional terms, off by default: their weights in params.ShapedReward are 0.
OPTIONAL = ("synergy", "hindsight", "ratio_penalty", "blending_warning", "indecision", "occupancy")

mode(
    "shaped",
    (
        "shaping",
        "attribution",
        "rent",
        "alpha_shock",
        "intervention",
        "fossilize",
        "terminal",
        "death",
        *OPTIONAL,
    ),
)
# Diagnostic: without rent it is no evidence that complexity pays for itself.
mode("simplified", ("shaping", "intervention", "simplified_terminal", "death"))
mode("sparse", ("sparse", "death"))
mode("minimal", ("sparse", "early_prune", "death"))
mode("basic", ("shaping", "basic_rent", "intervention", "basic_fossilize", "basic_terminal", "death"))
mode(
    "basic_plus",
    ("shaping", "basic_rent", "intervention", "basic_plus_fossilize", "drip", "basic_terminal", "death"),
)
mode(
    "escrow",
    (
        "shaping",
        "escrow",
        "toxic",
        "rent",
        "alpha_shock",
        "intervention",
        "fossilize",
        "terminal",
        "death",
        "hindsight",
    ),
)
mode("score", ("shaping", "score_change", "intervention", "death"))
mode("loss", ("shaping", "loss_improvement", "loss_rent", "intervention", "loss_terminal", "death"))
