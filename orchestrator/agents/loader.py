"""Agents from where a user keeps them: a module, a ``.py`` file, a TOML file, or an installed package's entry point.

    [agents.reviewer]
    role = "specialist"
    executor = "python"
    function = "my_package.agents:review"

Whatever is wrong with a file ends in one sentence that names the file, the line and the cause.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import tomllib
import traceback
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from orchestrator.agents.definition import (
    FIELDS,
    FUNCTION_ATTRIBUTE,
    MODULE_ATTRIBUTE,
    AgentDefinition,
    define_agent,
)
from orchestrator.agents.lines import line_of
from orchestrator.agents.options import Surroundings, check_options
from orchestrator.config.settings import config_file, did_you_mean, is_agents_file, unknown_table
from orchestrator.errors import AgentSettingError, AgentsFileError, ConfigurationError
from orchestrator.policy.routing import RoutingTable

#: The group of entry points in which installed packages offer agents.
ENTRY_POINTS: Final = "agent_orchestra.agents"


def load_agents(sources: Iterable[str]) -> dict[str, AgentDefinition]:
    """Return the agents of all ``sources`` (module names and files), by name.

    Raises:
        AgentsFileError: a source cannot be loaded, holds no agent, or names an agent that another has too.
    """
    catalogue: dict[str, AgentDefinition] = {}
    for source in dict.fromkeys(sources):
        found = _load(source)
        if not found:
            how = (
                "write a table [agents.name]"
                if source.endswith(".toml")
                else 'put @agent("name") on a function of a context'
            )
            raise AgentsFileError(source, f"it defines no agent; {how}")
        earlier = {(definition.name, definition.source) for definition in catalogue.values()}
        for definition in found:
            if (definition.name, definition.source) in earlier:
                continue  # one file under two names, as a module and as a path
            other = catalogue.setdefault(definition.name, definition)
            if other is not definition:
                raise AgentsFileError(
                    source,
                    f"agent {definition.name!r} is defined twice, at {other.source} and at {definition.source}; "
                    "rename one of them",
                )
    return catalogue


def choose_served(
    catalogue: Mapping[str, AgentDefinition], serve: Collection[str]
) -> dict[str, AgentDefinition]:
    """Return the agents that a worker serves: those that an entry of ``serve`` means, a name or `tag:TAG`; all
    without one.

    External programs are run by nobody here, and stay.

    Raises:
        ConfigurationError: an entry means no agent.
    """
    if not serve:
        return dict(catalogue)
    records = [definition.record for definition in catalogue.values()]
    known = {entry for record in records for entry in record.principal.entries}
    for entry in serve:
        if entry not in known:
            there = ", ".join(sorted(known)) or "none"
            near = did_you_mean(entry, known)
            raise ConfigurationError(f"serve: no agent is {entry!r} (there are: {there}){near}")
    return {
        name: definition
        for name, definition in catalogue.items()
        if definition.record.external or not definition.record.principal.entries.isdisjoint(serve)
    }


def _load(source: str) -> list[AgentDefinition]:
    if source.startswith("@"):
        return _from_entry_points(source)
    if not is_agents_file(source):
        return _definitions(_import_module(source, source))
    path = Path(source).expanduser().absolute()
    if not path.is_file():
        kind = "it is a folder" if path.is_dir() else "there is no such file"
        raise AgentsFileError(source, f"{kind}; give a module name, a .py file or a .toml file")
    if path.suffix == ".toml":
        return _from_toml(source, path)
    return _definitions(_import_file(source, path))


def _from_entry_points(source: str) -> list[AgentDefinition]:
    """Return the agents that an installed package offers under a name, or with ``@all`` those of all packages."""
    offered = entry_points(group=ENTRY_POINTS)
    chosen = [e for e in offered if source in ("@all", f"@{e.name}")]
    if not chosen:
        there = ", ".join(sorted(f"@{e.name}" for e in offered)) or "none"
        raise AgentsFileError(
            source,
            f"no installed package has this entry point in the group {ENTRY_POINTS} (there are: {there})",
        )
    found: list[AgentDefinition] = []
    for entry in chosen:
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:
            raise AgentsFileError(source, f"{entry.value}: {_explain(error, None)}") from error
        definition = getattr(value, FUNCTION_ATTRIBUTE, value)
        if isinstance(value, ModuleType):
            found += _definitions(value)
        elif isinstance(definition, AgentDefinition):
            found.append(definition)
        else:
            raise AgentsFileError(source, f"{entry.value} is neither a module nor an agent")
    return found


def _definitions(module: ModuleType) -> list[AgentDefinition]:
    """Return the agents defined in the module, then those that it imported from elsewhere."""
    own: list[AgentDefinition] = list(getattr(module, MODULE_ATTRIBUTE, ()))
    held = (
        value if isinstance(value, AgentDefinition) else getattr(value, FUNCTION_ATTRIBUTE, None)
        for value in vars(module).values()
    )
    for definition in held:
        if isinstance(definition, AgentDefinition) and not any(definition is other for other in own):
            own.append(definition)
    return own


def _import_module(name: str, source: str) -> ModuleType:
    if not all(part.strip() for part in name.split(".")):
        raise AgentsFileError(
            repr(source), "that is not the name of a module; give a module name, a .py file or a .toml file"
        )
    # After everything that is installed, so that what stands there hides nothing.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"; did you mean {name}.py?" if Path(f"{name}.py").is_file() else ""
            raise AgentsFileError(
                source, f"there is no module {error.name!r} in {folder} or on the Python path{hint}"
            ) from None
        raise AgentsFileError(source, _explain(error, None)) from error
    except (Exception, SystemExit) as error:
        raise AgentsFileError(source, _explain(error, None)) from error


def _import_file(source: str, path: Path) -> ModuleType:
    plain = name = "orchestra_agents_" + re.sub(r"\W", "_", path.stem)
    number = 1
    while name in sys.modules and sys.modules[name].__file__ != str(path):
        # Another file of this name: what is found by its module, as types are, must stay its own.
        number += 1
        name = f"{plain}_{number}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AgentsFileError(
            source, "Python cannot import it; give a module name, a .py file or a .toml file"
        )
    module = importlib.util.module_from_spec(spec)
    # What stands beside the file can be imported by it, as when Python runs it; last, so that it hides nothing.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise AgentsFileError(source, _explain(error, path)) from error
    return module


def _explain(error: BaseException, path: Path | None) -> str:
    """Return the user's own line, the error, and where it was raised if that is in another file."""
    if isinstance(error, SyntaxError) and error.filename:
        where = (
            f"line {error.lineno}"
            if Path(error.filename) == path
            else f"{error.filename} line {error.lineno}"
        )
        return f"{where}: {type(error).__name__}: {error.msg}; correct it"
    if isinstance(error, SystemExit):
        text = f"it calls sys.exit({error.code!r}) while it is imported"
    elif isinstance(error, ConfigurationError):
        text = str(error)
    elif isinstance(error, ModuleNotFoundError):
        text = f"{type(error).__name__}: {error}; install it for {sys.executable}, or correct the import"
    else:
        text = f"{type(error).__name__}: {error}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    theirs = [f for f in frames if _is_theirs(f.filename)]
    if not theirs:
        return text
    own = [f for f in theirs if path is not None and Path(f.filename) == path]
    last = theirs[-1]
    if not own:
        return f"{last.filename} line {last.lineno}: {text}"
    raised = "" if last is own[-1] else f" (raised in {last.filename} line {last.lineno})"
    return f"line {own[-1].lineno}: {text}{raised}"


def _is_theirs(filename: str) -> bool:
    here = Path(__file__).parent
    return here not in Path(filename).parents and Path(filename).parent.name != "importlib"


def _from_toml(source: str, path: Path) -> list[AgentDefinition]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise AgentsFileError(source, str(error)) from error
    if (problem := unknown_table(document)) is not None:
        raise AgentsFileError(source, problem)
    tables = document.get("agents", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise AgentsFileError(source, "an agent is a table, written [agents.name]")
    surroundings = Surroundings(path.parent, partial(_load_reference, source))
    where = (source, path, text, surroundings)
    return [_from_table(where, name, table) for name, table in tables.items()]


def _from_table(
    where: tuple[str, Path, str, Surroundings], name: str, table: dict[str, Any]
) -> AgentDefinition:
    source, path, text, surroundings = where
    fields = {key: value for key, value in table.items() if key in FIELDS}
    options = {key: value for key, value in table.items() if key not in FIELDS}
    executor = fields.pop("executor", "python")
    try:
        checked = check_options(name, executor, options, surroundings=surroundings, others=FIELDS)
        return define_agent(
            name,
            source=f"{path}:{line_of(name, text)}",
            options=checked,
            executor=executor,
            **fields,
        )
    except AgentsFileError:
        raise
    except ConfigurationError as error:
        key = error.key if isinstance(error, AgentSettingError) else ""
        raise AgentsFileError(source, f"line {line_of(name, text, key)}: {error}") from None


def _load_reference(source: str, reference: str) -> Any:
    """Return the object that ``module:name`` refers to.

    Raises:
        ValueError: it is no such reference, or the module has no such name.
        AgentsFileError: the module cannot be imported.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise ValueError('write "module:name"')
    value: Any = _import_module(module_name, source)
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if value is None:
        raise ValueError(f"there is no {attribute!r} in module {module_name!r}")
    return value


#: The table of the TOML file beside `[orchestra]`; `settings.TABLES` has it.
ROUTING_TABLE = "routing"


def load_routing() -> RoutingTable:
    """Return the routing table with the overrides in `[routing]` of the TOML file that the settings come from.

    Raises:
        ConfigurationError: the file cannot be read, or a row in it is wrong.
    """
    path = config_file()
    if path is None:
        return RoutingTable()
    try:
        overrides = tomllib.loads(path.read_text(encoding="utf-8")).get(ROUTING_TABLE)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot read the routing table from {path}: {error}") from error
    if overrides is not None and not isinstance(overrides, dict):
        raise ConfigurationError(f"cannot read the routing table from {path}: [routing] must be a table")
    try:
        return RoutingTable.load(overrides)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
