"""Stored runs beside a bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.analysis.devices import Device, published
from pytest_ane.analysis.measured import decoded
from pytest_ane.core.errors import ManifestError
from pytest_ane.gates.throughput.speed import KEY, Speed

M4_MAX = published()["M4 Max"]
CPU = Device(name="this machine", bandwidth=40, peak=0.1, held=4)


def speed(what: Any = "decode", subject: str = "zaya1-8b", **identity: str) -> dict[str, Any]:
    return Speed(
        what=what, subject=subject, tokens=40, seconds=(4.0, 5.0, 9.0), identity=identity
    ).to_json()


def store(path: Path, *speeds: dict[str, Any]) -> Path:
    runs = [{"extra_info": {}}, *({"extra_info": {KEY: one}} for one in speeds)]
    path.write_text(json.dumps({"benchmarks": runs}))
    return path


def test_the_median_of_decoding_the_model(tmp_path: Path) -> None:
    file = store(
        tmp_path / "run.json",
        speed("call", "zaya1-8b:L01", backend="coreml", chip="Apple M4 Max"),
        speed(subject="other", backend="coreml", chip="Apple M1"),
        speed(backend="coreml", chip="Apple M4 Max"),
    )
    assert decoded(file, "zaya1-8b", M4_MAX) == 8
    other = M4_MAX.model_copy(update={"name": "M4 Max with another peak"})
    assert decoded(file, "zaya1-8b", other) == 8


@pytest.mark.parametrize(
    ("identity", "device", "ran_on"),
    [
        ({"backend": "cpu", "chip": "EPYC"}, M4_MAX, "this machine"),
        ({"backend": "coreml", "chip": "Apple M4"}, M4_MAX, "M4"),
        ({"backend": "coreml", "chip": "Apple M4 Max"}, CPU, "M4 Max"),
    ],
)
def test_another_device_is_refused(
    tmp_path: Path, identity: dict[str, str], device: Device, ran_on: str
) -> None:
    file = store(tmp_path / "run.json", speed(**identity))
    with pytest.raises(ManifestError, match=f"was measured on {ran_on}, .* --device '{ran_on}'"):
        decoded(file, "zaya1-8b", device)


def test_the_executor_s_run_belongs_to_this_machine(tmp_path: Path) -> None:
    file = store(tmp_path / "run.json", speed(backend="cpu", chip="EPYC"))
    assert decoded(file, "zaya1-8b", CPU) == 8


def test_a_run_without_the_model_is_refused(tmp_path: Path) -> None:
    file = store(tmp_path / "run.json", speed("call"), speed(subject="other"))
    with pytest.raises(ManifestError, match="holds no decoding of zaya1-8b"):
        decoded(file, "zaya1-8b", M4_MAX)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "[" * 100_000, '{"benchmarks": [1]}', '{"benchmarks": [{"extra_info": null}]}',
     '{"benchmarks": [{"extra_info": {"ane": {"what": "decode"}}}]}'],
)  # fmt: skip
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(ManifestError, match=r"run\.json: is damaged, or no run"):
        decoded(file, "zaya1-8b", M4_MAX)


def test_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        decoded(tmp_path / "none.json", "zaya1-8b", M4_MAX)
