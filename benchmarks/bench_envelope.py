"""What an envelope costs: reading, validating and verifying against bare lxml; writing and signing against bare RSA.

Prints one JSON line for each figure; times in microseconds, ratios within this one run. The message is a
status-update or task-completion of about 2.5 KB with everything in its header, signed with RSA-2048.

    python benchmarks/bench_envelope.py
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lxml import etree

from orchestrator.envelope import codec, signature
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.validate import check
from orchestrator.envelope.xsd import schema
from orchestrator.keyring import algorithms
from orchestrator.keyring.certificates import KeyCertificate

NOW_MS = 1_769_851_800_000
HEADER = {
    "message_id": "b6f1a1de-6a0c-4d4e-9d5b-0f3f6a1c2e01",
    "timestamp": "2026-01-31T09:30:00.000Z",
    "sender": {"agent_name": "reviewer", "agent_role": "specialist", "tier": "sonnet"},
    "recipient": {"agent_name": "lead", "agent_role": "coordinator"},
    "correlation_id": "5e2b9a10-7c44-4c1c-b7a9-6f1e2d3c4b03",
    "conversation_chain": ["0d9c3b52-0f0e-4a57-8f0a-3a4d1c9b7e02", "5e2b9a10-7c44-4c1c-b7a9-6f1e2d3c4b03"],
    "priority": "normal",
    "expiration": "2026-01-31T10:30:00Z",
    "retry_policy": {"max_attempts": 1, "backoff_strategy": "exponential", "timeout_seconds": 120},
}
BODIES: dict[str, dict[str, Any]] = {
    "task-completion": {
        "type": "task-completion",
        "task_id": "ses_00aabbccddeeff001122334455",
        "status": "success",
        "summary": "Reviewed one module: 3 findings",
        "completion_timestamp": "2026-01-31T09:29:59.900Z",
        "quality_metrics": [{"name": "score", "text": "82"}, {"name": "type-errors", "text": "0"}],
        "result": "line 12: x & y is never used again\n" * 22,
    },
    "status-update": {
        "type": "status-update",
        "task_id": "ses_00aabbccddeeff001122334455",
        "status": "in-progress",
        "progress_percentage": 40,
        "current_activity": "Reading the modules of the package one by one, longest first",
        "blockers": [{"text": "waits for the type checker", "severity": "warning"}],
        "artifacts_created": [
            {"type": "code", "file_path": "src/a.py", "lines_of_code": 200, "checksum": "a" * 64},
            {"type": "test", "file_path": "tests/a.py", "tests_added": 20},
        ],
        "metrics": [{"name": "test-coverage", "text": "82.5%"}, {"name": "type-errors", "text": "0"}],
        "next_steps": [{"order": n, "text": f"step {n} of the plan, in some words"} for n in range(1, 4)],
    },
}


@dataclass(frozen=True)
class OneKey:
    """A lookup that has one key."""

    key: KeyCertificate

    def lookup(self, _: str) -> KeyCertificate:
        return self.key


def best_us(**calls: Callable[[], object]) -> dict[str, float]:
    """The best of many short rounds of each, in microseconds; in turn, so that a busy machine slows all alike."""
    rounds = [{name: timeit.timeit(call, number=20) for name, call in calls.items()} for _ in range(300)]
    return {name: min(one[name] for one in rounds) / 20 * 1e6 for name in calls}


def say(figure: str, **values: object) -> None:
    rounded = {name: round(v, 2) if isinstance(v, float) else v for name, v in values.items()}
    print(json.dumps({"figure": figure, **rounded}), flush=True)


def measure(body_type: str, signer: signature.Signer, keys: OneKey) -> None:
    message = AgentMessage.model_validate({"header": HEADER, "body": BODIES[body_type]})
    octets = signature.sign_message(message, signer, now_ms=NOW_MS)
    compiled = schema()
    report = check(octets)
    assert report.tree is not None

    def read_and_verify() -> None:
        checked = check(octets, advice=False)
        assert checked.message is not None
        signature.verify(checked.require_tree, keys, canonical_octets=checked.octets, message=checked.message)

    reading = best_us(
        bare=lambda: compiled.validate(etree.fromstring(octets)),
        decode=lambda: codec.decode(octets),
        whole=read_and_verify,
    )
    bare_us, decode_us, whole_us = reading["bare"], reading["decode"], reading["whole"]
    say("parse+xsd", type=body_type, octets=len(octets), us=bare_us)
    say("decode+layer2", type=body_type, us=decode_us, ratio=decode_us / bare_us)
    say("decode+layer2+verify", type=body_type, us=whole_us, ratio=whole_us / bare_us, limit=6)

    to_sign = b"".join(signature.octets_to_sign(message, signer, now_ms=NOW_MS))
    writing = best_us(
        rsa=lambda: signer.sign(to_sign),
        encode=lambda: codec.encode(message),
        sealed=lambda: signature.sign_message(message, signer, now_ms=NOW_MS),
    )
    say("rsa-sign", type=body_type, us=writing["rsa"])
    say("encode", type=body_type, us=writing["encode"])
    say(
        "encode+rsa-sign",
        type=body_type,
        us=writing["sealed"],
        ratio=writing["sealed"] / writing["rsa"],
        limit=1.5,
    )


def main() -> None:
    private = algorithms.generate(signature.RSA_SHA256)
    certificate = KeyCertificate(
        key_id="key_0123456789abcdef0123456789abcdef",
        agent="reviewer",
        role="specialist",
        use="sign",
        algorithm=signature.RSA_SHA256,
        public=private.public_key(),
        pem="",
        created_ms=0,
    )
    signer = signature.Signer(
        certificate.agent, certificate.key_id, certificate.algorithm, 0, None, algorithms.signing(private)
    )
    for body_type in BODIES:
        measure(body_type, signer, OneKey(certificate))


if __name__ == "__main__":
    main()
