"""Large payloads: compression that cannot explode, and a store in Redis for what is too large to send.

A blob is a hash under the SHA-256 of its bytes. It is written under another key that expires,
and gets its name when it is complete: a crash leaves nothing behind.
The digest is of the bytes as they were before compression and is checked on every reading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import redis
import zstandard

from orchestrator import machine
from orchestrator.errors import PayloadError
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts

#: Bytes in one chunk of a stored blob; one command carries one chunk.
CHUNK_BYTES: Final = 512 * 1024
#: Bytes that a payload may have once it is decompressed, unless the caller says otherwise.
MAX_PAYLOAD_BYTES: Final = 256 * 1024 * 1024
#: How many times its compressed size a payload above ``FREE_BYTES`` may have, unless the caller says otherwise.
MAX_RATIO: Final = 200
#: Bytes up to which a payload may be compressed to however few.
FREE_BYTES: Final = 1024 * 1024
#: Seconds that an upload may pause between two chunks before it is dropped.
UPLOAD_TTL_S: Final = 600

_LEVEL: Final = 3
#: Memory that a frame may ask of its reader; what RFC 8878 recommends to support.
_MAX_WINDOW: Final = 8 * 1024 * 1024
_PIECE: Final = 1024 * 1024


def compress(octets: bytes) -> bytes:
    """Return the bytes as one zstd frame."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(octets)


def is_bomb(size: int, compressed: int, *, max_ratio: int) -> bool:
    """Return True if ``size`` bytes out of ``compressed`` ones are more than a reader accepts."""
    return size > FREE_BYTES and size > max_ratio * compressed


def decompress(
    compressed: bytes,
    *,
    size: int,
    sha256: str,
    max_bytes: int = MAX_PAYLOAD_BYTES,
    max_ratio: int | None = MAX_RATIO,
) -> bytes:
    """Return the bytes that :func:`compress` was given.

    Decompression stops one byte above ``size``, whatever the frame declares.

    Raises:
        PayloadError: it is too large, or too large for what it is compressed to, is no zstd frame, or is not what
            ``size`` and ``sha256`` say.
    """
    if size > max_bytes:
        raise _too_large(size, max_bytes)
    if max_ratio is not None and is_bomb(size, len(compressed), max_ratio=max_ratio):
        raise PayloadError(
            f"a payload of {size} bytes is more than {max_ratio} times the {len(compressed)} bytes that it is "
            "compressed to; send it uncompressed, or store it and send a claim check"
        )
    octets = inflate(compressed, limit=size)
    if len(octets) > size:
        raise PayloadError(
            f"a payload decompresses to more than the {size} bytes that its message says; it was altered"
        )
    if len(octets) != size or hashlib.sha256(octets).hexdigest() != sha256.lower():
        raise PayloadError(
            f"a payload of {len(octets)} bytes has another digest or length than its message says "
            f"({size} bytes, SHA-256 {sha256}); it was altered or cut"
        )
    return octets


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Reference to a stored blob in an envelope."""

    #: Digest of the bytes before compression, in lower-case hex; the blob's name.
    sha256: str
    #: Bytes before compression.
    size: int
    #: In how many chunks they are stored.
    chunks: int
    #: Bytes of all chunks together.
    stored_size: int


class BlobStore:
    """Blobs of one shard. Stored once for each content, compressed, in chunks.

    ``name`` gives the key of a blob by its digest; by default all of a shard share theirs.
    """

    def __init__(
        self,
        client: redis.Redis,
        shard: int = 0,
        *,
        max_bytes: int = MAX_PAYLOAD_BYTES,
        name: Callable[[str], str] | None = None,
    ) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._shard = shard
        self._max_bytes = max_bytes
        self._name = name or partial(keys.blob, shard)

    def put(self, octets: bytes, *, ttl_s: float, anew: bool = False) -> BlobRef:
        """Store bytes for at least ``ttl_s`` seconds; content that is there already only lives longer.

        ``anew``: what is there was altered, and is replaced.

        Raises:
            PayloadError: there are too many of them.
        """
        if len(octets) > self._max_bytes:
            raise _too_large(len(octets), self._max_bytes)
        sha256 = hashlib.sha256(octets).hexdigest()
        name, ttl_ms = self._name(sha256), round(ttl_s * 1000)
        known = None if anew else _ref(sha256, self._scripts.run("touch_blob", [name], [ttl_ms]))
        if known is not None:
            return known
        compressed = memoryview(compress(octets))
        chunks = [compressed[at : at + CHUNK_BYTES] for at in range(0, len(compressed), CHUNK_BYTES)]
        ref = BlobRef(sha256=sha256, size=len(octets), chunks=len(chunks), stored_size=len(compressed))
        facts = {"size": ref.size, "stored_size": ref.stored_size, "chunks": ref.chunks, "algorithm": "zstd"}
        upload = keys.upload(self._shard, machine.token_hex(16))
        try:
            for number, chunk in enumerate(chunks):
                self._write(upload, str(number), bytes(chunk))
            self._write(upload, "facts", json.dumps(facts, sort_keys=True))
            if not self._scripts.run("store_blob", [upload, name], [ttl_ms, ref.chunks]):
                raise PayloadError(
                    f"the upload of {ref.size} bytes expired before it was complete; send them again"
                )
        except BaseException:
            self._drop(upload)
            raise
        return ref

    def get(self, ref: BlobRef) -> bytes:
        """Return the bytes, checked.

        Raises:
            PayloadError: they are too large, or a chunk is missing or altered.
        """
        if ref.size > self._max_bytes:
            raise _too_large(ref.size, self._max_bytes)
        stored = _ref(ref.sha256, self._client.hget(self._name(ref.sha256), "facts"))
        if stored is None:
            raise PayloadError(
                f"payload {ref.sha256} is not stored: it has expired, or it was never stored on this server; "
                "ask the sender to send it again"
            )
        return decompress(
            self._chunks(stored, at_most=ref.size + CHUNK_BYTES),
            size=ref.size,
            sha256=ref.sha256,
            max_bytes=self._max_bytes,
            max_ratio=None,
        )

    def _chunks(self, ref: BlobRef, *, at_most: int) -> bytes:
        """Return the compressed octets. No honest writer stores more of them than ``at_most``."""
        name, compressed = self._name(ref.sha256), bytearray()
        for number in range(ref.chunks):
            chunk = self._client.hget(name, str(number))
            if not isinstance(chunk, bytes):
                raise PayloadError(
                    f"chunk {number} of {ref.chunks} of payload {ref.sha256} is missing; "
                    "ask the sender to send it again"
                )
            compressed += chunk
            if len(compressed) > at_most:
                raise PayloadError(
                    f"payload {ref.sha256} has more bytes than its message says; it was altered"
                )
        return bytes(compressed)

    def _write(self, upload: str, field: str, value: bytes | str) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(upload, field, value)
            pipe.expire(upload, UPLOAD_TTL_S)
            pipe.execute()

    def _drop(self, upload: str) -> None:
        try:
            self._client.unlink(upload)
        except redis.RedisError:
            # It expires; the error that brought us here says more.
            return


def inflate(compressed: bytes, *, limit: int) -> bytes:
    """Return the bytes of a zstd frame, up to one more than ``limit``, whatever the frame declares.

    Raises:
        PayloadError: it is no zstd frame.
    """
    octets = bytearray()
    try:
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(compressed) as reader:
            while len(octets) <= limit and (piece := reader.read(min(_PIECE, limit + 1 - len(octets)))):
                octets += piece
    except zstandard.ZstdError as problem:
        raise PayloadError(
            f"a compressed payload cannot be read, it was altered or cut ({problem}); ask the sender to send it again"
        ) from None
    return bytes(octets)


def _ref(sha256: str, facts: bytes | str | None) -> BlobRef | None:
    if facts is None:
        return None
    try:
        known = json.loads(facts)
        return BlobRef(
            sha256=sha256,
            size=int(known["size"]),
            chunks=int(known["chunks"]),
            stored_size=int(known["stored_size"]),
        )
    except (ValueError, KeyError, TypeError):
        raise PayloadError(
            f"the description of payload {sha256} was altered; ask the sender to send it again"
        ) from None


def _too_large(size: int, limit: int) -> PayloadError:
    return PayloadError(f"a payload of {size} bytes is larger than the limit of {limit}; send it in parts")
