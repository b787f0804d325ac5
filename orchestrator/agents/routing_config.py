"""The routing table of this stack: the built-in rows with what the user's TOML file says differently."""

from __future__ import annotations

import tomllib

from orchestrator.config.settings import config_file
from orchestrator.errors import ConfigurationError
from orchestrator.policy.routing import RoutingTable

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
