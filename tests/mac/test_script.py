"""Scripts on disk: as written, and what is said of those that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mac.testing import DeviceRule, Failure, Mac, Script, code_14, stale
from pytest_ane.mlprogram.errors import RecordingError


def test_a_script_survives_its_file(tmp_path: Path) -> None:
    script = Script(
        Mac("Apple M5", "26.2", "25C56", 16, "", "VirtualMac2,1", True, True),
        (DeviceRule("GPU", op="conv", units=("ALL",)), DeviceRule("none", name="x", supported=())),
        1,
        (stale(), code_14("load", times=None), Failure("predict", "no", 2, 3, "*L01*")),
        False,
    )
    assert Script.load(script.save(tmp_path / "new")) == script


def test_only_what_was_chosen_is_written(tmp_path: Path) -> None:
    Script(devices=(DeviceRule("CPU", op="relu"),)).save(tmp_path)
    written = json.loads((tmp_path / "script.json").read_text())
    assert written == {"devices": [{"preferred": "CPU", "op": "relu"}]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", r"invalid JSON: .*\.$"),
        ("[]", r"input should be an object\.$"),
        ('{"device": []}', r"device: unexpected keyword argument\.$"),
        ('{"devices": [{}]}', r"devices\[0\]\.preferred: .* required.*\.$"),
        ('{"devices": [{"preferred": "NPU"}]}', r"preferred: input should be 'ANE', 'GPU', .*\.$"),
        ('{"devices": [{"preferred": "ANE", "units": ["NE"]}]}', r"units\[0\]: input should be "),
        ('{"machine": {"cores": -1}}', r"machine\.cores: input should be greater .* 0\.$"),
        ('{"machine": {"cores": "16"}}', r"machine\.cores: input should be a valid integer\.$"),
        ('{"failures": [{"at": "plan", "message": "x", "times": 0}]}', r"times: .* than 0\.$"),
        ('{"devices": [{"preferred": "ANE", "cost": NaN}]}', r"devices\[0\]\.cost: .*\.$"),
        ('{"devices": [{"preferred": "ANE", "cost": 1e999}]}', r"devices\[0\]\.cost: .*\.$"),
        ('{"unassigned_paths": true}', r"unassigned_paths: input should be a valid integer\.$"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "script.json").write_text(text)
    with pytest.raises(RecordingError, match=rf"^{tmp_path}/script\.json: .*{sentence}") as error:
        Script.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_script(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"cannot be read \(No such file .*\); give a folder"):
        Script.load(tmp_path)


@settings(max_examples=100)
@given(text=st.binary(max_size=80))
def test_any_bytes_are_a_script_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    (folder / "script.json").write_bytes(text)
    said = ""
    try:
        Script.load(folder)
    except RecordingError as error:
        said = str(error)
    assert "\n" not in said
