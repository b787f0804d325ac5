"""The generated parts of the documentation; `make docs` writes them, `make docs-check` compares."""

from __future__ import annotations

from collections.abc import Iterator

import click


def settings_table() -> str:
    """One row for each setting."""
    from orchestrator.settings import ENV_PREFIX, Settings

    rows = ["| setting | variable | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        # What depends on the machine or on the working directory is said in the description.
        shown = "" if field.default_factory or field.default in (None, ()) else f"`{field.default}`"
        rows.append(f"| `{name}` | `{ENV_PREFIX}{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(rows)


def keys_table() -> str:
    """One row for each Redis key."""
    from orchestrator.redisdb.keys import REGISTRY

    rows = ["| key | type | owner | lifetime | holds |", "| --- | --- | --- | --- | --- |"]
    rows += [f"| `{k.pattern}` | {k.type} | {k.owner} | {k.lifetime} | {k.holds} |" for k in REGISTRY]
    return "\n".join(row.replace("`kind|id`", "`kind\\|id`") for row in rows)


def commands() -> str:
    """The help of every command."""
    from orchestrator.cli import main

    return "\n".join(_help(main, "orchestra", 2))


def _help(command: click.Command, path: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
    yield f"{'#' * level} `{path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _help(child, f"{path} {name}", min(level + 1, 4))
