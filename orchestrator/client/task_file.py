"""Tasks in files: JSON, TOML, or the protocol's XML, as a whole message, a body or a task alone."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

from lxml import etree

from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.envelope.codec import decode_body
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.parse import DEFAULT_LIMITS, Unparsable, parse
from orchestrator.envelope.written import fill_in_ids
from orchestrator.errors import InputError, InvalidEnvelope
from orchestrator.operations.requests import Submit, SubmitOptions
from orchestrator.operations.table import SUBMIT

_PREFIX: Final = f"{{{NAMESPACE}}}"
_OWN: Final[Any] = {None: NAMESPACE}
#: What a file does not say: it belongs to the command.
_OF_THE_CALL: Final = frozenset({"agent", "prompt", "key", "at", "retry_for_s"})
#: Names of the options of a file that are none of the task itself.
_OPTIONS: Final = frozenset(SUBMIT.marks) - {"task", "title", *_OF_THE_CALL}


def read_task_file(path: Path) -> SubmitOptions:
    """Return the task in a file, by its ending: `.xml`, `.json` or `.toml`.

    JSON and TOML have the fields of a task, or a table `task` with them and options beside it. XML is an
    `<agent-message>`, its `<body type="task-delegation">` or its `<task>`; what only a sender knows may be left out.

    Raises:
        InputError: the file cannot be read, or is not a task; the sentence says where it is wrong.
    """
    try:
        octets = path.read_bytes()
        match path.suffix.lower():
            case ".xml":
                given = _from_xml(octets)
            case ".json":
                given = _table(json.loads(octets))
            case ".toml":
                given = _table(tomllib.loads(octets.decode()))
            case other:
                raise InputError(f"{other or 'no ending'}: name it .xml, .json or .toml")
        if others := [name for name in given if name in _OF_THE_CALL]:
            raise InputError(f"{others[0]} is given beside the file")
        request: Submit = SUBMIT.read({"agent": "", **given})
        del request["agent"]  # type: ignore[misc]
        return request
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except InvalidEnvelope as error:
        found = "; ".join(finding.sentence for finding in error.args[1][:3]) or str(error)
        raise InputError(f"{path} is no task: {found}") from error
    except InputError as error:
        raise InputError(f"{path} is no task: {error}") from None


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError("it is no table of fields")
    if isinstance(value.get("task"), dict):
        return value
    options = {name: value[name] for name in value if name in _OPTIONS}
    return {"task": {name: value[name] for name in value if name not in _OPTIONS}, **options}


def _from_xml(octets: bytes) -> dict[str, Any]:
    root = _parse(octets)
    name = etree.QName(root).localname
    header = root.find(f"{_PREFIX}header") if name == "agent-message" else None
    body = root.find(f"{_PREFIX}body") if name == "agent-message" else root
    if name == "task":
        body = etree.Element(f"{_PREFIX}body", {"type": "task-delegation"}, nsmap=_OWN)
        body.append(root)
    if body is None or body.get("type") != "task-delegation":
        raise InputError('give an <agent-message> or a <body> of type="task-delegation", or a <task>')
    fill_in_ids(body, "task-delegation")
    read = decode_body(etree.tostring(body))
    if not isinstance(read, TaskDelegation):
        raise InputError(
            "its body is compressed, encrypted or stored elsewhere; give the task as it was written"
        )
    given: dict[str, Any] = {"task": read.task}
    if header is not None:
        given["priority"] = _text(header, "priority")
        policy = header.find(f"{_PREFIX}retry-policy")
        if policy is not None:
            names = ("max-attempts", "backoff-strategy", "timeout-seconds")
            given["retry_policy"] = {name.replace("-", "_"): _text(policy, name) for name in names}
    return given


def _parse(octets: bytes) -> etree._Element:
    """Return the tree of a document, in our namespace where it names none."""
    try:
        root, _ = parse(octets, DEFAULT_LIMITS)
    except Unparsable as refused:
        raise InvalidEnvelope(refused.finding.sentence, (refused.finding,)) from None
    if not root.tag.startswith("{"):
        for element in root.iter("{}*"):  # those that are in no namespace
            element.tag = f"{_PREFIX}{element.tag}"
    return root


def _text(parent: etree._Element, name: str) -> str | None:
    return (parent.findtext(f"{_PREFIX}{name}") or "").strip() or None
