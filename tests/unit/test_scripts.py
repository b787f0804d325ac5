"""What a script is asked for, and what is in it."""

from __future__ import annotations

import json
import re

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
    made = re.findall(r"^local function (\w+)\(", text, re.MULTILINE)
    kept = re.findall(r"^local (END|states|callback|freed|ended_how|affects_parent)\b", text, re.MULTILINE)
    assert all(text.count(part) > 1 for part in made)
    # What only a branch uses is made in it, unless it is state, which two branches would have twice.
    assert len(kept) == len(set(kept))
    if name == "commit":
        assert text.index("local function queue_again(") > text.index("if status == 'failed'")
