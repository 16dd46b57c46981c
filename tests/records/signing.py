"""Keys and envelopes as other tools make them, written from the specifications."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, TypeAlias

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

TYPE = "application/vnd.in-toto+json"
HASHES = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def new_key(kind: str = "P-256") -> PrivateKey:
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    curves = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1, "P-521": ec.SECP521R1}
    return ec.generate_private_key(curves[kind]())


def write_public(key: PrivateKey, path: Path) -> Path:
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pem)
    return path


def sign(key: PrivateKey, payload: bytes, kind: str = TYPE) -> bytes:
    """A signature over the pre-authentication encoding, `DSSEv1 29 application/... 5 hello`."""
    encoded = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(encoded)
    return key.sign(encoded, ec.ECDSA(HASHES[key.curve.key_size]))


def envelope(key: PrivateKey, payload: bytes, keyid: str | None = "") -> dict[str, Any]:
    """As `cosign attest-blob --output-attestation` writes it, with an empty key id."""
    signature = {"sig": base64.b64encode(sign(key, payload)).decode()}
    if keyid is not None:
        signature["keyid"] = keyid
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": TYPE,
        "signatures": [signature],
    }


def stated(record: bytes) -> bytes:
    """The statement that `cosign attest-blob --predicate` makes of a record, and signs."""
    statement = {
        "_type": "https://in-toto.io/Statement/v0.1",
        "predicateType": "https://github.com/pytest-ane/pytest-ane/record/v1",
        "subject": [{"name": "x", "digest": {"sha256": hashlib.sha256(record).hexdigest()}}],
        "predicate": json.loads(record),
    }
    return json.dumps(statement).encode()


def bundle(key: PrivateKey, payload: bytes) -> dict[str, Any]:
    """As `cosign attest-blob --key --bundle` writes it: the key is only hinted at."""
    return {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": hint(key)}, "tlogEntries": []},
        "dsseEnvelope": envelope(key, payload, keyid=None),
    }


def hint(key: PrivateKey) -> str:
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path
