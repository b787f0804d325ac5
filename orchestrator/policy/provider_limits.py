"""Limits on the calls of a provider's models by all workers together. Pure values and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ProviderLimit(BaseModel):
    """Limits of one model under one key; None: as many as there are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_minute: int | None = Field(default=None, gt=0)
    tokens_per_minute: int | None = Field(default=None, gt=0)
    calls: int | None = Field(default=None, gt=0)  #: at once


def fits(pattern: str, provider: str, model: str) -> bool:
    """Return True if a pattern matches `provider/model`."""
    return fnmatchcase(f"{provider}/{model}", pattern)


def limit_of(limits: Mapping[str, Mapping[Any, int]], provider: str, model: str) -> ProviderLimit:
    """Return the limit of a model: of the first pattern that fits it, in their order."""
    found = (limit for pattern, limit in limits.items() if fits(pattern, provider, model))
    return ProviderLimit.model_validate(next(found, {}))
