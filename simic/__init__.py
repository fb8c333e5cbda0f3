"""simic: train a reinforcement-learning controller that grows neural networks, and prove what it did."""

__version__ = "0.1.0"
