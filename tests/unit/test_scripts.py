"""What a script is asked for, and what is in it."""

from __future__ import annotations

import json

import pytest

from orchestrator.redisdb.scripts import names, request, source


def test_what_is_empty_is_left_out_of_a_request() -> None:
    """To Lua, null, 0 and an empty text are true, and an empty list is an empty object."""
    asked = request(a="", b=0, c=[], d={}, e=None, f=False, g="x", h={"kept": ""})
    assert json.loads(asked) == {"g": "x", "h": {"kept": ""}}


@pytest.mark.parametrize("name", names())
def test_a_script_has_what_it_uses_of_the_shared_parts(name: str) -> None:
    """What is not there would be a global variable, which no script may have; what is not used costs each call."""
    text = source(name)
    used = [
        part for part in ("count", "fields", "in_shard", "is_approval") if f"local function {part}(" in text
    ]
    assert all(text.count(part) > 1 for part in used)
