"""Device profiles: published, of one's own, and this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.tools import _devices as devices
from pytest_ane.tools._devices import Device, calibrate_device, find_device, published, save_device

MINE = Device(name="this machine", bandwidth=37.25, peak=0.0825, held=4, sources=('a "b" \\ c',))


def test_published_chips_have_sources_and_hold_together() -> None:
    chips = published()
    assert {"M1", "M2", "M3", "M4", "M4 Max"} <= set(chips)
    for chip in chips.values():
        assert len(chip.sources) == 3
        assert all(chip.sources)
        assert chip.lanes == 32
        assert chip.held is None
        assert chip.memory is not None
        assert chip.tops is not None
        # The engine has a share of the chip's bandwidth, and what is published is its peak.
        assert chip.bandwidth < chip.memory
        assert chip.tops / 2 <= chip.peak <= chip.tops


@pytest.mark.parametrize("name", ["M4 Max", "m4 max", "Apple M4 Max"])
def test_a_chip_is_found_in_any_case(tmp_path: Path, name: str) -> None:
    assert find_device(name, tmp_path).name == "M4 Max"


def test_an_unknown_chip_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"--device M9: no such chip; there are: M1, .*M4 Max"):
        find_device("M9", tmp_path)
    with pytest.raises(ManifestError, match=r"none\.toml cannot be read: No such file"):
        find_device(str(tmp_path / "none.toml"), tmp_path)


def test_this_machine_is_saved_and_found(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="run: pytest-ane calibrate --device"):
        find_device("this machine", tmp_path)
    assert save_device(MINE, tmp_path) == tmp_path / "device.toml"
    assert find_device("this machine", tmp_path) == MINE
    assert [path.name for path in tmp_path.iterdir()] == ["device.toml"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be written"):
        save_device(MINE, tmp_path / "none")


def test_a_file_of_one_s_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nbandwidth = 10\npeak = 2\n')
    assert find_device(str(file), tmp_path) == Device(name="mine", bandwidth=10, peak=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "not valid TOML"),
        ('name = "a"\nbandwidth = 1\n', "peak: field required"),
        ('name = "a"\nbandwidth = 0\npeak = 1', "bandwidth: input should be greater than 0"),
        ('name = "a"\nbandwidth = nan\npeak = 1', "bandwidth: input should be"),
        ('name = "a"\nbandwith = 1\npeak = 1\nbandwidth = 1', "bandwith: extra inputs are not"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ManifestError, match=says) as error:
        find_device(str(file), tmp_path)
    assert "\n" not in str(error.value)


def test_rates_are_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_BYTES", 1 << 20)
    monkeypatch.setattr(devices, "_ROWS", 64)
    said: list[str] = []
    device = calibrate_device(said.append)
    assert said == ["memory bandwidth", "float32 matrix products"]
    assert (device.name, device.held, device.lanes) == ("this machine", 2, 1)
    # No machine copies less than 10 MB/s or multiplies beyond a petaflop.
    assert device.bandwidth > 0.01
    assert 0 < device.peak < 1000
    assert "numpy" in device.sources[0]


def test_the_best_of_reading_and_copying_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 0.5, 2.0])
    monkeypatch.setattr(devices, "_BYTES", 100_000_000)
    monkeypatch.setattr(devices, "_ROWS", 2000)
    monkeypatch.setattr(devices, "_best", lambda _: next(seconds))
    device = calibrate_device(lambda _: None)
    assert device.bandwidth == 0.4
    assert device.peak == round(2 * 2000**3 / 2 / 1e12, 4)


def test_the_first_round_warms_up() -> None:
    calls: list[int] = []
    assert devices._best(lambda: calls.append(1)) >= 0
    assert len(calls) == 1 + devices._ROUNDS
