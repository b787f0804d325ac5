"""What a new option of a launch or a new type of message must reach; each test says where the missing part belongs."""

from __future__ import annotations

from dataclasses import fields
from inspect import getsource
from typing import get_args

from orchestrator.envelope.bodies import LaunchTerms
from orchestrator.envelope.message_types import MESSAGE_TYPES, DetailedBody
from orchestrator.messages.factory import IN_MESSAGES, Delivery
from orchestrator.operations.requests import LaunchOptions, ReferralOptions
from orchestrator.operations.table import OPERATIONS
from orchestrator.operations.values import Mark
from orchestrator.policy.callback import Callback
from orchestrator.policy.plan import Assignment
from orchestrator.worker.context.context import Context

#: What whoever launches a session keeps for itself; its message has `after` in the task, and `reason` in the body.
OF_THE_PARENT = {"agent", "key", "callback", "on_failure", "on_close", "after", "reason"}
NOT_IN_PLANS = {"title", "priority", "budget", "expires_s", "retry_policy", "time_limit_s"}
NOT_BY_MODELS = NOT_IN_PLANS - {"title"} | {"key", "callback", "on_failure", "on_close", "after"}
SENT_BY = {"task-delegation": "delegate", "status-update": "status", "query": "ask", "error": "report_error"}
SENT_BY["task-completion"] = "end_with"


def test_the_message_of_a_launch_repeats_its_options_and_so_do_plans() -> None:
    launches = ("delegate", "delegate_all", "call", "request_review", "escalate", "submit", "fork")
    marks = {name: found for one in launches for name, found in OPERATIONS[one].marks.items()}
    told = {name for name, found in marks.items() if not found & {Mark.ENCRYPTED, Mark.THIS_CALL}}
    repeated = {*IN_MESSAGES, *(field.name for field in fields(Delivery))}
    assert told - OF_THE_PARENT == repeated, "write it in factory.IN_MESSAGES, or in OF_THE_PARENT here"
    elements = {element for element, *_ in IN_MESSAGES.values()} | {"plan"}
    assert elements == LaunchTerms.model_fields.keys(), "write it in IN_MESSAGES and in LaunchTerms"
    assigned = Assignment.model_fields.keys() - {"role", "task", "sequence", "caller"}
    given = LaunchOptions.__annotations__.keys()
    assert assigned | NOT_IN_PLANS == given, "write it in policy.plan.Assignment, or in NOT_IN_PLANS here"
    lacking = given - ReferralOptions.__annotations__.keys()
    assert lacking == NOT_IN_PLANS - {"title", "priority"}, "write it in ReferralOptions, too"
    unmarked = {name for name, found in OPERATIONS["delegate"].marks.items() if Mark.FOR_MODELS not in found}
    assert unmarked == NOT_BY_MODELS, "mark it with Mark.FOR_MODELS, or write it in NOT_BY_MODELS here"


def test_agents_send_and_read_each_body_by_a_name_of_its_own() -> None:
    written = {name for name, row in MESSAGE_TYPES.items() if row.in_answers}
    assert written == SENT_BY.keys(), "say here by which method of Context a Python agent sends it"
    assert [name for name in SENT_BY.values() if not hasattr(Context, name)] == [], "give Context that method"
    source = getsource(Callback)
    unread = {one for one in get_args(DetailedBody) if f"-> {one.__name__} |" not in source}
    assert unread == set(), "give Callback a property for it"
    unnamed = {name for name, row in MESSAGE_TYPES.items() if row.heading and f"`{name}`" not in source}
    assert unnamed == set(), "name it among the kinds of a Callback"
