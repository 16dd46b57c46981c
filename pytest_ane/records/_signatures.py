"""Signatures of evidence: envelopes beside a record, held against keys that a policy names.

    evidence/smollm2/L01.placement.json                 the record
    evidence/smollm2/L01.placement.json.sigstore.json   its signature, by
        cosign attest-blob --key KEY --type URI --predicate RECORD --bundle BUNDLE RECORD

What is signed is an in-toto Statement (https://github.com/in-toto/attestation, `spec/v1`) whose
predicate is the record, in a DSSE envelope (https://github.com/secure-systems-lab/dsse), alone in
`.dsse.json` or in a sigstore bundle (https://github.com/sigstore/protobuf-specs). Files of
strangers are read but not believed. The cryptography, the encoding that is signed and the choice of
a hash by the curve are securesystemslib's. A key's id is a hint and no more, so it is not read:
every signature is tried with every key.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_ane.manifest.problems import label
from pytest_ane.mlprogram.errors import EvidenceError, ManifestError, UnprovenError
from pytest_ane.records.record import parse, read_file

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

SIGNATURES = (".dsse.json", ".sigstore.json")
"""What is appended to a file's name for the signature beside it."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "https://github.com/pytest-ane/pytest-ane/record/v1"
MOST_SIGNATURES = 32
_MOST_KEY = 1 << 16
_KINDS = "it must be a PEM file of an ed25519 key, or of an ECDSA key on P-256, P-384 or P-521"


def signature(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def signed_payloads(record: Path, signers: Sequence[Path]) -> tuple[bytes, ...]:
    """What signers (PEM files) signed beside a file; `UnprovenError` for nothing of theirs."""
    _require_library(record)
    keys = [read_key(signer) for signer in signers]
    files = [signature(record, ending) for ending in SIGNATURES]
    envelopes = {label(file): read_envelope(file) for file in files if file.exists()}
    payloads = (one.payload for one in envelopes.values() if any(_fits(one, key) for key in keys))
    if found := tuple(payloads):
        return found
    wanted, sign = ", ".join(map(label, signers)), f"sign it: {signing_command(record)}"
    if not envelopes:
        says = f"{label(record)} is not signed, and the policy wants a signature by {wanted}"
        raise UnprovenError(f"{says}; {sign}", "unsigned")
    says = f"{', '.join(envelopes)} is signed by none of {wanted}, or what it signs was changed"
    raise UnprovenError(f"{says}; {sign}", "signer")


def signs(payload: bytes, record: bytes) -> bool:
    """Whether a signed statement is of a record; tools that sign write keys and numbers anew."""
    try:
        return _canonical(record_of(payload)) == _canonical(record)
    except (EvidenceError, ValueError, RecursionError):
        return False


def record_of(payload: bytes) -> bytes:
    """The predicate of a statement of a record, as JSON; `EvidenceError` where it is none."""
    if not isinstance(top := parse(payload), dict) or top.get("predicateType") != PREDICATE_TYPE:
        raise EvidenceError(f"signs no statement of the predicateType {PREDICATE_TYPE}")
    return json.dumps(top.get("predicate")).encode()


def read_key(file: Path) -> SSlibKey:
    """A public key from its PEM file; `ManifestError` where it is none of a kind we know."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    says = f"is no public key of a signer; {_KINDS}"
    try:
        with file.open("rb") as opened:
            pem = opened.read(_MOST_KEY)
        if b"PRIVATE KEY-----" in pem:
            says = "is a private key; name the public one, and keep this one out of the repository"
        else:
            key = load_pem_public_key(pem)
            if isinstance(key, Ed25519PublicKey | EllipticCurvePublicKey):
                return SSlibKey.from_crypto(key)
    except OSError as error:
        says = f"cannot be read: {error.strerror}"
    except (ValueError, UnsupportedAlgorithm):
        pass
    raise ManifestError(f"The signer {label(file)} {says}.")


class Envelope(NamedTuple):
    """What a DSSE envelope holds, read but not believed."""

    payload: bytes
    signatures: tuple[bytes, ...]


def read_envelope(file: Path) -> Envelope:
    """An envelope, alone or in a sigstore bundle; `UnprovenError` where it is damaged."""
    try:
        return _envelope(parse(read_file(file) or b""))
    except EvidenceError as error:
        says = f"{label(file)} is no signature: {error}; sign the evidence again."
        raise UnprovenError(says, "signature") from None


def _envelope(top: Any) -> Envelope:
    if not isinstance(top, dict):
        raise EvidenceError("it holds no JSON object")
    if "messageSignature" in top:
        raise EvidenceError("it signs a file as such, not a statement (cosign attest-blob does)")
    envelope = top.get("dsseEnvelope", top)
    if not isinstance(envelope, dict) or "payload" not in envelope:
        raise EvidenceError("it is neither a DSSE envelope nor a sigstore bundle with one")
    if envelope.get("payloadType") != PAYLOAD_TYPE:
        raise EvidenceError(f"its payloadType is not {PAYLOAD_TYPE}")
    if not isinstance(signatures := envelope.get("signatures"), list) or not signatures:
        raise EvidenceError("it has no signatures")
    if len(signatures) > MOST_SIGNATURES:
        raise EvidenceError(f"it has {len(signatures):,} signatures, more than {MOST_SIGNATURES}")
    signed = (one.get("sig") if isinstance(one, dict) else None for one in signatures)
    return Envelope(
        _base64(envelope["payload"], "payload"), tuple(_base64(one, "signature") for one in signed)
    )


def _base64(text: Any, what: str) -> bytes:
    try:
        plain = text.encode("ascii").translate(bytes.maketrans(b"-_", b"+/"))
        return base64.b64decode(plain, validate=True)
    except (AttributeError, UnicodeEncodeError, binascii.Error):
        raise EvidenceError(f"a {what} is not base64") from None


def _fits(envelope: Envelope, key: SSlibKey) -> bool:
    from securesystemslib import dsse
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    encoded = dsse.Envelope(envelope.payload, PAYLOAD_TYPE, {}).pae()
    for found in envelope.signatures:
        try:
            key.verify_signature(Signature(key.keyid, found.hex()), encoded)
        except UnverifiedSignatureError:
            continue
        return True
    return False


def signing_command(record: Path) -> str:
    file, bundle = label(record), label(signature(record, ".sigstore.json"))
    return (
        f"cosign attest-blob --key KEY --type {PREDICATE_TYPE} --predicate {file} "
        f"--bundle {bundle} {file}"
    )


def _canonical(data: bytes) -> str:
    return json.dumps(json.loads(data, parse_int=float), sort_keys=True)


def _require_library(record: Path) -> None:
    try:
        import cryptography  # noqa: F401
        import securesystemslib  # noqa: F401
    except ImportError:
        raise UnprovenError(
            f"{label(record)}: signatures cannot be checked without securesystemslib; run: "
            "pip install pytest-ane[signatures]",
            "library",
        ) from None
