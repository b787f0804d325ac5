"""Large payloads: compression that cannot explode, and a store in Redis for what is too large to travel.

A blob is a hash under the SHA-256 of its octets. It is written under another key that expires,
and gets its name when it is whole: what has the name is complete, and a crash leaves nothing behind.
The digest is of the octets as they were before compression and is checked on every reading.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, cast

import redis
import zstandard

from orchestrator.errors import PayloadError
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts

#: Octets in one chunk of a stored blob; one command carries one chunk.
CHUNK_BYTES: Final = 512 * 1024
#: Octets that a payload may have once it is decompressed, unless the caller says otherwise.
MAX_PAYLOAD_BYTES: Final = 256 * 1024 * 1024
#: How many times its compressed size a payload above ``FREE_BYTES`` may have, unless the caller says otherwise.
MAX_RATIO: Final = 200
#: Octets up to which a payload may be compressed to however few.
FREE_BYTES: Final = 1024 * 1024
#: Seconds that an upload may pause between two chunks before it is dropped.
UPLOAD_TTL_S: Final = 600

_LEVEL: Final = 3
#: Memory that a frame may ask of its reader; what RFC 8878 recommends to support.
_MAX_WINDOW: Final = 8 * 1024 * 1024
_PIECE: Final = 1024 * 1024


def compress(octets: bytes) -> bytes:
    """The octets as one zstd frame."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(octets)


def is_bomb(size: int, compressed: int, *, max_ratio: int) -> bool:
    """Whether so many octets out of so few compressed ones are more than a reader takes."""
    return size > FREE_BYTES and size > max_ratio * compressed


def decompress(
    compressed: bytes,
    *,
    size: int,
    sha256: str,
    max_bytes: int = MAX_PAYLOAD_BYTES,
    max_ratio: int = MAX_RATIO,
) -> bytes:
    """What :func:`compress` was given.

    Never more than ``size`` octets are made, whatever the frame says of itself.

    Raises:
        PayloadError: it is too large, or too large for what it is compressed to, is no zstd frame, or is not what
            ``size`` and ``sha256`` say.
    """
    if size > max_bytes:
        raise _too_large(size, max_bytes)
    if is_bomb(size, len(compressed), max_ratio=max_ratio):
        raise PayloadError(
            f"a payload of {size} octets is more than {max_ratio} times the {len(compressed)} octets that it is "
            "compressed to; send it uncompressed, or store it and send a claim check"
        )
    return _whole(_inflate(iter([compressed]), limit=size), size=size, sha256=sha256, max_bytes=max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """What an envelope says of a stored blob."""

    #: Digest of the octets before compression, in lower-case hex; the blob's name.
    sha256: str
    #: Octets before compression.
    size: int
    #: In how many chunks they are stored.
    chunks: int
    #: Octets of all chunks together.
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

    def put(self, octets: bytes, *, ttl_s: float) -> BlobRef:
        """Store octets for at least ``ttl_s`` seconds; content that is there already only lives longer.

        Raises:
            PayloadError: there are too many of them.
        """
        if len(octets) > self._max_bytes:
            raise _too_large(len(octets), self._max_bytes)
        sha256 = hashlib.sha256(octets).hexdigest()
        known = self._touch(sha256, ttl_s)
        if known is not None:
            return known
        view = memoryview(octets)
        return self.put_stream(
            (bytes(view[i : i + _PIECE]) for i in range(0, len(octets), _PIECE)), ttl_s=ttl_s
        )

    def put_stream(self, pieces: Iterable[bytes], *, ttl_s: float) -> BlobRef:
        """Store octets that come in pieces of any length; holds no more than a chunk of them in memory.

        Raises:
            PayloadError: there are too many of them, or the upload paused for too long.
        """
        counted = _Counted(pieces, self._max_bytes)
        upload = keys.upload(self._shard, secrets.token_hex(16))
        stored = chunks = 0
        try:
            for chunk in _chunks(_deflate(counted)):
                self._write(upload, {str(chunks): chunk})
                chunks += 1
                stored += len(chunk)
            ref = BlobRef(
                sha256=counted.digest.hexdigest(), size=counted.size, chunks=chunks, stored_size=stored
            )
            facts = {"size": ref.size, "stored_size": stored, "chunks": chunks, "algorithm": "zstd"}
            self._write(upload, {"facts": json.dumps(facts, sort_keys=True)})
            name = self._name(ref.sha256)
            if not self._scripts.run("store_blob", [upload, name], [round(ttl_s * 1000), chunks]):
                raise PayloadError(
                    f"the upload of {ref.size} octets was gone before it was finished; send them again"
                )
        except BaseException:
            self._drop(upload)
            raise
        return ref

    def get(self, ref: BlobRef) -> bytes:
        """The octets, checked.

        Raises:
            PayloadError: they are too large, or a chunk is missing or altered.
        """
        return _whole(self._inflated(ref), size=ref.size, sha256=ref.sha256, max_bytes=self._max_bytes)

    def stream(self, ref: BlobRef) -> Iterator[bytes]:
        """The octets in pieces. They are known to be right only once the last has come without an error.

        Raises:
            PayloadError: as :meth:`get`.
        """
        return _checked(self._inflated(ref), size=ref.size, sha256=ref.sha256, max_bytes=self._max_bytes)

    def touch(self, ref: BlobRef, *, ttl_s: float) -> bool:
        """Let a blob live for at least ``ttl_s`` seconds from now; False if it is not there."""
        return self._touch(ref.sha256, ttl_s) is not None

    def delete(self, ref: BlobRef) -> None:
        """Drop a blob. Only for what nobody else can refer to: the same content is stored once for all."""
        self._client.unlink(self._name(ref.sha256))

    def _touch(self, sha256: str, ttl_s: float) -> BlobRef | None:
        name = self._name(sha256)
        return _ref(sha256, self._scripts.run("touch_blob", [name], [round(ttl_s * 1000)]))

    def _facts(self, sha256: str) -> BlobRef | None:
        return _ref(sha256, self._client.hget(self._name(sha256), "facts"))

    def _write(self, upload: str, fields: Mapping[Any, Any]) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(upload, mapping=fields)
            pipe.expire(upload, UPLOAD_TTL_S)
            pipe.execute()

    def _drop(self, upload: str) -> None:
        try:
            self._client.unlink(upload)
        except redis.RedisError:
            # It expires; the error that brought us here says more.
            return

    def _inflated(self, ref: BlobRef) -> Iterator[bytes]:
        standing = self._facts(ref.sha256)
        if standing is None:
            raise PayloadError(
                f"payload {ref.sha256} is not stored: it has expired, or it was never stored on this server; "
                "ask the sender to send it again"
            )
        return _inflate(self._stored(standing), limit=ref.size)

    def _stored(self, ref: BlobRef) -> Iterator[bytes]:
        name = self._name(ref.sha256)
        for number in range(ref.chunks):
            chunk = self._client.hget(name, str(number))
            if not isinstance(chunk, bytes):
                raise PayloadError(
                    f"chunk {number} of {ref.chunks} of payload {ref.sha256} is missing; "
                    "ask the sender to send it again"
                )
            yield chunk


class _Counted:
    """Hashes and counts what passes."""

    def __init__(self, pieces: Iterable[bytes], max_bytes: int) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._pieces = pieces
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.digest.update(piece)
            self.size += len(piece)
            if self.size > self._max_bytes:
                raise _too_large(self.size, self._max_bytes)
            yield piece


class _Pieces:
    """Pieces as the file-like object that zstandard reads from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        end = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:end], self._rest[end:]
        return piece


def _deflate(pieces: Iterable[bytes]) -> Iterator[bytes]:
    deflater = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
    for piece in pieces:
        yield deflater.compress(piece)
    yield deflater.flush()


def _inflate(pieces: Iterator[bytes], *, limit: int) -> Iterator[bytes]:
    """Decompress piece by piece, and stop one octet above ``limit``."""
    source = cast("IO[bytes]", _Pieces(pieces))
    made = 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(source) as reader:
            while made <= limit and (piece := reader.read(min(_PIECE, limit + 1 - made))):
                made += len(piece)
                yield piece
    except zstandard.ZstdError as problem:
        raise PayloadError(
            f"a compressed payload cannot be read, it was altered or cut ({problem}); ask the sender to send it again"
        ) from None


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same octets in chunks of ``CHUNK_BYTES``, the last one shorter; at least one."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) > CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    yield bytes(buffer)


def _checked(pieces: Iterator[bytes], *, size: int, sha256: str, max_bytes: int) -> Iterator[bytes]:
    if size > max_bytes:
        raise _too_large(size, max_bytes)
    digest = hashlib.sha256()
    made = 0
    for piece in pieces:
        made += len(piece)
        if made > size:
            raise PayloadError(
                f"a payload decompresses to more than the {size} octets that its message says; it was altered"
            )
        digest.update(piece)
        yield piece
    if made != size or digest.hexdigest() != sha256.lower():
        raise PayloadError(
            f"a payload of {made} octets has another digest or length than its message says "
            f"({size} octets, SHA-256 {sha256}); it was altered or cut"
        )


def _whole(pieces: Iterator[bytes], *, size: int, sha256: str, max_bytes: int) -> bytes:
    return b"".join(_checked(pieces, size=size, sha256=sha256, max_bytes=max_bytes))


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
    return PayloadError(f"a payload of {size} octets is larger than the limit of {limit}; send it in parts")
