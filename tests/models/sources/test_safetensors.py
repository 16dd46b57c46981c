"""Published checkpoints: values of every dtype, rows, configuration, and all that can be wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources._safetensors import SafetensorsSource
from tests.models.sources.checkpoints import bf16, write_checkpoint, write_file

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ROUND = np.array([[1.0, -2.5, 0.15625], [3e38, 1e-40, -0.0]], np.float32)
HALF = np.array([0.5, 65504.0, -6e-8], np.float16)
FULL = np.array([[1.0, 2.0], [1e6, -0.1]], np.float32)
BANK = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CONFIG = {"num_hidden_layers": 2, "text_config": {"hidden_size": 8, "rope": {"theta": 1e4}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(
        tmp_path / "model",
        {"half": ("F16", HALF), "round": bf16(ROUND)},
        {"full": ("F32", FULL), "bank": bf16(BANK)},
        config=CONFIG,
    )


@pytest.fixture
def source(folder: Path) -> SafetensorsSource:
    return SafetensorsSource(folder)


def complaint(call: Any) -> str:
    with pytest.raises(SourceError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("stored", ["BF16", "F16", "F32"])
def test_tensors_and_rows_are_converted_to_nearest(tmp_path: Path, stored: str, dtype: Any) -> None:
    values = np.random.default_rng(1).standard_normal((33, 7)).astype(np.float32)
    values[3, :6] = 3e38, 1e-40, -0.0, 65504.0, -6e-8, 0.15625
    with np.errstate(over="ignore"):
        half = values.clip(-65504, 65504).astype(np.float16)
        cut = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        entry = {"BF16": bf16(values), "F16": ("F16", half), "F32": ("F32", values)}[stored]
        expected = {"BF16": cut, "F16": half, "F32": values}[stored].astype(dtype)
    source = SafetensorsSource(write_file(tmp_path / "w.safetensors", {"w": entry}))
    tensor, rows = source.tensor("w", (33, 7), dtype), source.rows("w", range(3, 9), 7, 33, dtype)
    assert tensor.dtype == rows.dtype == dtype
    assert (tensor.tobytes(), rows.tobytes()) == (expected.tobytes(), expected[3:9].tobytes())


def test_what_comes_out_is_a_copy_that_may_be_written(source: SafetensorsSource) -> None:
    first = source.tensor("full", (2, 2))
    first[:] = 0
    np.testing.assert_array_equal(source.tensor("full", (2, 2)), FULL)


def test_rows_are_those_of_the_whole_in_the_order_asked_for(source: SafetensorsSource) -> None:
    whole = source.tensor("round", (2, 3))
    np.testing.assert_array_equal(source.rows("round", [1, 0, 1], 3), whole[[1, 0, 1]])
    np.testing.assert_array_equal(source.rows("full", range(2), 2), FULL)


def test_rows_of_a_bank_count_through_its_leading_axes(source: SafetensorsSource) -> None:
    np.testing.assert_array_equal(source.rows("bank", [3, 5], 4), BANK[1, [0, 2]])


def test_a_folder_an_index_and_a_single_file(folder: Path, tmp_path: Path) -> None:
    single = write_file(tmp_path / "model.safetensors", {"full": ("F32", FULL)})
    for path in (folder, folder / INDEX, folder / SECOND, single, tmp_path):
        source = SafetensorsSource(path)
        assert (source.label, source.synthetic) == (str(path), False)
        np.testing.assert_array_equal(source.tensor("full", (2, 2)), FULL)
    assert sorted(SafetensorsSource(folder).names) == ["bank", "full", "half", "round"]
    assert sorted(SafetensorsSource(folder / SECOND).names) == ["bank", "full"]


def test_data_that_is_not_aligned(tmp_path: Path) -> None:
    """A header of odd length puts every value at an odd address."""
    path = tmp_path / "odd.safetensors"
    for spaces in range(4):
        text = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})
        header = (text + " " * spaces).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + FULL.tobytes())
        assert SafetensorsSource(path).tensor("w", (4,)).tolist() == FULL.ravel().tolist()


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    tensors = {"none": bf16(np.zeros((0, 4))), "one": ("F32", np.array(2.5, np.float32))}
    source = SafetensorsSource(write_file(tmp_path / "w.safetensors", tensors))
    assert source.tensor("none", (0, 4)).shape == (0, 4)
    assert float(source.tensor("one", ())) == 2.5


def test_the_configuration_and_what_the_manifest_lays_over_it(folder: Path) -> None:
    source = SafetensorsSource(folder)
    assert source.value("num_hidden_layers") == 2
    assert source.value("text_config.rope.theta") == 1e4
    trial = {"num_hidden_layers": 1, "text_config": {"rope": {"theta": 5e6}}}
    over = SafetensorsSource(folder, trial)
    assert over.value("num_hidden_layers") == 1
    assert over.value("text_config") == {"hidden_size": 8, "rope": {"theta": 5e6}}


def test_a_checkpoint_without_config_json(tmp_path: Path) -> None:
    path = write_file(tmp_path / "w.safetensors", {"full": ("F32", FULL)})
    said = complaint(lambda: SafetensorsSource(path).value("a"))
    assert said == (
        f"{tmp_path / 'config.json'}: no such file; add the configuration that was published with "
        "the weights."
    )
    assert SafetensorsSource(path, {"a": 1}).value("a") == 1


def test_what_is_missing_is_named(source: SafetensorsSource, folder: Path) -> None:
    first = folder / FIRST
    for call, said in (
        (lambda: source.value("text_config.width"), f"{folder}: no key 'text_config.width'"),
        (lambda: source.tensor("rounds", (2, 3)), "'rounds' among its 4; nearest: round."),
        (lambda: source.rows("model.embed", [0], 3), f"{folder}: no tensor 'model.embed'"),
        (lambda: source.tensor("round", (3, 2)), "(2, 3), and by its configuration (3, 2)"),
        (lambda: source.rows("round", [0], 2), "(2, 3), and by its configuration rows of 2"),
        (lambda: source.rows("half", [0], 3), "(3,), and by its configuration rows of 3"),
        (lambda: source.rows("round", [2], 3), f"{first}: round has rows 0 to 1, not 2."),
        (lambda: source.rows("round", [-1], 3), f"{first}: round has rows 0 to 1, not -1."),
        (lambda: source.tokenizer, f"{folder}/tokenizer.json: no such file; add the tokenizer"),
    ):
        assert said in complaint(call)


def test_a_dtype_that_is_not_read(tmp_path: Path) -> None:
    path = write_file(tmp_path / "w.safetensors", {"w": ("I8", np.zeros(4, np.uint8))})
    source = SafetensorsSource(path)
    for call in (lambda: source.tensor("w", (4,)), lambda: source.tensor("w", (4,), np.float16)):
        assert "tensor 'w' is stored as I8; read are BF16, F16, F32" in complaint(call)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("q_proj.weight", "F8_E4M3"),
        ("experts.gate_up_proj", "F8_E5M2"),
        ("q_proj.weight", "I8"),
        ("q_proj.weight", "U8"),
        ("q_proj.weight_scale", "U8"),
        ("q_proj.weight_scale_inv", "U8"),
        ("q_proj.weight_packed", "I8"),
        ("q_proj.qweight", "I8"),
        ("q_proj.weight.absmax", "U8"),
        ("q_proj.weight.quant_state.bitsandbytes__nf4", "U8"),
        ("q_proj.SCB", "I8"),
    ],
)
def test_a_quantized_checkpoint(folder: Path, name: str, dtype: str) -> None:
    """Even where no configuration says so, and in any of its files."""
    more = {"full": ("F32", FULL), "bank": bf16(BANK), name: (dtype, np.zeros(4, np.uint8))}
    write_file(folder / SECOND, more)
    assert complaint(lambda: SafetensorsSource(folder)) == (
        f"{folder / SECOND}: tensor {name!r} ({dtype}) is of a quantized checkpoint, and weights "
        "are read in BF16, F16, F32; use the checkpoint that it was made from, or its GGUF file."
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("position_ids", "I8"), ("attn.bias", "U8"), ("k_scale", "F32"), ("attn.weight", "F64")],
)
def test_buffers_are_no_quantized_weights(tmp_path: Path, name: str, dtype: str) -> None:
    array = np.zeros(4, {"F32": np.float32, "F64": np.float64}.get(dtype, np.uint8))
    file = write_file(tmp_path / "w.safetensors", {name: (dtype, array), "full": ("F32", FULL)})
    np.testing.assert_array_equal(SafetensorsSource(file).tensor("full", (2, 2)), FULL)


@pytest.mark.parametrize("stored", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(tmp_path: Path, stored: str, value: float) -> None:
    values = np.ones((5, 4), np.float32)
    values[3, 2] = values[4, 0] = value
    entry = {"BF16": bf16(values), "F16": ("F16", values.astype(np.float16))}
    path = write_file(
        tmp_path / "w.safetensors",
        {"w": entry.get(stored, ("F32", values)), "v": ("F32", values[3]), "u": bf16(values[:3])},
    )
    source = SafetensorsSource(path)
    for call, name, row in (
        (lambda: source.tensor("w", (5, 4)), "w", 3),
        (lambda: source.tensor("v", (4,), np.float16), "v", 2),
        (lambda: source.rows("w", [1, 4, 3], 4), "w", 4),
        (lambda: source.rows("w", range(2, 5), 4), "w", 3),
    ):
        said = f"{path}: tensor '{name}' has NaN or infinity, first in row {row}; fetch the file"
        assert said in complaint(call)
    assert source.rows("w", [0, 2], 4).tolist() == source.tensor("u", (3, 4))[:2].tolist()


def test_of_one_file_beside_an_index_it_is_read(folder: Path) -> None:
    """As in transformers; the index is read by its own name."""
    write_file(folder / "model.safetensors", {"full": ("F32", FULL + 1)})
    np.testing.assert_array_equal(SafetensorsSource(folder).tensor("full", (2, 2)), FULL + 1)
    np.testing.assert_array_equal(SafetensorsSource(folder / INDEX).tensor("full", (2, 2)), FULL)


def test_files_of_an_index_are_read_as_transformers_reads_them(folder: Path) -> None:
    """All that is in them, of tensors of one name the last file's, whatever the index says."""
    full, more = ("F32", FULL + 1), ("F32", FULL + 2)
    write_file(folder / FIRST, {"half": ("F16", HALF), "round": bf16(ROUND), "full": full})
    write_file(folder / SECOND, {"full": more, "bank": bf16(BANK), "head": full})
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["full"] = FIRST
    (folder / INDEX).write_text(json.dumps(index))
    source = SafetensorsSource(folder)
    assert sorted(source.names) == ["bank", "full", "half", "head", "round"]
    np.testing.assert_array_equal(source.tensor("full", (2, 2)), FULL + 2)
    np.testing.assert_array_equal(source.tensor("head", (2, 2)), FULL + 1)


def test_an_index_that_names_an_absent_file(folder: Path) -> None:
    (folder / SECOND).unlink()
    assert complaint(lambda: SafetensorsSource(folder)) == (
        f"{folder / INDEX}: names {SECOND}, which is not there; fetch the missing file."
    )


def test_a_tensor_that_is_not_where_the_index_has_it(folder: Path) -> None:
    write_file(folder / FIRST, {"half": ("F16", HALF)})
    source = SafetensorsSource(folder)
    said = complaint(lambda: source.tensor("round", (2, 3)))
    assert f"{folder / FIRST}: tensor 'round' is not in this file, where the index has it" in said


@pytest.mark.parametrize("name", ["../w", "/etc/passwd", "a/b", "a\\b", "", 3, "..", ["a"], {}])
def test_an_index_names_files_of_its_own_folder_only(folder: Path, name: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    assert f"names the file {name!r}, no name" in complaint(lambda: SafetensorsSource(folder))


def test_an_index_that_names_a_file_no_disk_can_hold(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": "x" * 300}}))
    assert complaint(lambda: SafetensorsSource(folder)) == (
        f"{folder / INDEX}: names {'x' * 100}, which is not there; fetch the missing file."
    )


def test_several_files_without_an_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    count = len(list(folder.glob("*.safetensors")))
    assert count > 1
    assert f"{folder}: has {count} .safetensors" in complaint(lambda: SafetensorsSource(folder))


def test_an_adapter_beside_a_whole_checkpoint(folder: Path) -> None:
    """Which transformers lays over the weights, where peft is installed."""
    (folder / "adapter_config.json").write_text("{}")
    for path in (folder, folder / INDEX, folder / SECOND):
        assert complaint(lambda path=path: SafetensorsSource(path)) == (
            f"{folder}: has an adapter (adapter_config.json), and with it the weights are another "
            "model; merge it (PEFT's merge_and_unload) and name the folder of the whole model, or "
            "remove that file if the weights are meant without it."
        )


@pytest.mark.parametrize("text", ["{}", '{"weight_map": 3}', '{"weight_map": {}}'])
def test_an_index_without_its_table(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    assert "it has no table 'weight_map'" in complaint(lambda: SafetensorsSource(folder))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 100_000])
def test_damaged_json(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    said = complaint(lambda: SafetensorsSource(folder))
    assert said.startswith(f"{folder / 'config.json'}: not ")
    assert said.endswith("; fetch it again.")


def test_a_pickle_is_refused_unread(tmp_path: Path) -> None:
    why = (
        "a pickle, and reading a pickle runs whatever code it holds; save the weights with "
        "safetensors.torch.save_file, or use a checkpoint that has safetensors."
    )
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80\x04")
    for asked in (tmp_path, path, tmp_path / "pytorch_model.bin.index.json"):
        pickle = asked if asked != tmp_path else path
        assert complaint(lambda asked=asked: SafetensorsSource(asked)) == f"{pickle}: {why}"
    index = tmp_path / INDEX
    index.write_text(json.dumps({"weight_map": {"w": path.name}}))
    assert complaint(lambda: SafetensorsSource(index)) == f"{path}: {why}"


def test_nothing_there(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert f"{absent}: no such file or folder;" in complaint(lambda: SafetensorsSource(absent))
    assert f"neither {INDEX} nor" in complaint(lambda: SafetensorsSource(tmp_path))


def test_an_lfs_pointer(folder: Path) -> None:
    (folder / FIRST).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\n")
    assert f"{folder / FIRST}: a Git LFS pointer" in complaint(lambda: SafetensorsSource(folder))


def test_truncation_is_noticed_at_every_length(tmp_path: Path) -> None:
    tensors = {"half": ("F16", HALF), "round": bf16(ROUND)}
    path = write_file(tmp_path / "w.safetensors", tensors)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        said = complaint(lambda: SafetensorsSource(path).tensor("half", (3,)))
        start = f"{path}: the safetensors file is damaged or incomplete ({length} bytes; "
        assert said.startswith(start), length
        assert said.endswith("; fetch it again.")


@pytest.mark.parametrize(
    ("offsets", "shape"),
    [([4, 12], [2, 2]), ([0, 8], [2, 3]), ([0, 1 << 60], [1 << 59]), ([8, 0], [2, 2])],
)
def test_offsets_that_overlap_or_lead_out(
    tmp_path: Path, offsets: list[int], shape: list[int]
) -> None:
    first = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}
    second = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
    header = json.dumps({"a": first, "b": second}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    assert "damaged or incomplete (" in complaint(lambda: SafetensorsSource(path).names)


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data())
def test_damaged_bytes_give_values_or_a_source_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    write_file(path, {"half": ("F16", HALF), "round": bf16(ROUND)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(SourceError):
        source = SafetensorsSource(path)
        assert source.tensor("half", (3,)).shape == (3,)
        assert source.rows("round", [1], 3).shape == (1, 3)
