"""DSSE envelopes, alone or in a sigstore bundle, read from files of strangers.

Sources: https://github.com/secure-systems-lab/dsse/blob/master/envelope.md and the JSON form of
https://github.com/sigstore/protobuf-specs/blob/main/protos/sigstore_bundle.proto.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ane.evidence.store import read_file
from pytest_ane.evidence.strict_json import parse
from pytest_ane.manifest.problems import label
from pytest_ane.mlprogram.errors import EvidenceError, UnprovenError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MOST_SIGNATURES = 32


@dataclass(frozen=True)
class Envelope:
    """A DSSE envelope, read but not believed.

    Attributes:
        file: where it was read.
        payload: the bytes that were signed.
        signatures: their bytes.
        named: ids by which the envelope calls its keys.
        keyless: whether it brings a certificate in place of a key.
    """

    file: Path
    payload: bytes
    signatures: tuple[bytes, ...]
    named: frozenset[str]
    keyless: bool


def read_envelope(file: Path) -> Envelope:
    """An envelope from `*.dsse.json`, or from the sigstore bundle `*.sigstore.json`.

    Raises:
        UnprovenError: it is damaged, too large, or signs something else than a statement.
    """
    try:
        return _envelope(file, parse(read_file(file) or b""))
    except EvidenceError as error:
        says = f"{label(file)} is no signature: {error}; sign the evidence again."
        raise UnprovenError(says, "signature") from None


def _envelope(file: Path, top: Any) -> Envelope:
    if not isinstance(top, dict):
        raise EvidenceError("it holds no JSON object")
    if "messageSignature" in top:
        raise EvidenceError("it signs a file as such, not a statement (cosign attest-blob does)")
    envelope = top.get("dsseEnvelope", top)
    if not isinstance(envelope, dict) or "payload" not in envelope:
        raise EvidenceError("it is neither a DSSE envelope nor a sigstore bundle with one")
    if envelope.get("payloadType") != PAYLOAD_TYPE:
        raise EvidenceError(f"its payloadType is not {PAYLOAD_TYPE}")
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or not signatures:
        raise EvidenceError("it has no signatures")
    if len(signatures) > MOST_SIGNATURES:
        raise EvidenceError(f"it has {len(signatures):,} signatures, more than {MOST_SIGNATURES}")
    material = top.get("verificationMaterial")
    material = material if isinstance(material, dict) else {}
    return Envelope(
        file=file,
        payload=_base64(envelope["payload"], "payload"),
        signatures=tuple(_base64(_field(one, "sig"), "signature") for one in signatures),
        named=frozenset(_named(signatures, material)),
        keyless=bool(material.keys() & {"certificate", "x509CertificateChain"}),
    )


def _named(signatures: list[Any], material: dict[str, Any]) -> Iterator[str]:
    found = [_field(one, "keyid") for one in signatures]
    for name in (*found, _field(material.get("publicKey"), "hint")):
        if isinstance(name, str) and name:
            yield name


def _field(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _base64(text: Any, what: str) -> bytes:
    """Standard or URL-safe, as DSSE allows."""
    try:
        plain = text.encode("ascii").translate(bytes.maketrans(b"-_", b"+/"))
        return base64.b64decode(plain, validate=True)
    except (AttributeError, UnicodeEncodeError, binascii.Error):
        raise EvidenceError(f"a {what} is not base64") from None
