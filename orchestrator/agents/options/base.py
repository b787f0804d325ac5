"""Base of the options of all executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo


class ExecutorOptions(BaseModel):
    """The options of one agent; each executor has a model of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: Fields of the agent's record that this executor sets where the agent's definition does not.
    defaults: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True)
class Surroundings:
    """Surroundings of an agent's definition: the folder of relative paths, and the import of ``module:name``."""

    folder: Path
    #: Imports what ``module:name`` refers to; raises ConfigurationError.
    load: Callable[[str], Any]


def _load(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str) or not isinstance(info.context, Surroundings):
        return value
    return info.context.load(value)


#: An object, or where it is to be imported from: ``module:name``.
Reference = Annotated[Any, BeforeValidator(_load)]


def _from_folder(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str | Path) and isinstance(info.context, Surroundings):
        return info.context.folder / Path(value).expanduser()
    return value


#: A path; a relative one begins at the folder of the file that names it.
FilePath = Annotated[Path, BeforeValidator(_from_folder)]
