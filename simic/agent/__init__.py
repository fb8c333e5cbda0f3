"""The agent: a recurrent, masked, hierarchical-action PPO that knows nothing of what it controls."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simic.agent.agent import Agent

__all__ = ["Agent"]


def __getattr__(name: str) -> Any:
    """Import the agent when it is asked for: its parts are used without the rest."""
    if name == "Agent":
        from simic.agent.agent import Agent

        return Agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
