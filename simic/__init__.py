"""simic: train a reinforcement-learning controller that grows neural networks, and prove what it did."""

import os

# Read when torch loads OpenMP. Threads that spin while they wait stop each other on a machine that is busy elsewhere:
# a rollout with 2 threads beside another process took over twice as long (docs/history/experiments.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"
