"""Strategies for envelopes: any model that can be built, derived from the models themselves."""

from __future__ import annotations

import base64
from typing import Any, get_args, get_origin

from hypothesis import strategies as st

from orchestrator.envelope.document import BODIES
from orchestrator.envelope.model import AgentMessage, Header, Signature
from orchestrator.envelope.model_values import Kind, Part, bindings, is_blank
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody, EncryptedBody

#: Any text at all, with a liking for what is awkward in XML.
texts = st.text(max_size=40) | st.sampled_from(
    [
        *("", "\0", "\r", "\r\n", "]]>", "<!DOCTYPE a>", "&amp;", " \t\n ", "\x85\u2028\ufeff"),
        *("\ufffe", "🎻", "\ud800", "<agent-callback>"),
    ]
)
names = st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=20).filter(
    lambda text: not is_blank(text)
)
attributes = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn")) | st.sampled_from("\t\n\r\"&<>'"), max_size=20
)
uuids = st.uuids(version=4).flatmap(lambda u: st.sampled_from([str(u), str(u).upper()]))
moments = st.builds(
    lambda moment, decimals, zone: (
        f"{moment.strftime('%Y').zfill(4)}-{moment:%m-%dT%H:%M:%S}{decimals}{zone}"
    ),
    st.datetimes(),
    st.sampled_from(["", ".5", ".123456", ".123456789", ".000000001"]),
    st.sampled_from(["Z", "+00:00", "-14:00", "+14:00", "+05:30"]),
)
octets = st.binary(min_size=1, max_size=40).map(lambda data: base64.b64encode(data).decode())

#: Values by the name of a field, where its type leaves open more than the field does.
_BY_NAME = {
    "checksum": st.text("0123456789abcdefABCDEF", min_size=64, max_size=64),
    "traceparent": st.from_regex(r"\A00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z"),
    "test_coverage": st.sampled_from(["0", "100%", "99.999999%", "7.5"]),
    "progress_percentage": st.integers(0, 100),
    "max_attempts": st.integers(1, 10**9 - 1),
    "timeout_seconds": st.integers(1, 10**9 - 1),
}
_BY_KIND: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.TEXT: texts,
    Kind.NAME: names,
    Kind.RAW: attributes,
    Kind.TIMESTAMP: moments,
    Kind.INTEGER: st.integers(0, 10**9 - 1),
    Kind.HOURS: st.decimals(0, 10**9 - 1, places=6) | st.decimals(0, 100, places=1),
    Kind.FLAG: st.booleans(),
    Kind.BASE64: octets,
}


def _literals(annotation: Any) -> list[str]:
    """The values of the closed list inside ``annotation``; none: it is an id."""
    if get_origin(annotation) is not None and isinstance(next(iter(get_args(annotation)), None), str):
        return list(get_args(annotation))
    return [value for argument in get_args(annotation) for value in _literals(argument)]


def parts(model: type[Part]) -> st.SearchStrategy[Any]:
    """Any ``model``; what is optional may be absent, lists may be empty."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in bindings(model):
        info = model.model_fields[field.name]
        if field.model is not None:
            values = parts(field.model)
        elif field.name in _BY_NAME:
            values = _BY_NAME[field.name]
        elif field.kind is Kind.TOKEN:
            known = _literals(info.annotation)
            values = st.sampled_from(known) if known else uuids
        else:
            assert field.kind is not None
            values = _BY_KIND[field.kind]
        if type(field.mark).__name__ in {"Items", "Numbered", "Repeated"}:
            values = st.lists(values, max_size=3)
        (required if info.is_required() else optional)[field.name] = values
    return st.fixed_dictionaries(required, optional=optional).map(model.model_validate)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """Any header that keeps the rules."""
    values = draw(parts(HeaderParts))
    fields = values.model_dump()
    refs = {ref.lower(): ref for ref in fields["conversation_chain"]}
    refs.pop(fields["message_id"].lower(), None)
    fields["conversation_chain"] = tuple(refs.values())
    if values.expiration is not None and values.expiration.instant_ns <= values.timestamp.instant_ns:
        fields["expiration"] = None
    return Header.model_validate(fields)


class HeaderParts(Header):
    """The fields of a header without the rules between them."""

    def _keeps_the_rules(self) -> HeaderParts:
        return self


opaque = (
    st.builds(
        EncryptedBody,
        type=st.sampled_from(sorted(BODIES)),
        xml=octets.map(
            lambda value: (
                '<e:EncryptedData xmlns:e="http://www.w3.org/2001/04/xmlenc#"><e:CipherData>'
                f"<e:CipherValue>{value}</e:CipherValue></e:CipherData></e:EncryptedData>"
            )
        ),
    )
    | st.builds(
        CompressedBody,
        type=st.sampled_from(sorted(BODIES)),
        size=st.integers(0, 10**12),
        sha256=_BY_NAME["checksum"],
        content=octets,
    )
    | st.builds(
        ClaimCheckBody,
        type=st.sampled_from(sorted(BODIES)),
        size=st.integers(0, 10**12),
        sha256=_BY_NAME["checksum"],
        chunks=st.integers(1, 10**6),
        algorithm=st.none() | st.just("zstd"),
        stored_size=st.none() | st.integers(0, 10**12),
        expires=st.none() | moments,
    )
)
bodies = st.one_of(*(parts(model) for model in BODIES.values()), opaque)
messages = st.builds(AgentMessage, header=headers(), body=bodies, signature=st.none() | parts(Signature))
