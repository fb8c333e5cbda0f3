"""Make the params model with every field optional, which a deployment accepts as ``overrides``."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo

from simic import params


class Partial(BaseModel):
    """Check a section of overrides: unknown keys and other types are errors, missing keys mean params.yaml."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def optional(model: type[params.Tree]) -> type[Partial]:
    """Make a model with the same keys and ranges, each of them optional; rules that tie keys together are checked
    later, on the whole tree.
    """
    # Sections become models of their own, so that Prefect's form shows each of their fields.
    fields: dict[str, Any] = {name: _field(field) for name, field in model.model_fields.items()}
    return create_model(
        f"{model.__name__}Overrides", __base__=Partial, __doc__=model.__doc__, **fields
    )


def _field(field: FieldInfo) -> tuple[Any, None]:
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, params.Tree):
        return optional(annotation) | None, None
    # Ranges and other constraints hold for an override as for the file.
    if field.metadata:
        annotation = Annotated[(annotation, *field.metadata)]
    return annotation | None, None


class Overrides(optional(params.Params)):
    """Change values of params.yaml for this run alone, by section; others are as they are there at its start."""
