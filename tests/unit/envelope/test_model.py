"""The model: what it takes, what it refuses, and the order of moments."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal

import pytest
from pydantic import TypeAdapter, ValidationError

from orchestrator.envelope.bodies import Message, Metric, StatusUpdate, Task, TaskDelegation
from orchestrator.envelope.model import AgentMessage, Header, Party, Signature
from orchestrator.envelope.model_values import Hours, Name, Percentage, Timestamp
from orchestrator.envelope.opaque import EncryptedBody

ID = "b6f1a1de-6a0c-4d4e-9d5b-0f3f6a1c2e01"
OTHER = "0d9c3b52-0f0e-4a57-8f0a-3a4d1c9b7e02"


def header(**changes: object) -> Header:
    """A header with what is required, and ``changes``."""
    return Header.model_validate(
        {
            "message_id": ID,
            "timestamp": "2026-01-31T09:30:00Z",
            "sender": {"agent_name": "lead", "agent_role": "coordinator"},
            "recipient": {"agent_name": "reviewer", "agent_role": "specialist"},
            **changes,
        }
    )


def test_models_are_frozen() -> None:
    """A message that was signed cannot change afterwards."""
    message = AgentMessage(header=header(), body=Message(content="x"))
    with pytest.raises(ValidationError, match="frozen"):
        message.header = header()  # type: ignore[misc]


def test_models_survive_copying_pickling_and_json() -> None:
    """Whatever moves objects about gives back an equal one."""
    body = TaskDelegation(
        task=Task(task_id="t", title="T", description="\0\r\x1b", estimated_effort_hours=Decimal("2.50"))
    )
    message = AgentMessage(header=header(), body=body)
    assert pickle.loads(pickle.dumps(message)) == message
    assert copy.deepcopy(message) == message
    assert AgentMessage.model_validate_json(message.model_dump_json()) == message
    assert AgentMessage.model_validate(message.model_dump()) == message


def test_a_message_without_a_correlation_id_starts_its_own_conversation() -> None:
    """Ids are compared in lower case."""
    assert AgentMessage(header=header(), body=Message(content="")).conversation_id == ID
    named = header(correlation_id=OTHER.upper())
    assert AgentMessage(header=named, body=Message(content="")).conversation_id == OTHER


@pytest.mark.parametrize(
    "changes",
    [
        {"message_id": "00000000-0000-0000-0000-000000000000"},
        {"message_id": f"{ID}\n"},
        {"timestamp": "2026-01-31T09:30:00"},
        {"timestamp": "2026-02-30T09:30:00Z"},
        {"expiration": "2026-01-31T09:30:00Z"},
        {"expiration": "2026-01-31T10:29:59+01:00"},
        {"conversation_chain": [OTHER, OTHER.upper()]},
        {"conversation_chain": [ID]},
        {"priority": "urgent"},
        {"retry_policy": {"max_attempts": 0, "backoff_strategy": "linear", "timeout_seconds": 1}},
        {"sender": {"agent_name": "\u200b", "agent_role": "coordinator"}},
        {"sender": {"agent_name": "a\x00b", "agent_role": "coordinator"}},
        {"mood": "good"},
    ],
    ids=str,
)
def test_a_header_that_would_not_be_valid_cannot_be_built(changes: dict[str, object]) -> None:
    """The model refuses what layer 2 would refuse."""
    with pytest.raises(ValidationError):
        header(**changes)


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    """An answer with broken text in it still travels."""
    assert Message(content="a\ud83cb").content == "a\ufffdb"


def test_names_lose_the_white_space_that_does_not_count() -> None:
    """Surrounding and repeated XML white space goes; other scripts' spaces stay."""
    adapter = TypeAdapter[str](Name)
    assert adapter.validate_python("  code \n\t reviewer ") == "code reviewer"
    assert adapter.validate_python("a\u00a0b") == "a\u00a0b"


def test_a_leaf_can_be_given_as_a_string() -> None:
    """Text without attributes needs no model around it."""
    update = StatusUpdate.model_validate({"task_id": "t", "status": "blocked", "blockers": ["no database"]})
    assert update.blockers[0].text == "no database"
    assert Metric.model_validate("1") == Metric(text="1")


def test_a_signature_value_is_base64_with_padding() -> None:
    """White space is dropped, anything else that does not belong is refused."""
    fields = {
        "algorithm": "Ed25519",
        "signer": "lead",
        "timestamp": "2026-01-31T09:30:00Z",
        "public_key_id": "k",
    }
    assert Signature.model_validate({**fields, "signature_value": "QUI\n="}).signature_value == "QUI="
    for value in ("", "QUI", "QU*=", "=QUI"):
        with pytest.raises(ValidationError):
            Signature.model_validate({**fields, "signature_value": value})


@pytest.mark.parametrize("text", ["101%", "1e1", "-1", "05", "١", "5 %"])
def test_a_percentage_is_between_0_and_100(text: str) -> None:
    """Anything else is refused, also what only looks like a number."""
    with pytest.raises(ValidationError):
        TypeAdapter[str](Percentage).validate_python(text)


@pytest.mark.parametrize(
    ("given", "kept"), [("2.50", "2.50"), ("1E+3", "1000"), ("-0", "0"), ("0.000001", "0.000001")]
)
def test_hours_keep_their_decimals(given: str, kept: str) -> None:
    """What is written is plain decimal notation."""
    assert format(TypeAdapter[Decimal](Hours).validate_python(given), "f") == kept


def test_encrypted_data_is_kept_in_canonical_form() -> None:
    """However it was written, one EncryptedData has one text in the model."""
    ns = "http://www.w3.org/2001/04/xmlenc#"
    one = f'<x:EncryptedData xmlns:x="{ns}"><x:CipherData><x:CipherValue>QUI=</x:CipherValue></x:CipherData></x:EncryptedData>'
    two = one.replace(f' xmlns:x="{ns}"', f' unused="" xmlns:x="{ns}" xmlns:y="urn:y"').replace(
        ' unused=""', ""
    )
    assert EncryptedBody(type="query", xml=one) == EncryptedBody(type="query", xml=two)
    for broken in (
        "<a/>",
        "no xml",
        one.replace("QUI=", "QUI"),
        "<!DOCTYPE a>" + one,
        one.replace("CipherData", "X"),
    ):
        with pytest.raises(ValidationError):
            EncryptedBody(type="query", xml=broken)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2000-02-29T00:00:00.5-14:00", 951_832_800_500_000_000),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:00.12Z", 120_000_000),
        ("1970-01-01T00:00:00.1234567Z", 123_456_700),
    ],
)
def test_a_timestamp_is_an_instant(text: str, ns: int) -> None:
    """To the nanosecond, whatever the zone and however many decimals."""
    moment = Timestamp(text)
    assert moment == text
    assert moment.instant_ns == ns
    assert moment.instant_ms == ns // 1_000_000


def test_a_timestamp_comes_from_milliseconds() -> None:
    """And goes back to them."""
    assert Timestamp.from_ms(1_769_851_800_123) == "2026-01-31T09:30:00.123Z"
    assert Timestamp.from_ms(1_769_851_800_123).instant_ms == 1_769_851_800_123


def test_a_party_needs_a_known_role() -> None:
    """Roles are a closed list."""
    with pytest.raises(ValidationError):
        Party(agent_name="a", agent_role="manager")  # type: ignore[arg-type]
