"""What is encrypted for an agent is read by that agent's worker and by nothing before it, or refused with a visible reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope import codec
from orchestrator.envelope.bodies import Message, Query, Task, TaskCompletion, TaskDelegation
from orchestrator.envelope.encryption import Recipient
from orchestrator.envelope.model import AgentMessage, Body, Header, Party
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.opaque import EncryptedBody
from orchestrator.envelope.signature import sign_message
from orchestrator.envelope.validate import check
from orchestrator.ids import new_message_id
from orchestrator.keyring.store import KeyStore
from orchestrator.ledger import Session, SessionState
from orchestrator.router.deadletters.store import DeadLetter
from tests.everything_in_redis import leaks
from tests.hosts import bring_keys
from tests.kit import Kit
from tests.waiting import wait_until

SECRET = "swordfish"
CONVERSATION = "0b7a0a52-5a4e-4f7e-8d55-2f9a3d1c7e10"


@dataclass
class Scene:
    """The external program `partner`, our agent `vault`, and a router on a host that has neither's keys."""

    kit: Kit
    router_data: Path

    def message(
        self,
        body: Body,
        *,
        chain: tuple[str, ...] = (),
        recipient: str = "vault",
        conversation: str = CONVERSATION,
    ) -> AgentMessage:
        header = Header(
            message_id=new_message_id(),
            timestamp=Timestamp.from_ms(int(self.kit.redis.time()[0]) * 1000),
            sender=Party(agent_name="partner", agent_role="coordinator"),
            recipient=Party(agent_name=recipient, agent_role="specialist"),
            correlation_id=conversation,
            conversation_chain=chain,
        )
        return AgentMessage(header=header, body=body)

    def send(self, message: AgentMessage) -> str:
        """`orchestra message send --sign partner --encrypt`; the message-id."""
        result = self.kit.orchestra(
            "message", "send", "-", "--sign", "partner", "--encrypt", stdin=codec.encode(message)
        )
        assert result.exit_code == 0, result.output
        return message.header.message_id

    def publish(self, message: AgentMessage) -> None:
        """Append any message, signed by `partner`."""
        now_ms = int(self.kit.redis.time()[0]) * 1000
        data = sign_message(message, self.kit.parts.keyring.signer("partner"), now_ms=now_ms)
        kind = message.body.type
        self.kit.publish(data, kind, self.kit.parts.routing[kind].priority)

    def seal(self, message: AgentMessage) -> AgentMessage:
        ring = self.kit.parts.keyring
        recipient = Recipient(*ring.recipient(message.header.recipient.agent_name))
        return self.kit.parts.encrypter.seal(message, recipient=recipient)

    def route(self, data: Path | None = None) -> list[DeadLetter]:
        """One round of a router; all dead letters so far."""
        self.kit.beside(data=data or self.router_data, registration_patience_s=0).route()
        return self.kit.dead()

    def work(self) -> list[str]:
        """Execute what the router made ready."""
        return [self.kit.execute(run) for run, _ in self.kit.sent.runs]

    def session(self) -> Session:
        (session,) = self.kit.ledger.roots(0)
        return session

    def errors(self) -> list[tuple[str, str, str]]:
        """Sender, recipient and text of every error in the streams, which is what the audit trail gets."""
        found = []
        for envelope in self.kit.published("error"):
            message = check(envelope).message
            header: Any = message.header
            body: Any = self.kit.parts.opener.open(message).body
            found.append((header.sender.agent_name, header.recipient.agent_name, body.message))
        return found


@pytest.fixture
def scene(kit: Kit, tmp_path: Path) -> Scene:
    @kit.agent("vault")
    def vault(ctx: Any) -> str:
        if ctx.cause == "start":
            return f"was told {len(ctx.prompt)} characters"
        return " | ".join(f"{callback.kind}: {callback.text}" for callback in ctx.callbacks)

    kit.parts.agents.announce([AgentRecord(name="partner", role="coordinator", executor="foreign")])
    keyring = kit.parts.keyring
    for name in ("vault", "partner", "router"):
        keyring.signer(name)
    keyring.offer_encryption("vault")
    keyring.offer_encryption("partner")
    folder = tmp_path / "router-host"
    bring_keys(keyring.store, KeyStore(folder / "keys"), "router")
    return Scene(kit, folder)


def task(text: str = f"the word is {SECRET}") -> TaskDelegation:
    return TaskDelegation(task=Task(task_id="T-1", title=f"Keep {SECRET}", description=text))


def test_a_secret_task_is_read_by_its_agent_alone(scene: Scene) -> None:
    """The router starts it by its header; neither streams nor ledger ever hold it in clear."""
    scene.send(scene.message(task()))
    assert scene.route() == []
    session = scene.session()
    assert (session.title, session.sealed, session.delegator) == ("(encrypted)", True, "partner")
    assert scene.work() == ["finished"]
    said = f"was told {len(f'the word is {SECRET}')} characters"
    assert scene.kit.ledger.result(session.id) == (SessionState.FINISHED, said)
    assert leaks(scene.kit.redis, SECRET) == []


def test_a_router_that_has_the_key_does_not_use_it_either(scene: Scene) -> None:
    """One host for everything is no reason to write secrets down."""
    scene.send(scene.message(task()))
    assert scene.route(scene.kit.settings.data) == []
    assert scene.work() == ["finished"]
    assert leaks(scene.kit.redis, SECRET) == []


@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_a_large_secret_is_compressed_or_stored_and_still_arrives(scene: Scene, size: int) -> None:
    """All three forms stand inside each other."""
    text = SECRET + " 0123456789" * (size // 11)
    scene.send(scene.message(task(text)))
    assert scene.route() == []
    assert scene.work() == ["finished"]
    said = f"was told {len(text)} characters"
    assert scene.kit.ledger.result(scene.session().id) == (SessionState.FINISHED, said)
    assert leaks(scene.kit.redis, SECRET) == []


def test_secret_questions_and_words_reach_a_session_unread(scene: Scene) -> None:
    """They stand in its queue as they came, and its next run reads them."""
    launch = scene.send(scene.message(task()))
    scene.route()
    scene.work()
    scene.send(scene.message(Message(content=f"it was {SECRET}"), chain=(launch,)))
    scene.send(scene.message(Query(query_type="ask-for-help", subject=f"not {SECRET}?"), chain=(launch,)))
    assert scene.route() == []
    assert leaks(scene.kit.redis, SECRET) == []
    assert scene.kit.play(scene.session().id) == "finished"
    state, said = scene.kit.ledger.result(scene.session().id)
    assert (state, sorted(str(said).split(" | "))) == (
        SessionState.FINISHED,
        [f"message: it was {SECRET}", f"query: not {SECRET}?"],
    )


def cut(scene: Scene) -> AgentMessage:
    message = scene.seal(scene.message(task()))
    assert isinstance(message.body, EncryptedBody)
    end = message.body.xml.rindex("</xenc:CipherValue>")
    xml = message.body.xml[: end - 8] + message.body.xml[end:]
    return message.model_copy(update={"body": EncryptedBody(type="task-delegation", xml=xml)})


def swapped(scene: Scene) -> AgentMessage:
    other = scene.seal(scene.message(task("another task")))
    return scene.message(task()).model_copy(update={"body": other.body})


def stolen(scene: Scene) -> AgentMessage:
    """Somebody else's secret for the same agent, in a message of one's own with the id of the other's."""
    mine = scene.message(task())
    theirs = mine.header.model_copy(update={"sender": Party(agent_name="boss", agent_role="coordinator")})
    secret = scene.seal(mine.model_copy(update={"header": theirs}))
    return mine.model_copy(update={"body": secret.body})


def unknown_key(scene: Scene) -> AgentMessage:
    stranger = KeyStore(scene.router_data / "stranger", "Ed25519")
    record = stranger.create("vault", "encrypt")
    public = stranger.private_key(record.key_id).public_key()
    recipient = Recipient(record.key_id, public)  # type: ignore[arg-type]
    return scene.kit.parts.encrypter.seal(scene.message(task()), recipient=recipient)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (cut, "altered, cut"),
        (swapped, "made for another message"),
        (stolen, "made for another message"),
        (unknown_key, "not in this data folder"),
    ],
)
def test_what_cannot_be_decrypted_is_a_failure_that_everybody_hears_of(
    scene: Scene, build: Any, reason: str
) -> None:
    """The session fails with the reason, and an error in the streams says so to whoever sent the task."""
    scene.publish(build(scene))
    assert scene.route() == []
    assert scene.work() == ["failed"]
    state, why = scene.kit.ledger.result(scene.session().id)
    assert state is SessionState.FAILED
    assert reason in str(why)
    ((sender, recipient, text),) = scene.errors()
    assert (sender, recipient) == ("vault", "partner")
    assert reason in text


def test_a_word_that_cannot_be_decrypted_does_not_stop_its_session(scene: Scene) -> None:
    """The agent is told that it missed something, the sender that it was not heard."""
    launch = scene.send(scene.message(task()))
    scene.route()
    scene.work()
    other = scene.seal(scene.message(Message(content="one")))
    word = scene.message(Message(content="two"), chain=(launch,)).model_copy(update={"body": other.body})
    scene.publish(word)
    assert scene.route() == []
    assert scene.kit.play(scene.session().id) == "finished"
    assert "this message from partner cannot be read" in str(scene.kit.answer(scene.session().id))
    (error,) = scene.errors()
    assert error[:2] == ("vault", "partner")
    assert word.header.message_id in error[2]
    assert "made for another message" in error[2]


def test_a_report_is_read_where_its_key_is_and_refused_where_it_is_not(scene: Scene) -> None:
    """What changes the ledger has to be read by the router, so the router needs the recipient's key."""

    @scene.kit.agent("boss", role="coordinator")
    def boss(ctx: Any) -> str:
        if ctx.cause == "start":
            ctx.delegate("partner", "find out")
            return "waiting"
        return f"heard {ctx.callbacks[0].result}"

    scene.kit.parts.keyring.offer_encryption("boss")
    root = scene.kit.submit("boss")
    scene.route()
    assert scene.work() == ["idle"]
    scene.route()
    (child,) = scene.kit.children(root)
    done = TaskCompletion(task_id=child.id, status="success", summary="done", result=SECRET)
    report = scene.message(done, chain=child.chain, recipient="boss", conversation=child.correlation)
    scene.publish(scene.seal(report))
    (outgoing,) = scene.route()
    assert outgoing.rule == "payload"
    assert "not in this data folder" in outgoing.reason
    assert ("router", "partner") in {error[:2] for error in scene.errors()}
    assert scene.kit.orchestra("dlq", "replay", outgoing.id).exit_code == 0
    assert scene.route(scene.kit.settings.data) == []
    assert scene.kit.play(root) == "finished"
    assert scene.kit.ledger.result(root) == (SessionState.FINISHED, f"heard {SECRET}")


def test_an_encrypted_dead_letter_goes_through_after_the_fix(scene: Scene) -> None:
    """It is published as it was: an encrypted body fits into its own message only."""
    scene.kit.parts.agents.withdraw("vault")
    scene.publish(scene.seal(scene.message(task(), recipient="vault")))
    letters: list[DeadLetter] = []
    while not letters:
        letters = scene.route()
    assert letters[0].rule == "recipient-unknown"
    scene.kit.parts.agents.announce([scene.kit.catalogue["vault"].record])
    assert scene.kit.orchestra("dlq", "replay", letters[0].id).exit_code == 0

    def work() -> list[str]:
        assert scene.route() == []
        return scene.work()

    assert wait_until(work, "the run of the replayed message") == ["finished"]


def test_nothing_is_encrypted_without_a_signature(scene: Scene) -> None:
    """Anybody can encrypt to a public key; the signature says who did."""
    result = scene.kit.orchestra(
        "message", "send", "-", "--encrypt", stdin=codec.encode(scene.message(task()))
    )
    assert result.exit_code == 2
    assert "--sign" in result.stderr
