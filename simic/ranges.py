"""The ranges that numbers of the params may lie in."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

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


def _no_flag(value: object) -> object:
    if isinstance(value, bool):  # which equals 1
        raise ValueError("must be one of 1, 3, 5")
    return value


Odd = Annotated[Literal[1, 3, 5], BeforeValidator(_no_flag)]  # pixels of a kernel


def _distinct(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if values is not None and len(set(values)) < len(values):
        raise ValueError("each may stand there once")
    return values


Once = AfterValidator(_distinct)
