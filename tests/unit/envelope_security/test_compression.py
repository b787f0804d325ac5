"""Compressed payloads: nothing larger than was announced is ever made of them."""

from __future__ import annotations

import contextlib
import hashlib
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.envelope.payload import compress, decompress
from orchestrator.errors import PayloadError


def open_(compressed: bytes, octets: bytes, **changes: int | str) -> bytes:
    facts = {"size": len(octets), "sha256": hashlib.sha256(octets).hexdigest(), **changes}
    return decompress(compressed, **facts)


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=5000),
        st.builds(lambda piece, n: piece * n, st.binary(max_size=50), st.integers(0, 5000)),
    )
)
def test_any_octets_come_back(octets: bytes) -> None:
    assert open_(compress(octets), octets) == octets


def test_a_bomb_is_stopped_at_the_announced_size() -> None:
    bomb = compress(bytes(500_000_000))
    assert len(bomb) < 50_000
    tracemalloc.start()
    with pytest.raises(PayloadError, match="more than the 1000 bytes"):
        decompress(bomb, size=1000, sha256="0" * 64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_a_frame_that_lies_about_its_size_is_stopped_too() -> None:
    liar = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(50_000_000))
    with pytest.raises(PayloadError, match="more than the 10 bytes"):
        decompress(liar, size=10, sha256="0" * 64)


def test_a_size_above_the_limit_is_refused_unread() -> None:
    with pytest.raises(PayloadError, match="larger than the limit"):
        decompress(b"never looked at", size=1001, sha256="0" * 64, max_bytes=1000)


def test_a_frame_that_asks_for_gigabytes_of_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    greedy = zstandard.ZstdCompressor(compression_params=parameters)
    deflater = greedy.compressobj()
    frame = deflater.compress(b"x" * 1000) + deflater.flush()
    with pytest.raises(PayloadError, match="cannot be read"):
        decompress(frame, size=1000, sha256="0" * 64)


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_changed_or_cut_frame_is_a_clean_refusal(octets: bytes, data: st.DataObject) -> None:
    good = compress(octets)
    at = data.draw(st.integers(0, len(good) - 1))
    changed = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    for bad in (changed, good[:at]):
        with contextlib.suppress(PayloadError):
            assert open_(bad, octets) == octets


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"size": 4}, {"size": 6}, {"size": 0}])
def test_what_is_not_as_announced_is_refused(changes: dict[str, int | str]) -> None:
    with pytest.raises(PayloadError):
        open_(compress(b"hello"), b"hello", **changes)
