"""What the scripted provider answers, so that the example runs without a key and without a network."""

from __future__ import annotations

import re

from orchestrator.testing import ByInstructions, Call, Request, Say, Script


def _delegate(request: Request) -> Say:
    folder = next(line for line in request.messages[0].text.splitlines() if line.startswith("/"))
    return Say(calls=[Call("delegate", agent="lead", task=folder, wait=True)])


def _judge(request: Request) -> Say:
    modules = list(dict.fromkeys(re.findall(r"[\w/.-]+\.py", request.last)))[:3]
    verdict = "change" if modules else "accept"
    return Say(
        calls=[
            Call(
                "final_result", verdict=verdict, reason="the review names these modules first", worst=modules
            )
        ]
    )


SCRIPT = ByInstructions({"You judge code reviews": Script(_delegate, _judge)})
