"""A pydantic base that refuses values of another type, and unknown keys with the known ones in the message."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class StrictModel(BaseModel):
    """Immutable; nothing is converted (true is no number); an unknown key is an error that names the known keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_known_keys(cls, given: Any) -> Any:
        unknown = [key for key in given if key not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(cls.model_fields))}")
        return given


def first_mistake(error: ValidationError) -> str:
    """The first mistake as `place: what is right (got ...)`."""
    detail = error.errors()[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] != "value_error":
        message += f" (got {detail['input']!r})"
    return f"{where}: {message}" if where else message
