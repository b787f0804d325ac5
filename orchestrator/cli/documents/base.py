"""What all JSON documents of the commands have in common."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator.machine import isoformat


def _time(value: Any) -> Any:
    if isinstance(value, int):
        return isoformat(value) if value else None
    return value


#: A time in ISO 8601, UTC, made of milliseconds since the epoch; null while there is none.
Time = Annotated[str | None, BeforeValidator(_time)]


class Document(BaseModel):
    """An object that a command prints with ``--json``; its fields are all there, always."""

    # Built when it is first printed: a command that prints for people builds none.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    @classmethod
    def of(cls, value: object) -> Self:
        """The document about a value of ours: what it has and the document does not name is left out."""
        return cls.model_validate(value, from_attributes=True)


class FindingDocument(Document):
    """Something that an examination found."""

    severity: str = Field(
        description="How bad it is: `break`, `stuck` or `warning` of `doctor`; `error`, `warning` or `info` of `validate`."
    )
    rule: str = Field(description="The rule that is broken; rules are never renamed.")
    message: str = Field(description="What is wrong and, where there is one, the next step.")
