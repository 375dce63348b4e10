"""A pydantic base that refuses values of another type, and unknown keys with the known ones in the message."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


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
