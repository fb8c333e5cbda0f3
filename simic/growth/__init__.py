"""Growth: hosts, seeds, lifecycle, population; ``simic.growth.load_grown`` reads what was exported."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simic.growth.export import load_grown

__all__ = ["load_grown"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: the tables of this package do not need what exporting needs."""
    if name == "load_grown":
        from simic.growth.export import load_grown

        return load_grown
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
