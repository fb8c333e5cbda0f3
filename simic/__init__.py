"""simic: train a reinforcement-learning controller that grows neural networks, and prove what it did."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simic.classifier import GrowClassifier, grow

__all__ = ["GrowClassifier", "grow"]

# Read when torch loads OpenMP. Threads that spin while they wait stop each other on a machine that is busy elsewhere:
# a rollout with 2 threads beside another process took over twice as long (docs/history/experiments.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imported when asked for: most who import simic need neither scikit-learn nor pandas."""
    if name in __all__:
        from simic import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
