"""The limits of signs of bad learning, all in one place.

A limit without a publication is the worst value of 57 clean runs times 1.5, or by judgement where that is laxer. A sign
is a finding only where the returns are bad too.
"""

from dataclasses import dataclass

OURS = "ours, worst of 57 clean runs x 1.5, or by judgement where that is laxer"


@dataclass(frozen=True)
class Limit:
    """Hold a number and the statistic that it limits; ``above``: larger is worse."""

    name: str
    value: float
    above: bool = True

    def broken_by(self, value: float) -> bool:
        """Tell whether a value lies beyond the limit; NaN does."""
        return not (value <= self.value if self.above else value >= self.value)

    def __str__(self) -> str:
        return f"{self.value:g}"


# How far an update moves the policy.
LARGEST_MEAN_RATIO = Limit("largest mean ratio", 10.0)  # TRL, ratio_threshold
LARGEST_RATIO = Limit("largest ratio", 19.0)
SMALLEST_RATIO = Limit("smallest ratio", 0.0123, above=False)
SUSTAINED_KL = Limit("sustained KL", 0.02)  # Huang et al. 2022
HIGH_KL = Limit("sustained KL", 0.05)  # Spinning Up, the largest target
CRITICAL_KL = Limit("sustained KL", 0.1)
LARGEST_KL = Limit("largest KL", 1e-8, above=False)  # below it nothing moved
KL_OF_ONE_UPDATE = Limit("KL of one update", 0.25)

# Whether the policy explores.
LEAST_ENTROPY = Limit("least entropy early on", 0.05, above=False)
SWING_OF_ENTROPY = Limit("swing of entropy", 0.478)
FROM_UNIFORM = Limit("distance of entropy from its maximum at the end", 0.05, above=False)

# The critic.
EXPLAINED_VARIANCE = Limit(
    "explained variance kept up", 0.0, above=False
)  # Stable-Baselines3: 0 is a constant
LATE_EXPLAINED_VARIANCE = Limit("explained variance late on", 0.2, above=False)

# Gradients and memory.
SHARE_OF_HEAD = Limit("smallest share of a head in the gradient", 0.00325, above=False)
BAD_MEMORY = Limit("share of updates in which the hidden state is out of range", 0.5)

# Rewards.
RETURN_AGAINST_OBJECTIVE = Limit("rise of returns that the objective does not follow", 0.5)
HARMFUL_SEEDS = Limit("share of fossilizations that harmed the host", 0.2)
