"""Train a reinforcement-learning controller that grows neural networks, and prove what it did."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Imported when asked for, by name: no stage depends on them, and most who import simic need neither scikit-learn nor
# pandas.
OFFERED = ("GrowClassifier", "grow")


def __getattr__(name: str) -> Any:
    """Import what is offered to programs: ``simic.grow`` and ``simic.GrowClassifier``."""
    if name in OFFERED:
        try:
            return getattr(importlib.import_module("simic.classifier"), name)
        except ModuleNotFoundError as missing:
            # What is missing is named, as that is what can be installed.
            raise ImportError(
                f"simic.{name} needs {missing.name}, of simic's extra pipeline"
            ) from missing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
