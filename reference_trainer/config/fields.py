"""What a field of the configuration may hold, and what every section of it is."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _refuse_bool(value: Any) -> Any:
    """YAML's `yes` is not the number 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number, not a boolean")
    return value


Number = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
NonNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
Natural = Annotated[int, Field(strict=True, ge=0)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Switch = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, protected_namespaces=()
    )
