"""Signatures of evidence: DSSE envelopes held against the public keys that a policy names.

DSSE 1.0: https://github.com/secure-systems-lab/dsse. The cryptography, the encoding that is signed
and the choice of a hash by the curve are securesystemslib's. A key's id is a hint and no more, so
every signature is tried with every key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.evidence.envelope import PAYLOAD_TYPE, Envelope, read_envelope
from pytest_ane.evidence.store import SIGNATURES, signature
from pytest_ane.manifest.problems import label
from pytest_ane.mlprogram.errors import ManifestError, UnprovenError

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

_MOST_KEY = 1 << 16
_KINDS = "it must be a PEM file of an ed25519 key, or of an ECDSA key on P-256, P-384 or P-521"


def signed_payloads(statement: Path, signers: Sequence[Path]) -> tuple[bytes, ...]:
    """What signers signed, from the envelopes beside an evidence file; at least one.

    Args:
        statement: the evidence file; its signature is `L01.placement.json.dsse.json` or
            `L01.placement.json.sigstore.json`.
        signers: PEM files of public keys.

    Raises:
        ManifestError: a signer is no public key of a kind we know.
        UnprovenError: there is no envelope, it is damaged, or none of the signers signed it.
    """
    _require_library(statement)
    keys = [read_key(signer) for signer in signers]
    files = [signature(statement, ending) for ending in SIGNATURES]
    envelopes = [read_envelope(file) for file in files if file.exists()]
    payloads = (one.payload for one in envelopes if any(_fits(one, key) for key in keys))
    if found := tuple(payloads):
        return found
    raise _refused(statement, envelopes, keys, ", ".join(map(label, signers)))


def same_value(one: bytes, other: bytes) -> bool:
    """Whether two texts hold one JSON value; tools that sign write keys and numbers anew."""
    try:
        return one == other or _canonical(one) == _canonical(other)
    except (ValueError, RecursionError):
        return False


def read_key(file: Path) -> SSlibKey:
    """A public key from its PEM file.

    Raises:
        ManifestError: it cannot be read, or is no public key of a kind we know.
    """
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


def _refused(
    statement: Path, envelopes: Sequence[Envelope], keys: Sequence[SSlibKey], signers: str
) -> UnprovenError:
    """Why no envelope will do."""
    sign = f"sign it: {signing_command(statement)}"
    if not envelopes:
        says = f"is not signed, and the policy wants a signature by {signers}"
        return UnprovenError(f"{label(statement)} {says}; {sign}", "unsigned")
    names = frozenset[str]().union(*map(_names, keys))
    if broken := next((one for one in envelopes if one.named & names), None):
        return UnprovenError(
            f"{label(broken.file)}: the signature does not fit what it signs, which was changed; "
            f"record {label(statement)} again and {sign}",
            "signature",
        )
    first = envelopes[0]
    brings = " (it brings a certificate, which gh attestation verify checks)"
    says = f"is signed by none of {signers}"
    return UnprovenError(
        f"{label(first.file)} {says}{brings if first.keyless else ''}; {sign}",
        "signer",
    )


def signing_command(statement: Path) -> str:
    """What signs an evidence file."""
    bundle = label(signature(statement, ".sigstore.json"))
    return f"cosign attest-blob --key KEY --statement {label(statement)} --bundle {bundle}"


def _names(key: SSlibKey) -> frozenset[str]:
    """What tools call a key: securesystemslib its id, sigstore the digest of its DER form."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.hazmat.primitives.serialization import load_pem_public_key as load

    text: str = key.keyval["public"]
    hexadecimal = key.keytype == "ed25519"
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(text)) if hexadecimal else None
    der = (public or load(text.encode())).public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.sha256(der).digest()
    return frozenset((key.keyid, digest.hex(), base64.b64encode(digest).decode()))


def _canonical(data: bytes) -> str:
    return json.dumps(json.loads(data, parse_int=float), sort_keys=True)


def _require_library(statement: Path) -> None:
    try:
        import cryptography
        import securesystemslib

        del cryptography, securesystemslib
    except ImportError:
        raise UnprovenError(
            f"{label(statement)}: signatures cannot be checked without securesystemslib; run: "
            "pip install pytest-ane[signatures]",
            "library",
        ) from None
