"""Measured speeds next to a bound: stored runs, and what another runtime reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mlprogram.errors import AneError, ManifestError
from pytest_ane.tools._bound import read_measured
from pytest_ane.tools._devices import Device, published
from tests.gates.throughput.runs import run
from tests.gates.throughput.runs import speed as timed

M4_MAX = published()["M4 Max"]
CPU = Device(name="this machine", bandwidth=40, peak=0.1, held=4)
OTHER = {"runtime": "mlx-lm 0.21", "device": "M4 Max GPU", "model": "zaya1-8b", "tok_s": 31.5}


def speed(what: str = "decode", subject: str = "zaya1-8b", **identity: str) -> Any:
    return timed(4.0, 5.0, 9.0, what=what, subject=subject, identity=identity)


def store(path: Path, *speeds: Any) -> Path:
    path.write_text(json.dumps(run(*speeds)))
    return path


def tok_s(file: Path, device: Device) -> float:
    return read_measured(str(file), "zaya1-8b", device).tok_s


def test_the_median_of_decoding_the_model(tmp_path: Path) -> None:
    file = store(
        tmp_path / "run.json",
        speed("call", "zaya1-8b:L01", backend="coreml", chip="Apple M4 Max"),
        speed(subject="other", backend="coreml", chip="Apple M1"),
        speed(backend="coreml", chip="Apple M4 Max"),
    )
    assert tok_s(file, M4_MAX) == 8
    assert tok_s(file, M4_MAX.model_copy(update={"name": "M4 Max with another peak"})) == 8


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
        tok_s(file, device)


def test_the_executor_s_run_belongs_to_this_machine(tmp_path: Path) -> None:
    assert tok_s(store(tmp_path / "run.json", speed(backend="cpu", chip="EPYC")), CPU) == 8


def test_a_run_without_the_model_is_refused(tmp_path: Path) -> None:
    file = store(tmp_path / "run.json", speed("call"), speed(subject="other"))
    with pytest.raises(ManifestError, match="holds no decoding of zaya1-8b"):
        tok_s(file, M4_MAX)


def test_another_runtime_with_its_energy(tmp_path: Path) -> None:
    file = tmp_path / "mlx.json"
    file.write_text(json.dumps(OTHER | {"joules_per_token": 0.35}))
    measured = read_measured(str(file), "zaya1-8b", M4_MAX)
    assert (measured.tok_s, measured.tokens, measured.joules_per_token) == (31.5, 1, 0.35)
    with pytest.raises(ManifestError, match=r"is of zaya1-8b, and the bound of smollm2\.$"):
        read_measured(str(file), "smollm2", M4_MAX)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("\xff", "is no JSON"),
        ("[]", "give an object with runtime, device, model and tok_s"),
        ("{}", "runtime: field required; give an object"),
        (json.dumps(OTHER | {"tok_s": 0}), "tok_s: input should be greater than 0"),
        (json.dumps(OTHER | {"tok_s": float("nan")}), "tok_s: input should be a finite number"),
        (json.dumps(OTHER | {"joules_per_token": -1}), "joules_per_token: input should be"),
        (json.dumps(OTHER | {"watts": 1}), "watts: extra inputs are not permitted"),
        (json.dumps(OTHER | {"runtime": "\x1b[31m"}), "runtime: .* cannot be printed"),
        ('{"benchmarks": [1]}', r"cannot be compared with \(benchmarks"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(AneError, match=says) as caught:
        tok_s(file, M4_MAX)
    assert "\n" not in str(caught.value)


def test_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        tok_s(tmp_path / "none.json", M4_MAX)
