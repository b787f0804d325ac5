"""What the scripted provider answers, so that the example runs without a key and without a network."""

from __future__ import annotations

from orchestrator.testing import ByInstructions, Call, Request, Say, Script

QUESTION = "Why does a lost worker not lose its work?"


def _report(request: Request) -> Say:
    return Say(
        calls=[
            Call(
                "final_result",
                question=QUESTION,
                answer="A lease tells that the worker is lost, and the journal of its run tells what was done.",
                findings=[
                    {"claim": "A run is held by a lease that its worker renews.", "source": "leases.md"},
                    {"claim": "A recorded step is not executed again.", "source": "journals.md"},
                ],
                doubts=[line for line in request.last.splitlines() if line.startswith("- ")],
            )
        ]
    )


def _research(request: Request) -> Say:
    source = "leases.md" if "noticed" in request.messages[0].text else "journals.md"
    return Say(calls=[Call("read_source", name=source)])


SCRIPT = ByInstructions(
    {
        "You lead research": Script(
            Say(
                calls=[
                    Call("delegate", agent="researcher", task="How is a lost worker noticed?", wait=True),
                    Call("delegate", agent="researcher", task="What happens to its work then?", wait=True),
                ]
            ),
            lambda request: Say(
                calls=[Call("delegate", agent="critic", task=f"Check this:\n{request.last}", wait=True)]
            ),
            _report,
        ),
        "You research": Script(
            Say(calls=[Call("list_sources")]),
            _research,
            lambda request: Say(f"<response>It says: {request.last}</response>"),
        ),
        "You criticise": Script(
            Say(calls=[Call("read_source", name="leases.md")]),
            Say("<response>- Nobody says how long a lease lasts.</response>"),
        ),
    }
)
