"""The agent: a recurrent, masked, hierarchical-action PPO that knows nothing of what it controls."""

from simic.agent.agent import Agent

__all__ = ["Agent"]
