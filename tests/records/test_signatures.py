"""Whose signature an evidence file has."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib import dsse
from securesystemslib.signer import CryptoSigner

from pytest_ane.mlprogram.errors import ManifestError, UnprovenError
from pytest_ane.records._signatures import read_envelope, read_key, signed_payloads, signs
from tests.records.signing import bundle, envelope, new_key, sign, stated, write_json, write_public

PAYLOAD = b'{"_type": "https://in-toto.io/Statement/v1"}'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evidence file, in the folder that sentences are relative to."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "L01.placement.json"
    path.write_bytes(PAYLOAD)
    return path


def beside(file: Path, ending: str) -> Path:
    return file.with_name(f"{file.name}.{ending}.json")


@pytest.mark.parametrize("kind", ["ed25519", "P-256", "P-384", "P-521"])
@pytest.mark.parametrize("keyid", ["", "anything", None])
def test_an_envelope(file: Path, kind: str, keyid: str | None) -> None:
    key, other = new_key(kind), new_key()
    signers = [write_public(k, file.parent / n) for k, n in ((other, "b.pub"), (key, "a.pub"))]
    write_json(beside(file, "dsse"), envelope(key, PAYLOAD, keyid))
    assert signed_payloads(file, signers) == (PAYLOAD,)


def _by_securesystemslib(key: Any, payload: bytes) -> Any:
    made = dsse.Envelope(payload, "application/vnd.in-toto+json", {})
    made.sign(CryptoSigner(key))
    return made.to_dict()


def _by_two(key: Any, payload: bytes) -> Any:
    made = envelope(new_key(), payload)
    made["signatures"] += envelope(key, payload)["signatures"]
    return made


def _url_safe(key: Any, payload: bytes) -> Any:
    made = envelope(key, payload)
    assert set(made["payload"]) & set("+/")
    made["payload"] = made["payload"].replace("+", "-").replace("/", "_")
    return made


@pytest.mark.parametrize(
    ("ending", "make"),
    [("sigstore", bundle), ("dsse", _by_securesystemslib), ("dsse", _by_two), ("dsse", _url_safe)],
)
def test_how_other_tools_write_it(
    file: Path, ending: str, make: Callable[[Any, bytes], Any]
) -> None:
    """One of several signatures is enough."""
    key, payload = new_key("ed25519"), b'{"a": "\xc3\xbf\xc3\xbe>>>???"}'
    write_json(beside(file, ending), make(key, payload))
    assert signed_payloads(file, [write_public(key, file.parent / "lab.pub")]) == (payload,)


def refusal(file: Path, key: object = None) -> UnprovenError:
    public = write_public(key or new_key(), file.parent / "keys" / "lab.pub")  # type: ignore[arg-type]
    with pytest.raises(UnprovenError) as caught:
        signed_payloads(file, [public])
    return caught.value


SIGN = (
    "sign it: cosign attest-blob --key KEY "
    "--type https://github.com/pytest-ane/pytest-ane/record/v1 --predicate L01.placement.json "
    "--bundle L01.placement.json.sigstore.json L01.placement.json"
)


def test_no_signature(file: Path) -> None:
    error = refusal(file)
    assert error.kind == "unsigned"
    assert str(error) == (
        "L01.placement.json is not signed, and the policy wants a signature by keys/lab.pub; "
        + SIGN
    )


def test_the_library_is_not_installed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "securesystemslib", None)
    error = refusal(file)
    assert error.kind == "library"
    assert str(error) == (
        "L01.placement.json: signatures cannot be checked without securesystemslib; run: "
        "pip install pytest-ane[signatures]"
    )


@pytest.mark.parametrize(
    ("pem", "says"),
    [
        (b"", "is no public key of a signer; it must be a PEM file of an ed25519 key, or of an "),
        (b"ssh-ed25519 AAAA me", "is no public key of a signer"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "is no public key"),
        (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "is a private key; name the public"),
        (bytes(1 << 20), "is no public key"),
    ],
    ids=["empty", "ssh", "broken", "private", "large"],
)
def test_no_keys(tmp_path: Path, pem: bytes, says: str) -> None:
    path = tmp_path / "lab.pub"
    path.write_bytes(pem)
    with pytest.raises(ManifestError) as caught:
        read_key(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_kind_of_key_that_is_not_for_signing_here(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, x25519

    for key in (x25519.X25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256K1())):
        path = write_public(key, tmp_path / "lab.pub")  # type: ignore[arg-type]
        with pytest.raises(ManifestError, match="is no public key of a signer"):
            read_key(path)
    with pytest.raises(ManifestError, match="cannot be read: Is a directory"):
        read_key(tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', True),
        ('{"a": 1.0}', '{"a": 1}', True),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ('{"a": 0.1}', '{"a": 0.10000000000000001}', True),
        ("{}", "}", False),
        ("{}", "[" * 100_000, False),
    ],
)
def test_what_is_signed_is_one_value(one: str, other: str, same: bool) -> None:
    assert signs(stated(one.encode()), other.encode()) is same


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b"[]",
        b"{",
        b'{"predicateType": "https://slsa.dev/provenance/v1", "predicate": {}}',
        b'{"predicateType": "https://github.com/pytest-ane/pytest-ane/record/v1"}',
        b'{"predicate": {"predicateType": "https://github.com/pytest-ane/pytest-ane/record/v1"}}',
        stated(b"{}").replace(b'"predicate": {}', b'"predicate": {}, "predicate": {}'),
    ],
)
def test_another_statement_signs_no_record(payload: bytes) -> None:
    assert not signs(payload, b"{}")


KEY = new_key("ed25519")
GOOD = envelope(KEY, b"{}", "key")


def refused(path: Path) -> str:
    with pytest.raises(UnprovenError) as caught:
        read_envelope(path)
    assert caught.value.kind == "signature"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1100
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"payload": ...}, "it is neither a DSSE envelope nor a sigstore bundle with one"),
        ({"dsseEnvelope": 3}, "it is neither a DSSE envelope nor a sigstore bundle"),
        ({"messageSignature": {}}, "it signs a file as such, not a statement"),
        ({"payloadType": "text/plain"}, "its payloadType is not application/vnd"),
        ({"payload": "a"}, "a payload is not base64"),
        ({"payload": "YQ==\n"}, "a payload is not base64; sign"),
        ({"payload": "\u00ff"}, "a payload is not base64; sign the"),
        ({"payload": None}, "a payload is not base64; sign the evidence"),
        ({"signatures": []}, "it has no signatures"),
        ({"signatures": {}}, "it has no signatures; sign"),
        ({"signatures": [3]}, "a signature is not base64"),
        ({"signatures": [{"sig": 3}]}, "a signature is not base64; sign"),
        ({"signatures": GOOD["signatures"] * 5000}, "it has 5,000 signatures, more than 32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    made = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    path = write_json(tmp_path / "x.dsse.json", made)
    assert f"x.dsse.json is no signature: {says}" in refused(path)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"{", b"[" * 200_000, b'{"a": NaN}', b'{"a":1,"a":2}', b" " * (17 << 20),
        b'{"dsseEnvelope":' * 100 + b"{}" + b"}" * 100, json.dumps([GOOD]).encode(),
    ],
    ids=["empty", "binary", "short", "nested", "nan", "twice", "huge", "nested inside", "list"],
)  # fmt: skip
def test_no_json(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.dsse.json"
    path.write_bytes(data)
    assert "is no signature: " in refused(path)


@settings(max_examples=200)
@given(
    at=st.integers(0, len(json.dumps(bundle(KEY, b"{}"))) - 1),
    put=st.binary(max_size=3),
    cut=st.integers(0, 20),
)
def test_mutated_bundles_never_crash(
    tmp_path_factory: pytest.TempPathFactory, at: int, put: bytes, cut: int
) -> None:
    data = json.dumps(bundle(KEY, b"{}")).encode()
    path = tmp_path_factory.getbasetemp() / "mutated.sigstore.json"
    path.write_bytes(data[:at] + put + data[at + cut :])
    with suppress(UnprovenError):
        assert read_envelope(path).signatures


def _changed(key: Any) -> Any:
    made = bundle(key, PAYLOAD)
    made["dsseEnvelope"]["payload"] = envelope(key, PAYLOAD + b" ")["payload"]
    return made


def _of_another_type(key: Any) -> Any:
    made = envelope(key, PAYLOAD)
    made["signatures"][0]["sig"] = base64.b64encode(sign(key, PAYLOAD, "application/json")).decode()
    return made


@pytest.mark.parametrize("kind", ["ed25519", "P-256", "P-384", "P-521"])
@pytest.mark.parametrize(
    "make", [lambda key: envelope(new_key("P-256"), PAYLOAD), _changed, _of_another_type]
)
def test_what_no_signer_signed(file: Path, kind: str, make: Callable[[Any], Any]) -> None:
    """By another key, with a payload that was changed, or of another type."""
    key = new_key(kind)
    write_json(beside(file, "sigstore"), make(key))
    error = refusal(file, key)
    assert error.kind == "signer"
    assert str(error) == (
        "L01.placement.json.sigstore.json is signed by none of keys/lab.pub, or what it signs was "
        f"changed; {SIGN}"
    )
