"""Noise: sigma by hand, what is kept, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from pytest_ane.gates.throughput.baseline import (
    Calibration,
    Noise,
    calibrations,
    file_of,
    noise_of,
    read,
    write,
)
from pytest_ane.gates.throughput.stored import files_of
from pytest_ane.mlprogram.errors import UnprovenError
from tests.gates.throughput.runs import HERE, THERE, speed, storage, store


def noise(*medians: float, subject: str = "smollm2") -> Noise:
    return Noise(what="decode", subject=subject, tokens=40, medians=medians)


def load(*medians: float) -> Noise:
    return Noise(what="load", subject="smollm2:L01", tokens=0, medians=medians)


def test_sigma_by_hand() -> None:
    assert noise(1 / 0.9, 1.0, 1 / 1.1).sigma == pytest.approx(0.1)
    found = load(0.9, 1.0, 1.1)
    assert found.runs == 3
    assert found.sigma == pytest.approx(0.1)
    assert found.limit == pytest.approx(0.28)
    assert found.uncertainty == pytest.approx(0.5)
    assert noise(*[1.0, 1.1] * 3).uncertainty == pytest.approx(0.316, abs=1e-3)


def test_one_run_is_no_noise() -> None:
    with pytest.raises(ValidationError):
        noise(1.0)
    for runs in ([], [[]], [[speed(1.0)]], [[speed(1.0)], [speed(1.0, identity=THERE)]]):
        with pytest.raises(
            UnprovenError, match=r"No benchmark was in two runs of the same machine"
        ):
            calibrations(runs)


def test_medians_by_benchmark_and_machine() -> None:
    once = speed(0.3, what="load", subject="smollm2:L01", tokens=0)
    runs = [[speed(4.0, 5.0, 9.0), once], [speed(6.0)], [speed(7.0, identity=THERE)]]
    (found,) = calibrations(runs)
    assert found == Calibration(identity=HERE, noises=(noise(5.0, 6.0),))


def test_it_is_kept_beside_the_runs(tmp_path: Path) -> None:
    place, other = storage(tmp_path), noise(1.0, 2.0, subject="other")
    file = write(place, Calibration(identity=HERE, noises=(noise(1.0, 2.0), other)))
    assert file.parent == tmp_path / ".benchmarks" / place.default_machine_id
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert read(place, THERE) == ()
    assert noise_of(place, speed(4.0)) == noise(1.0, 2.0)
    assert noise_of(place, speed(4.0, tokens=20)) is None
    write(place, Calibration(identity=HERE, noises=(noise(3.0, 4.0),)))
    assert set(read(place, HERE)) == {noise(3.0, 4.0), other}
    run = store(tmp_path, 1, speed(4.0))
    for which in ("*", "*/*", "0001"):
        assert files_of(place, which) == [run]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid JSON"),
        ("[]", "input should be an object"),
        ("{}", "identity: field required"),
        (json.dumps({"identity": THERE, "noises": []}), "it is another machine's"),
        (json.dumps({"identity": HERE, "noises": [{"what": "load"}]}),
         "noises[0].subject: field required"),
    ],
    ids=["empty", "list", "foreign", "machine", "short"],
)  # fmt: skip
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    place = storage(tmp_path)
    file = file_of(place, HERE)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(UnprovenError) as caught:
        read(place, HERE)
    assert str(caught.value).startswith(f"{file} cannot be compared with ({says}")
    assert str(caught.value).endswith("delete it, and record it again with: pytest-ane calibrate")
    with pytest.raises(UnprovenError):
        write(place, Calibration(identity=HERE, noises=(noise(1.0, 2.0),)))
    assert file.read_text() == text
