"""The generated parts of the documentation; `make docs` writes them, `make docs-check` compares."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from generated_fields import Undocumented, meaning


def settings_table() -> str:
    """One row for each setting."""
    from orchestrator.config.settings import ENV_PREFIX, Settings

    rows = ["| setting | variable | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        # What depends on the machine or on the working directory is said in the description.
        shown = "" if field.default_factory or field.default in (None, ()) else f"`{field.default}`"
        rows.append(
            f"| `{name}` | `{ENV_PREFIX}{name.upper()}` | {shown} | {_said(name, field.description)} |"
        )
    return "\n".join(rows)


def exit_codes() -> str:
    """One row for each exit code of the commands."""
    from orchestrator.cli.exit_codes import MEANINGS

    rows = [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| exit code | meaning |", "| --- | --- |", *rows])


def keys_table() -> str:
    """One row for each Redis key."""
    from orchestrator.redisdb.all_keys import REGISTRY

    rows = ["| key | type | owner | lifetime | holds |", "| --- | --- | --- | --- | --- |"]
    rows += [
        f"| `{k.pattern}` | {k.type} | {k.owner} | {k.lifetime} | {_said(k.pattern, k.holds)} |"
        for k in REGISTRY
    ]
    return "\n".join(row.replace("`kind|id`", "`kind\\|id`") for row in rows)


def _said(name: str, words: str | None) -> str:
    """The words that explain something.

    Raises:
        Undocumented: there are none.
    """
    if not words:
        raise Undocumented(name)
    return words


def commands() -> str:
    """The help of every command."""
    from orchestrator.cli import main

    return "\n".join(_help(main, "orchestra", 2))


#: Options that many commands have, with these words: the page names them once.
_COMMON = {
    "--json": "Print JSON.",
    "--redis-url": "Redis or Valkey of the ledger. Default: ORCHESTRA_REDIS_URL, else the stack on the data folder.",
    "--data": "Data folder. Default: ORCHESTRA_DATA, else ./.orchestra.",
}


def common_options() -> str:
    """One row for each option that the help of a command leaves out on the page."""
    rows = [f"| `{name}` | {words} |" for name, words in (*_COMMON.items(), ("--help, -h", "Show the help."))]
    return "\n".join(["| option | meaning |", "| --- | --- |", *rows])


def _is_common(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and _COMMON.get(option.opts[0]) == option.help


def _help(command: click.Command, path: str, level: int) -> Iterator[str]:
    shown = copy.copy(command)
    shown.params = [option for option in command.params if not _is_common(option)]
    shown.add_help_option = False
    context = click.Context(shown, info_name=path, max_content_width=84, terminal_width=84)
    _said(path, command.help)
    for option in command.get_params(click.Context(command)):
        if isinstance(option, click.Option):
            _said(f"{path} --{option.name}", option.help)
    marks = [option.opts[0] for option in command.params if _is_common(option)]
    also = f"\nAlso: {', '.join(f'`{mark}`' for mark in marks)}.\n" if marks else ""
    yield f"{'#' * level} `{path}`\n\n```text\n{shown.get_help(context)}\n```\n{also}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from _help(child, f"{path} {name}", min(level + 1, 4))


def json_documents() -> str:
    """Which command prints which JSON document, and the fields of each."""
    from orchestrator.cli.documents.base import Document
    from orchestrator.cli.documents.table import DOCUMENTS

    rows = ["| command | prints |", "| --- | --- |"]
    for command, models in DOCUMENTS.items():
        second = "--text" if command == "watch" else "--wait"
        ways = ("", f", or with `{second}` ", ", or with `--dry-run` ")
        printed_by = "".join(way + _link(model) for way, model in zip(ways, models, strict=False))
        rows.append(f"| `{command}` | {printed_by} |")
    models: dict[str, type[Document]] = {}
    for printed in DOCUMENTS.values():
        for model in printed:
            _collect(model, models)
    return "\n".join([*rows, "", *(_fields(model) for model in models.values())])


def _link(model: type[Any]) -> str:
    # What is no document of a command is a class of Python, on the page of these.
    page = "" if hasattr(model, "model_fields") else "python.md"
    return f"[{model.__name__}]({page}#{model.__name__.lower()})"


def _collect(model: type[Any], found: dict[str, type[Any]]) -> None:
    if model.__name__ in found:
        return
    found[model.__name__] = model
    for field in model.model_fields.values():
        for inner in _models_in(field.annotation):
            _collect(inner, found)


def _models_in(annotation: Any) -> Iterator[type[Any]]:
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _fields(model: type[Any]) -> str:
    rows = [
        f"## {model.__name__}",
        "",
        _said(model.__name__, model.__doc__),
        "",
        "| field | type | meaning |",
        "| --- | --- | --- |",
    ]
    rows += [
        f"| `{name}` | {_type(f.annotation)} | {_said(f'{model.__name__}.{name}', _meaning(model, name, f.description))} |"
        for name, f in model.model_fields.items()
    ]
    return "\n".join([*rows, ""])


def _meaning(model: type[Any], name: str, description: str | None) -> str | None:
    """The meaning of a field: as the document says it, or the model of ours that it prints."""
    if description or model.source is None or name not in model.source.fields:
        return description
    owner, field = model.source.model, model.source.fields[name]
    own = getattr(owner, "model_fields", {}).get(field)
    if own is not None and own.description:
        return str(own.description)
    if isinstance(found := getattr(owner, field, None), property):
        return found.__doc__
    words = meaning(owner, field)
    return words[:1].upper() + words[1:]


def _type(annotation: Any) -> str:
    simple = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null", Any: "any"}
    if annotation in simple:
        return simple[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"object of {_type(inner[1])}"
    if origin is Annotated:
        return _type(inner[0])
    if inner:
        return " or ".join(map(_type, inner))
    return _link(annotation)


def pictures() -> str:
    """The pictures of each command, side by side with nothing else."""
    from command_pictures import COMMANDS, WIDTHS

    parts = []
    for name, command in COMMANDS.items():
        shown = command.translate({ord("{"): None, ord("}"): None})
        parts.append(f"## {name.replace('-', ' ')}\n")
        parts += [
            f"![`{shown}` at {width} columns](../images/commands/{name}-{width}.svg)\n" for width in WIDTHS
        ]
    return "\n".join(parts)
