"""Growth: hosts, seeds, lifecycle, population; ``simic.growth.load_grown`` reads what was exported."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simic.growth.grown_network import load_grown

__all__ = ["load_grown"]


def __getattr__(name: str) -> Any:
    """Import ``load_grown`` when it is asked for: the rest of the package does not need what exporting needs."""
    if name == "load_grown":
        from simic.growth.grown_network import load_grown

        return load_grown
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
