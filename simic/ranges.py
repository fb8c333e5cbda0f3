"""The ranges that numbers of the params may lie in."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
# Beyond these ends float32 loses the other numbers, and no run is known that needs them.
NonNegative = Annotated[float, Field(ge=0.0, le=1e6)]
Positive = Annotated[float, Field(ge=1e-12, le=1e6)]
Penalty = Annotated[float, Field(ge=-1e6, le=0.0)]
LearningRate = Annotated[float, Field(ge=1e-12, le=10.0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Units = Annotated[int, Field(ge=1, le=8192)]  # of a layer, or positions of a sequence
Workers = Annotated[int, Field(ge=1, le=256)]  # threads or processes: the libraries beneath crash on far more
Steps = Annotated[int, Field(ge=0, le=1_000_000)]


def _distinct(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if values is not None and len(set(values)) < len(values):
        raise ValueError("each may stand there once")
    return values


Once = AfterValidator(_distinct)
