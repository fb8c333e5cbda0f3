"""Read the study file: params, training seeds and policies; checked whole before anything runs."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, field_validator, model_validator

from simic.errors import SimicError
from simic.params import PolicyName, RuleName, Tree, read_tree
from simic.validation_messages import refusal

MOST_CELLS = 10_000

Key = Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")]
Choice = Annotated[tuple[JsonValue, ...], Field(strict=False, min_length=1)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _counted(value: Any) -> Any:
    """Turn a count into 1, 2, … up to it."""
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_CELLS
    return tuple(range(1, value + 1)) if counts else value


class StudyFile(Tree):
    """Define a study: ``base`` are overrides of params.yaml, ``grid`` the keys that vary with their values. ``seeds``
    replace rng_seed in training alone, so that data, headroom and evaluation are the same for all of them.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    base: Annotated[tuple[str, ...], Field(strict=False)] = ()
    grid: dict[Key, Choice] = Field(default_factory=dict)
    seeds: Annotated[tuple[Seed, ...], Field(strict=False, min_length=1), BeforeValidator(_counted)]
    policies: Annotated[tuple[Literal[PolicyName, RuleName], ...], Field(strict=False, min_length=1)]

    @field_validator("seeds", "policies")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) < len(values):
            raise ValueError("values must be unique")
        return values

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if not self.trained:
            raise ValueError(f"policies must name one that is trained: {', '.join(get_args(PolicyName))}")
        if taken := [key for key in self.grid if key.split(".")[-1] == "policies"]:
            raise ValueError(f"grid must not have {taken[0]}: the study's own key policies says what is evaluated")
        if self.cells > MOST_CELLS:
            raise ValueError(f"grid and seeds make {self.cells} cells; at most {MOST_CELLS} are allowed")
        return self

    @property
    def trained(self) -> tuple[str, ...]:
        """Return the policies that training makes."""
        return tuple(name for name in self.policies if name in get_args(PolicyName))

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the policies written by hand, which headroom measures; it needs one."""
        return tuple(name for name in self.policies if name not in self.trained) or ("static",)

    @property
    def cells(self) -> int:
        """Return the number of grid points times training seeds."""
        return len(self.seeds) * math.prod(map(len, self.grid.values()))


def read(path: Path) -> StudyFile:
    """Read the study in a YAML file; SimicError naming every wrong key, its value and what is allowed."""
    if not path.is_file():
        raise SimicError(f"{path}: no such file; examples/studies/memory.yaml shows one")
    tree = read_tree(path)
    try:
        return StudyFile.model_validate(tree)
    except ValidationError as error:
        raise refusal(error, str(path), tree, StudyFile) from None
