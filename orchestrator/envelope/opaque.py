"""Bodies in place of any body's content: encrypted, compressed, or stored elsewhere.

Each carries the declared type of the body, so that it can be routed unread.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from orchestrator.envelope.encryption import canonical_encrypted_data
from orchestrator.envelope.message_types import named_type
from orchestrator.envelope.model_values import (
    Attribute,
    Base64,
    Content,
    Count,
    Kind,
    Moment,
    Part,
    PositiveCount,
    Sha256,
)

_Type = Annotated[str, AfterValidator(named_type)]


class EncryptedBody(Part):
    """A body encrypted for the recipient. ``xml`` is one xenc:EncryptedData, in canonical form."""

    form: Literal["encrypted"] = "encrypted"
    type: _Type
    xml: Annotated[str, AfterValidator(canonical_encrypted_data)]


class CompressedBody(Part):
    """A body that is sent compressed. ``content`` is the base64 of the compressed octets.

    ``size`` and ``sha256`` are those of the bytes that were compressed: a whole ``<body>``
    element in canonical form, as :func:`orchestrator.envelope.codec.encode_body` gives it.
    """

    form: Literal["compressed"] = "compressed"
    type: _Type
    algorithm: Annotated[Literal["zstd"], Kind.TOKEN, Attribute()] = "zstd"
    size: Annotated[Count, Attribute()]
    sha256: Annotated[Sha256, Attribute()]
    content: Annotated[Base64, Content()]


class ClaimCheckBody(Part):
    """A reference to a body that is stored in chunks under ``sha256``, the digest of its octets.

    ``algorithm`` and ``stored_size`` say how the chunks are compressed and how much they hold;
    absent where they hold the bytes as they are.
    """

    form: Literal["claim-check"] = "claim-check"
    type: _Type
    sha256: Annotated[Sha256, Attribute()]
    size: Annotated[Count, Attribute()]
    chunks: Annotated[PositiveCount, Attribute()]
    algorithm: Annotated[Annotated[Literal["zstd"], Kind.TOKEN] | None, Attribute()] = None
    stored_size: Annotated[Count | None, Attribute()] = None
    expires: Annotated[Moment | None, Attribute()] = None


OpaqueBody = EncryptedBody | CompressedBody | ClaimCheckBody
