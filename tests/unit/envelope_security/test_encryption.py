"""A body that is encrypted for one recipient, and every way in which it must not open."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from orchestrator.envelope.encryption import BoundTo, Recipient, decrypt, encrypt
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.errors import DecryptionError

MESSAGE_ID = "6f1b0a7e-3a1e-4c55-9a1f-0d3c8f1a2b3c"
OTHER_ID = "11111111-3a1e-4c55-9a1f-0d3c8f1a2b3c"
BOUND = BoundTo(message_id=MESSAGE_ID, conversation=OTHER_ID, sender="lead", recipient="vault")
CONTENT = "<content>sécret &amp; <x></x></content>".encode()
BODY = f'<body xmlns="{NAMESPACE}" type="message">'.encode() + CONTENT + b"</body>"


@pytest.fixture(scope="module")
def private() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def other() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def sealed(private: RSAPrivateKey) -> str:
    return encrypt(BODY, Recipient("key_a", private.public_key()), bound=BOUND)


@pytest.fixture
def decrypt_body(private: RSAPrivateKey) -> Callable[..., bytes]:
    def run(xml: str, bound: BoundTo = BOUND, key: RSAPrivateKey | None = private) -> bytes:
        return decrypt(xml, find_key=lambda key_id: key if key_id == "key_a" else None, bound=bound)

    return run


def cipher_values(xml: str) -> list[str]:
    return re.findall("<xenc:CipherValue>([^<]+)<", xml)


def test_the_recipient_reads_what_was_encrypted(sealed: str, decrypt_body: Callable[..., bytes]) -> None:
    assert decrypt_body(sealed) == CONTENT
    assert "cret" not in sealed


def test_the_case_of_a_message_id_does_not_count(sealed: str, decrypt_body: Callable[..., bytes]) -> None:
    assert decrypt_body(sealed, replace(BOUND, message_id=MESSAGE_ID.upper())) == CONTENT


def test_two_encryptions_of_the_same_body_have_nothing_in_common(sealed: str, private: RSAPrivateKey) -> None:
    again = encrypt(BODY, Recipient("key_a", private.public_key()), bound=BOUND)
    assert not set(cipher_values(again)) & set(cipher_values(sealed))


def test_a_content_key_of_another_length_than_it_says_is_refused(
    sealed: str, private: RSAPrivateKey, decrypt_body: Callable[..., bytes]
) -> None:
    """The algorithm says AES-256; a sender who takes a shorter key is not believed."""
    key, iv = b"k" * 16, b"i" * 12
    values = (private.public_key().encrypt(key, BOUND.padding()), iv + AESGCM(key).encrypt(iv, CONTENT, None))
    weak = sealed
    for old, new in zip(cipher_values(sealed), values, strict=True):
        weak = weak.replace(old, b64encode(new).decode())
    with pytest.raises(DecryptionError, match="cannot be decrypted"):
        decrypt_body(weak)


@pytest.mark.parametrize("body", [b"", b"<body>", b"plain", b"<header></header>", b"<body type='x'></body>"])
def test_only_a_body_is_encrypted(private: RSAPrivateKey, body: bytes) -> None:
    with pytest.raises(ValueError, match="body"):
        encrypt(body, Recipient("key_a", private.public_key()), bound=BOUND)


def test_another_key_opens_nothing(
    sealed: str, decrypt_body: Callable[..., bytes], other: RSAPrivateKey
) -> None:
    with pytest.raises(DecryptionError, match="another key"):
        decrypt_body(sealed, key=other)


def test_without_the_private_key_the_error_names_it(sealed: str, decrypt_body: Callable[..., bytes]) -> None:
    with pytest.raises(DecryptionError, match="'key_a'"):
        decrypt_body(sealed, key=None)


@pytest.mark.parametrize(
    "other",
    [{"message_id": OTHER_ID}, {"conversation": MESSAGE_ID}, {"sender": "thief"}, {"recipient": "lead"}],
)
def test_an_encrypted_body_fits_into_its_own_message_only(
    sealed: str, decrypt_body: Callable[..., bytes], other: dict[str, str]
) -> None:
    """Not into another's of the same id, nor into another conversation, nor to somebody else."""
    theirs = replace(BOUND, **other)
    with pytest.raises(DecryptionError, match="another message"):
        decrypt_body(sealed, theirs)
    relabelled = sealed.replace(BOUND.label, theirs.label)
    assert relabelled != sealed
    with pytest.raises(DecryptionError, match="cannot be decrypted"):
        decrypt_body(relabelled, theirs)


def test_a_body_that_is_bound_to_the_message_id_alone_is_refused(
    sealed: str, decrypt_body: Callable[..., bytes]
) -> None:
    """A thief chooses the id of its own message."""
    alone = sealed.replace(BOUND.label, b64encode(MESSAGE_ID.encode()).decode())
    with pytest.raises(DecryptionError, match=r"another message.*encrypt it for this message"):
        decrypt_body(alone)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("keep", [0, 1, 15, 16, 27, 28, 40, -16, -1])
def test_a_cut_cipher_value_is_refused(
    sealed: str, decrypt_body: Callable[..., bytes], which: int, keep: int
) -> None:
    value = cipher_values(sealed)[which]
    cut = b64encode(b64decode(value)[:keep]).decode()
    with pytest.raises(DecryptionError):
        decrypt_body(sealed.replace(value, cut))


@pytest.mark.parametrize("which", [0, 1])
def test_no_octet_of_a_cipher_value_can_be_changed(
    sealed: str, decrypt_body: Callable[..., bytes], which: int
) -> None:
    value = cipher_values(sealed)[which]
    octets = b64decode(value)
    for at in range(0, len(octets), 1 if which else 16):
        changed = octets[:at] + bytes([octets[at] ^ 1]) + octets[at + 1 :]
        with pytest.raises(DecryptionError):
            decrypt_body(sealed.replace(value, b64encode(changed).decode()))


def test_the_key_of_another_message_does_not_open_this_one(
    sealed: str, decrypt_body: Callable[..., bytes], private: RSAPrivateKey
) -> None:
    again = encrypt(BODY, Recipient("key_a", private.public_key()), bound=BOUND)
    for which in (0, 1):
        swapped = sealed.replace(cipher_values(sealed)[which], cipher_values(again)[which])
        with pytest.raises(DecryptionError):
            decrypt_body(swapped)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2009/xmlenc11#aes256-gcm", "2009/xmlenc11#aes128-gcm"),
        ("2009/xmlenc11#aes256-gcm", "2001/04/xmlenc#aes256-cbc"),
        ("xmlenc#rsa-oaep-mgf1p", "xmlenc#rsa-1_5"),
        ("xmlenc#Content", "xmlenc#Element"),
        (' Type="http://www.w3.org/2001/04/xmlenc#Content"', ""),
        (' Type="', ' Id="a" Type="'),
        (' Type="', ' Encoding="http://www.w3.org/2000/09/xmldsig#base64" Type="'),
        ("<xenc:CipherValue>", '<xenc:CipherReference URI="file:///etc/passwd"/><xenc:CipherValue>'),
        ("<ds:KeyName>", '<ds:RetrievalMethod URI="http://127.0.0.1/"/><ds:KeyName>'),
        ("<ds:KeyName>key_a</ds:KeyName>", ""),
        ("<ds:KeyName>", "<ds:KeyName>x</ds:KeyName><ds:KeyName>"),
        (
            "<xenc:OAEPparams>",
            '<ds:DigestMethod Algorithm="http://www.w3.org/2001/04/xmlenc#md5"/><xenc:OAEPparams>',
        ),
        ("xmlns:xenc", "xmlns:other"),
    ],
)
def test_no_other_shape_is_decrypted(sealed: str, old: str, new: str) -> None:
    """Nor is its key looked for."""
    changed = sealed.replace(old, new)
    assert changed != sealed
    with pytest.raises(DecryptionError):
        decrypt(changed, find_key=lambda _: pytest.fail("looked for the key"), bound=BOUND)


@pytest.mark.parametrize("depth", [10, 1_500, 100_000])
def test_what_nests_deep_is_a_clean_refusal(
    sealed: str, decrypt_body: Callable[..., bytes], depth: int
) -> None:
    nested = f"{'<xenc:a>' * depth}{'</xenc:a>' * depth}"
    with pytest.raises(DecryptionError):
        decrypt_body(sealed.replace("<ds:KeyName>", f"{nested}<ds:KeyName>"))


@pytest.mark.parametrize("xml", ["", "<", "text", "<a/>", "\x00", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"])
def test_what_is_no_encrypted_data_is_a_clean_refusal(decrypt_body: Callable[..., bytes], xml: str) -> None:
    with pytest.raises(DecryptionError):
        decrypt_body(xml)


def test_entities_are_refused_even_in_a_good_shape(sealed: str, decrypt_body: Callable[..., bytes]) -> None:
    with pytest.raises(DecryptionError, match="document type"):
        decrypt_body("<!DOCTYPE a [<!ENTITY b 'c'>]>" + sealed)


def test_failures_do_not_tell_what_failed(
    sealed: str, decrypt_body: Callable[..., bytes], other: RSAPrivateKey
) -> None:
    key_value, data_value = cipher_values(sealed)
    sentences = set()
    for change in (
        lambda: decrypt_body(sealed, key=other),
        lambda: decrypt_body(sealed.replace(key_value, b64encode(bytes(256)).decode())),
        lambda: decrypt_body(sealed.replace(data_value, b64encode(bytes(64)).decode())),
    ):
        with pytest.raises(DecryptionError) as caught:
            change()
        sentences.add(str(caught.value))
    assert len(sentences) == 1
