"""The table of verbs: each request as a validator of outside input, as JSON schema and as what is kept of it."""

from __future__ import annotations

import json
import reprlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Required

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import Doc, TypedDict

from orchestrator.errors import InputError
from orchestrator.operations import requests
from orchestrator.operations.values import Mark

#: What pydantic says in more words, by its type of error.
_PLAINER: Final = {
    "string_type": " is not text; give a str",
    "sequence_str": " is one text; give a list of texts",
}


@dataclass(frozen=True)
class Operation:
    """Operation of one verb."""

    name: str
    #: The TypedDict of its request.
    request: type[Any]
    #: Under which name a program has what the session's method of this name returns; empty: the gateway says how it is
    #: carried out.
    answer: str = ""

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.request)

    @cached_property
    def _metadata(self) -> dict[str, tuple[Any, ...]]:
        hints = typing.get_type_hints(self.request, include_extras=True)
        return {name: _metadata(hint) for name, hint in hints.items()}

    @cached_property
    def marks(self) -> dict[str, frozenset[Mark]]:
        """The marks of each field, by name."""
        return {
            name: frozenset(one for one in found if isinstance(one, Mark))
            for name, found in self._metadata.items()
        }

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The fields that must be given, in the order of their declaration."""
        return tuple(self.schema.get("required", ()))

    def read(self, values: Mapping[str, Any]) -> Any:
        """Return a request with these values; fields that are None are left out.

        Raises:
            InputError: a field is missing, unknown or wrong.
        """
        given = {name: value for name, value in values.items() if value is not None}
        try:
            return self._adapter.validate_python(given)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            first = next((one for one in found if one["type"] == "value_error"), found[0])
            where = next((str(part) for part in first["loc"]), "")
            if first["type"] == "extra_forbidden":
                known = ", ".join(self.marks) or "none"
                raise InputError(f"{self.name}: there is no field {where!r} (there are: {known})") from None
            if first["type"] == "missing":
                raise InputError(f"{self.name}: {where} is missing") from None
            if first["type"] == "value_error":  # a sentence of ours
                raise InputError(str(first["ctx"]["error"])) from None
            value, message = reprlib.repr(given.get(where)), first["msg"][:1].lower() + first["msg"][1:]
            why = _PLAINER.get(first["type"], f": {message}")
            if first["type"] == "literal_error":
                why = f": choose from {first['ctx']['expected'].replace(' or ', ', ')}"
            raise InputError(f"{self.name}: {where} = {value}{why}") from None

    def dump(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as JSON values; what is absent stays absent."""
        dumped: dict[str, Any] = self._adapter.dump_python(request, mode="json")
        return {name: value for name, value in dumped.items() if value is not None}

    def options(self, request: Mapping[str, Any]) -> str:
        """Return what a launched session keeps of its request, as JSON with sorted names; empty without options.

        Two requests under one key launch the same session, so they must agree in it.
        """
        kept = {
            name: value
            for name, value in request.items()
            if name not in self.required and not self.marks[name] & {Mark.ENCRYPTED, Mark.THIS_CALL}
        }
        return json.dumps(self.dump(kept), sort_keys=True, separators=(",", ":")) if kept else ""

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the request."""
        schema = self._adapter.json_schema()
        fields = schema.get("properties", {})
        schema["properties"] = {
            name: {
                "description": next((one.documentation for one in found if isinstance(one, Doc)), ""),
                **_without_null(fields[name]),
            }
            for name, found in self._metadata.items()
        }
        del schema["title"]
        return schema

    @cached_property
    def for_models(self) -> Operation:
        """This verb with the fields that a model may set."""
        hints = typing.get_type_hints(self.request, include_extras=True)
        shown = {name: hint for name, hint in hints.items() if Mark.FOR_MODELS in self.marks[name]}
        # A model may write a number as a text.
        make: Any = TypedDict
        request = with_config(ConfigDict(extra="forbid"))(make(self.request.__name__, shown, total=False))
        request.__doc__ = self.request.__doc__
        return Operation(self.name, request)


def _metadata(hint: Any) -> tuple[Any, ...]:
    """Return the metadata annotated at a type, also within `Required` and beside None."""
    if typing.get_origin(hint) is Annotated:
        return (*hint.__metadata__, *_metadata(hint.__origin__))
    if typing.get_origin(hint) is Required or type(None) in typing.get_args(hint):
        return tuple(mark for inner in typing.get_args(hint) for mark in _metadata(inner))
    return ()


def _without_null(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a field that is left out rather than null."""
    found = {name: value for name, value in field.items() if name not in ("title", "default")}
    others = [one for one in found.get("anyOf", ()) if one != {"type": "null"}]
    if len(others) == 1:
        del found["anyOf"]
        found = {**others[0], **found}
    elif others:
        found["anyOf"] = others
    return found


#: What a program that an agent started may ask of its session, in the order in which an agent uses it.
OF_SESSIONS: Final = {
    one.name: one
    for one in (
        Operation("delegate", requests.Delegate, answer="session"),
        Operation("wait", requests.Wait),
        Operation("ask", requests.Ask),
        Operation("answer", requests.Answer),
        Operation("raise_callback", requests.RaiseCallback),
        Operation("request_approval", requests.RequestApproval),
        Operation("decision", requests.Decide),
        Operation("reply", requests.Reply, answer="accepted"),
        Operation("message", requests.Message, answer="message"),
        Operation("status", requests.Status),
        Operation("results", requests.Results),
        Operation("read_result", requests.ReadResult),
        Operation("agents", requests.ListAgents),
        Operation("session", requests.ShowSession),
    )
}
DELEGATE: Final = OF_SESSIONS["delegate"]
ASK: Final = OF_SESSIONS["ask"]
MESSAGE: Final = OF_SESSIONS["message"]
STATUS: Final = OF_SESSIONS["status"]

#: What only the agent itself may ask, in the process of its run.
DELEGATE_ALL: Final = Operation("delegate_all", requests.DelegateAll)
CALL: Final = Operation("call", requests.Call)
ASK_LATER: Final = Operation("ask_later", requests.AskLater)
REQUEST_REVIEW: Final = Operation("request_review", requests.RequestReview)
ESCALATE: Final = Operation("escalate", requests.Escalate)

#: What begins roots.
SUBMIT: Final = Operation("submit", requests.Submit)
FORK: Final = Operation("fork", requests.Fork)

#: What a person's assistant may ask for the operator.
OF_OPERATOR: Final = {
    one.name: one
    for one in (
        Operation("agents", requests.ListAllAgents),
        SUBMIT,
        Operation("plan", requests.SubmitPlan),
        Operation("wait", requests.AwaitSession),
        Operation("sessions", requests.ListSessions),
        Operation("status", requests.ShowTree),
        Operation("questions", requests.ListQuestions),
        Operation("reply", requests.AnswerQuestion),
        Operation("approvals", requests.ListApprovals),
        Operation("resume", requests.Resume),
        Operation("stop", requests.Stop),
    )
}
#: What it may say for the person in addition, where the person allows it.
OF_APPROVER: Final = {
    "approve": Operation("approve", requests.Approve),
    "deny": Operation("deny", requests.Deny),
}

#: Every verb of an agent, a program that it started, or a user.
OPERATIONS: Final = OF_SESSIONS | {
    one.name: one for one in (DELEGATE_ALL, CALL, ASK_LATER, REQUEST_REVIEW, ESCALATE, SUBMIT, FORK)
}


def operation_of_sessions(name: str) -> Operation:
    """The verb of that name.

    Raises:
        InputError: there is none.
    """
    found = OF_SESSIONS.get(name)
    if found is None:
        raise InputError(f"there is no operation {name!r} (there are: {', '.join(OF_SESSIONS)})")
    return found
