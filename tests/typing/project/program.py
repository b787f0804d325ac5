"""A program of a user who checks types strictly: it submits work, waits for it and looks around."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from orchestrator import (
    AgentDefinition,
    AgentsFileError,
    Approval,
    ApprovalRefused,
    AsyncClient,
    Budget,
    Callback,
    ClaimLost,
    Client,
    Completion,
    ConfigurationError,
    CurrentSession,
    DamagedRecord,
    DecryptionError,
    EmptyPrompt,
    InputError,
    InvalidEnvelope,
    KeyInUse,
    KeyringError,
    LiveEvent,
    NoReply,
    NotGenuine,
    OrchestraError,
    PayloadError,
    PlanError,
    RunParked,
    RunSleeps,
    ServerUnavailable,
    Session,
    SessionDeleted,
    SessionFailed,
    SessionState,
    SessionStopped,
    Settings,
    Task,
    TaskFailed,
    UnknownAgent,
    UnknownSession,
    WouldDeadlock,
    WrongState,
    app,
    current_session,
    load_settings,
    parse_callbacks,
    tag_extract,
)


def use(settings: Settings) -> str:
    with Client(settings) as client:
        handle = client.submit("lead", "To be.", key="one", at=timedelta(hours=1), budget=Budget(usd=1))
        client.submit("lead", task=Task(description="To be."), priority="high")
        assert_type(handle.id, str)
        assert_type(handle.result(timeout_s=60), str)
        assert_type(handle.result(type=dict[str, int]), dict[str, int])
        assert_type(client.result(handle.id), str)
        tree = client.tree(handle.id)
        assert_type(tree, list[Session])
        assert_type(tree[0].state, SessionState)
        assert_type(tree[0].state is SessionState.FINISHED, bool)
        running = client.sessions(limit=10, where=lambda session: session.busy)
        assert_type(running, list[Session])
        for event in client.stream(handle.id):
            assert_type(event, LiveEvent)
            assert_type(event.text, str)
        for question in client.questions():
            assert_type(question, Callback)
            client.reply(question.id, "yes")
        for approval in client.approvals():
            assert_type(approval, Approval)
            client.approve(approval.id, digest=approval.digest)
        for found in client.history(handle.id):
            assert_type(found.text, str)
        for record in client.agents():
            assert_type(record.name, str)
        client.resume(handle.id, "And now?")
        assert_type(client.stop(handle.id).outcome == "ended", bool)
        completion: Completion = client.completion(handle.id)
        return completion.summary


async def use_it_from_asyncio() -> str:
    async with AsyncClient(redis_url="redis://127.0.0.1:6379/0") as client:
        handle = await client.submit("lead", "To be.")
        assert_type(await client.tree(handle.id), list[Session])
        assert_type(await handle.result(type=list[int]), list[int])
        async for event in client.stream(handle.id):
            assert_type(event, LiveEvent)
        return await handle.result(timeout_s=60)


def outcome(client: Client, session: str) -> str:
    try:
        return client.result(session, timeout_s=1.0)
    except (SessionStopped, SessionDeleted):
        return "ended"
    except SessionFailed as failed:
        return failed.state
    except (UnknownAgent, UnknownSession, EmptyPrompt) as wrong:
        return str(wrong)
    except (AgentsFileError, ConfigurationError):
        return "set up"
    except ServerUnavailable as gone:
        return "later" if gone.retryable else "never"
    except OrchestraError:
        return "something else"


def tool() -> str | None:
    session = current_session()
    assert_type(session, CurrentSession)
    session.status(50, "half of it")
    return session.raise_callback("Which?", context={"file": "a.py"})


def look(definition: AgentDefinition) -> None:
    assert_type(definition.name, str)
    assert_type(parse_callbacks("text"), tuple[Callback, ...])
    settings = load_settings(concurrency=2)
    assert_type(settings, Settings)
    assert_type(settings.concurrency, int)
    app.send_task("orchestrator.start_session", kwargs={"agent": "lead", "prompt": "One two."})


#: What a call of a client or of a context may raise.
RAISED: tuple[type[OrchestraError], ...] = (
    ApprovalRefused,
    ClaimLost,
    DamagedRecord,
    DecryptionError,
    InputError,
    InvalidEnvelope,
    KeyInUse,
    KeyringError,
    NoReply,
    NotGenuine,
    PayloadError,
    PlanError,
    RunParked,
    RunSleeps,
    TaskFailed,
    WouldDeadlock,
    WrongState,
)


def without_tag(text: str) -> str | None:
    return tag_extract(text, "response")
