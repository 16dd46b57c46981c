"""Envelopes of strangers."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.evidence.envelope import read_envelope
from pytest_ane.mlprogram.errors import UnprovenError
from tests.evidence.signing import bundle, envelope, new_key, write_json

KEY = new_key("ed25519")
GOOD = envelope(KEY, b"{}", "key")


def test_what_is_read(tmp_path: Path) -> None:
    found = read_envelope(write_json(tmp_path / "x.dsse.json", GOOD))
    assert (found.payload, len(found.signatures), found.named) == (b"{}", 1, {"key"})
    assert not found.keyless


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


def test_no_object(tmp_path: Path) -> None:
    path = write_json(tmp_path / "x.dsse.json", [GOOD])
    assert "it holds no JSON object" in refused(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"{", b"[" * 200_000, b'{"a": NaN}', b'{"a":1,"a":2}', b" " * (17 << 20)],
    ids=["empty", "binary", "short", "nested", "nan", "twice", "huge"],
)
def test_no_json(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.dsse.json"
    path.write_bytes(data)
    assert "is no signature: " in refused(path)


def test_nested_inside(tmp_path: Path) -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"dsseEnvelope": deep}
    refused(write_json(tmp_path / "x.sigstore.json", deep))


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
