"""Puts a body into the form in which it is sent, and takes it out again.

On the way out: compress what is large, encrypt what is secret, store what is too large to send. On
the way in the same backwards, each step at most once, and every step checks what it gets. The
signature is over what is sent, so it is made after this and checked before it.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from dataclasses import asdict
from typing import Final

from orchestrator.envelope import codec, encryption, payload
from orchestrator.envelope.encryption import BoundTo, FindKey, Recipient
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.model import AgentMessage, Body
from orchestrator.envelope.model_values import NAMESPACE, Timestamp
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody, EncryptedBody
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.payload import MAX_PAYLOAD_BYTES, MAX_RATIO, BlobRef, BlobStore
from orchestrator.envelope.signature import Signer, octets_to_sign, sign_message, with_value
from orchestrator.errors import DecryptionError, PayloadError
from orchestrator.machine import Clock, SystemClock, isoformat

#: Bytes of a body above which it is compressed, and above which it is stored once and sent as a reference.
COMPRESS_ABOVE: Final = 64 * 1024
CLAIM_CHECK_ABOVE: Final = 1024 * 1024
#: The forms of a body from the outside in; opening one may only lead further in.
_ORDER: Final = (ClaimCheckBody, EncryptedBody, CompressedBody)


class Encrypter:
    """Seals outgoing messages. Safe to share between threads.

    Args:
        blobs: where the bodies go that are too large to send.
        compress_above: bytes of a body above which it is compressed.
        claim_check_above: bytes of a body above which it is stored and sent as a reference.
        blob_ttl_s: seconds that a stored body lives, from its last reference on.
        max_bytes: bytes that the body of a new task may have, which its router is going to open.
        max_ratio: how many times its compressed size a body may have for a reader to take it.
    """

    def __init__(
        self,
        blobs: BlobStore,
        *,
        blob_ttl_s: float,
        compress_above: int = COMPRESS_ABOVE,
        claim_check_above: int = CLAIM_CHECK_ABOVE,
        max_bytes: int = MAX_PAYLOAD_BYTES,
        max_ratio: int = MAX_RATIO,
        clock: Clock | None = None,
    ) -> None:
        self._blobs = blobs
        self._compress_above = compress_above
        self._claim_check_above = claim_check_above
        self._blob_ttl_s = blob_ttl_s
        self._max_bytes = max_bytes
        self._max_ratio = max_ratio
        self._clock = clock or SystemClock()

    def sign(self, message: AgentMessage, signer: Signer, *, recipient: Recipient | None = None) -> bytes:
        """Seal, encode and sign in one go: the bytes to send.

        Raises:
            PayloadError: the body is larger than the store takes.
        """
        now_ms = self._clock.now_ms()
        if recipient is None:
            head, tail = octets_to_sign(message, signer, now_ms=now_ms)
            # Almost every message is small, and is encoded only once.
            if len(head) <= min(self._compress_above, self._claim_check_above):
                return with_value(head, tail, signer)
        return sign_message(self.seal(message, recipient=recipient), signer, now_ms=now_ms)

    def seal(self, message: AgentMessage, *, recipient: Recipient | None = None) -> AgentMessage:
        """Return the message with its body in the form in which it is sent, without a signature if that changed it.

        Raises:
            PayloadError: the body is larger than the store takes, or than a router opens.
        """
        if isinstance(message.body, _ORDER):
            return message
        octets = codec.encode_body(message.body)
        if len(octets) > self._max_bytes and message.body.type in SESSION_STARTING:
            raise PayloadError(
                f"a {message.body.type} of {len(octets)} bytes is larger than the limit of {self._max_bytes} "
                "(max_payload_bytes); put the text into a file and name that"
            )
        if recipient is None and len(octets) <= min(self._compress_above, self._claim_check_above):
            return message
        body: Body = message.body
        stored = len(octets) > self._claim_check_above
        # What is stored as it is, is compressed by the store.
        if len(octets) > self._compress_above and (recipient is not None or not stored):
            body = self._compressed(body, octets)
        if recipient is not None:
            body = _encrypted(body, recipient, _bound(message))
        if stored:
            body = self._claim_check(body)
        return message.model_copy(update={"body": body, "signature": None})

    def _compressed(self, body: Body, octets: bytes) -> Body:
        """Return the body compressed, or as it is if that would not make it smaller, or so small that no reader takes
        it.
        """
        compressed = payload.compress(octets)
        content = b64encode(compressed).decode()
        if len(content) >= len(octets) or payload.is_bomb(
            len(octets), len(compressed), max_ratio=self._max_ratio
        ):
            return body
        return CompressedBody(
            type=body.type, size=len(octets), sha256=hashlib.sha256(octets).hexdigest(), content=content
        )

    def _claim_check(self, body: Body) -> ClaimCheckBody:
        expires = isoformat(self._clock.now_ms() + round(self._blob_ttl_s * 1000))
        ref = self._blobs.put(codec.encode_body(body), ttl_s=self._blob_ttl_s)
        return ClaimCheckBody(type=body.type, algorithm="zstd", expires=Timestamp(expires), **asdict(ref))


class Opener:
    """Opens incoming messages. Safe to share between threads.

    Args:
        blobs: where stored bodies are.
        find_key: finds the private encryption key of an id; None if this process decrypts nothing.
        max_bytes: bytes that an opened body may have.
        max_ratio: how many times its compressed size a body may have that is sent compressed.
    """

    def __init__(
        self,
        blobs: BlobStore,
        *,
        find_key: FindKey | None = None,
        max_bytes: int = MAX_PAYLOAD_BYTES,
        max_ratio: int = MAX_RATIO,
    ) -> None:
        self._max_ratio = max_ratio
        self._blobs = blobs
        self._find_key = find_key or _no_key
        self._limits = ParseLimits(size=max_bytes, detail_s=0.2, findings=1)

    def open(self, message: AgentMessage) -> AgentMessage:
        """Return the message with its body as the sender wrote it; a message that was not sealed as it is.

        Raises:
            PayloadError: a payload is too large, missing, altered, or not of the declared type.
            DecryptionError: the body cannot be decrypted here.
            InvalidEnvelope: what came out is no valid body.
        """
        return self._opened(message, decrypt=True)

    def fetch(self, message: AgentMessage) -> AgentMessage:
        """Return the message with its body at hand, without any key: what is encrypted stays so.

        Raises:
            PayloadError, InvalidEnvelope: as :meth:`open`.
        """
        return self._opened(message, decrypt=False)

    def stored(self, message: AgentMessage) -> bytes:
        """Return the bytes that are stored apart from the message; empty if the message has its body.

        Raises:
            PayloadError: they are too large, missing or altered.
        """
        return self._blobs.get(_ref(message.body)) if isinstance(message.body, ClaimCheckBody) else b""

    def _opened(self, message: AgentMessage, *, decrypt: bool) -> AgentMessage:
        body, reached = message.body, -1
        while isinstance(body, _ORDER) and (decrypt or not isinstance(body, EncryptedBody)):
            step = _ORDER.index(type(body))
            if step <= reached:
                raise PayloadError(
                    "a sealed body is stored, encrypted and compressed at most once, in this order from the outside; "
                    "seal it again"
                )
            inner = codec.decode_body(self._octets(body, _bound(message)), limits=self._limits)
            if inner.type != body.type:
                raise PayloadError(
                    f"the message says that its body is a {body.type}, but inside is a {inner.type}; "
                    "it was put together from two messages"
                )
            body, reached = inner, step
        return message if body is message.body else message.model_copy(update={"body": body})

    def _octets(self, body: ClaimCheckBody | EncryptedBody | CompressedBody, bound: BoundTo) -> bytes:
        if isinstance(body, ClaimCheckBody):
            return self._blobs.get(_ref(body))
        if isinstance(body, CompressedBody):
            return payload.decompress(
                b64decode(body.content),
                size=body.size,
                sha256=body.sha256,
                max_bytes=self._limits.size,
                max_ratio=self._max_ratio,
            )
        content = encryption.decrypt(body.xml, find_key=self._find_key, bound=bound)
        if len(content) > self._limits.size:
            raise DecryptionError(
                f"the decrypted body is larger than {self._limits.size} bytes; send it in parts"
            )
        return f'<body xmlns="{NAMESPACE}" type="{body.type}">'.encode() + content + b"</body>"


def _no_key(_: str) -> None:
    return None


def _bound(message: AgentMessage) -> BoundTo:
    header = message.header
    return BoundTo(
        message_id=header.message_id,
        conversation=message.conversation_id,
        sender=header.sender.agent_name,
        recipient=header.recipient.agent_name,
    )


def _encrypted(body: Body, recipient: Recipient, bound: BoundTo) -> EncryptedBody:
    xml = encryption.encrypt(codec.encode_body(body), recipient, bound=bound)
    # Canonical as it stands; the model would parse it all once more.
    return EncryptedBody.model_construct(form="encrypted", type=body.type, xml=xml)


def _ref(body: ClaimCheckBody) -> BlobRef:
    return BlobRef(
        sha256=body.sha256.lower(),
        size=body.size,
        chunks=body.chunks,
        stored_size=body.size if body.stored_size is None else body.stored_size,
    )
