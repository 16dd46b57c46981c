"""GGUF files: tensors, rows, metadata, and every way a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFEndian, GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources._gguf import GGUFSource
from tests.models.sources.files import write_gguf

MATRIX = np.arange(-96, 96, dtype=np.float32).reshape(3, 64) / 8
TENSORS = {
    "norm": (np.array([1.5, -2.0, 0.25, 8.0]), Kind.F32),
    "half": (np.array([[0.5, 1.0], [2.0, -4.0]]), Kind.F16),
    "eight": (MATRIX, Kind.Q8_0),
    "four": (MATRIX, Kind.Q4_1),
}
METADATA = {
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": ["a", "b", "Ġc"],
    "tokenizer.ggml.token_type": [3, 1, 1],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", TENSORS, METADATA)


@pytest.fixture(scope="module")
def source(file: Path) -> GGUFSource:
    return GGUFSource(file)


def test_f32_and_f16_are_read_exactly(source: GGUFSource) -> None:
    assert source.tensor("norm", (4,)).tolist() == [1.5, -2.0, 0.25, 8.0]
    assert source.tensor("half", (2, 2)).tolist() == [[0.5, 1.0], [2.0, -4.0]]


@pytest.mark.parametrize(("name", "steps"), [("eight", 127), ("four", 15)])
def test_quantized_blocks_are_expanded(source: GGUFSource, name: str, steps: int) -> None:
    """Within half a step of each block of 32, whose values lie 31/8 apart or up to 12 from 0."""
    step = (12 if name == "eight" else 31 / 8) / steps
    assert np.abs(source.tensor(name, (3, 64)) - MATRIX).max() <= step * 0.51


@pytest.mark.parametrize("name", ["eight", "four"])
def test_rows_are_those_of_the_whole_tensor_in_the_order_asked_for(
    source: GGUFSource, name: str
) -> None:
    whole = source.tensor(name, (3, 64))
    np.testing.assert_array_equal(source.rows(name, [2, 0, 2], 64), whole[[2, 0, 2]])


def test_metadata_and_names(source: GGUFSource, file: Path) -> None:
    assert source.value("general.architecture") == "llama"
    assert source.value("llama.block_count") == 2
    assert source.value("llama.rope.freq_base") == 10000.0
    assert source.value("tokenizer.ggml.tokens") == ["a", "b", "Ġc"]
    assert source.value("tokenizer.ggml.token_type") == [3, 1, 1]
    assert sorted(source.names) == sorted(TENSORS)
    assert (source.label, source.synthetic) == (str(file), False)


@pytest.mark.parametrize("endian", GGUFEndian)
def test_arrays_are_those_of_gguf_s_own_reader(tmp_path: Path, endian: GGUFEndian) -> None:
    arrays = {
        "strings": ["", "one", "Ġtwo", "x" * 300, ""],
        "numbers": [1, -2, 300],
        "fractions": [0.5, -1.25],
        "flags": [True, False],
        "lists": [[1, 2], [3, 4]],
    }
    writer = GGUFWriter(tmp_path / "some.gguf", "llama", endianess=endian)
    for key, items in arrays.items():
        writer.add_array(key, items)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    theirs = GGUFReader(tmp_path / "some.gguf")
    source = GGUFSource(tmp_path / "some.gguf")
    for key, items in arrays.items():
        assert source.value(key) == theirs.fields[key].contents()
        assert source.value(key) == items or key == "lists"
    assert source.value("general.architecture") == "llama"


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_writable_float32_which_torch_can_wrap_or_float16(
    source: GGUFSource, name: str
) -> None:
    shape = np.asarray(TENSORS[name][0]).shape
    whole, half = source.tensor(name, shape), source.tensor(name, shape, np.float16)
    assert (whole.dtype, half.dtype) == (np.float32, np.float16)
    assert whole.flags.writeable
    assert whole.flags.c_contiguous
    np.testing.assert_array_equal(half, whole.astype(np.float16))


def test_what_lies_beyond_float16_becomes_infinite(tmp_path: Path) -> None:
    large = np.array([70000.0, -70000.0, 65504.0])
    source = GGUFSource(write_gguf(tmp_path / "large.gguf", {"w": (large, Kind.F32)}))
    assert source.tensor("w", (3,), np.float16).tolist() == [np.inf, -np.inf, 65504.0]


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0])
def test_values_that_are_not_finite(tmp_path: Path, kind: Kind) -> None:
    values = np.ones((5, 32))
    values[3, 2] = values[4, 0] = np.inf
    with np.errstate(invalid="ignore"):
        path = write_gguf(tmp_path / "w.gguf", {"w": (values, kind), "v": (values[3], kind)})
    source = GGUFSource(path)
    for call, name, row in (
        (lambda: source.tensor("w", (5, 32)), "w", 3),
        (lambda: source.rows("w", [1, 4, 3], 32), "w", 4),
        (lambda: source.tensor("v", (32,)), "v", 0 if kind == Kind.Q8_0 else 2),
    ):
        with pytest.raises(SourceError, match=f"tensor '{name}' has NaN .*, first in row {row};"):
            call()
    np.testing.assert_allclose(source.rows("w", [0, 2], 32), 1, rtol=1e-3)


def test_what_is_missing_is_named(source: GGUFSource, file: Path) -> None:
    for call, message in (
        (lambda: source.value("llama.vocab_size"), f"{file}: no metadata key 'llama.vocab_size'"),
        (
            lambda: source.tensor("blk.0.attn_q.weight", (4, 4)),
            f"{file}: no tensor 'blk.0.attn_q.weight' among its 4; does the family in shards.toml "
            "fit this file?",
        ),
        (lambda: source.tensor("eight", (64, 3)), "(3, 64), and by its configuration (64, 3)"),
        (lambda: source.rows("eight", [0, 3], 64), f"{file}: eight has rows 0 to 2, not 3."),
        (lambda: source.rows("eight", [-1], 64), f"{file}: eight has rows 0 to 2, not -1."),
        (lambda: source.rows("eight", [0], 32), "(3, 64), and by its configuration rows of 32"),
        (lambda: source.rows("norm", [0], 4), "shape (4,), and by its configuration rows of 4"),
    ):
        with pytest.raises(SourceError) as error:
            call()
        assert message in str(error.value)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a wheel", b"version https://git-lfs"])
def test_another_kind_of_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.gguf"
    path.write_bytes(content)
    with pytest.raises(SourceError) as error:
        GGUFSource(path)
    assert f"{path}: not a GGUF file, for it begins with {content[:4]!r}" in str(error.value)


def test_a_file_that_may_not_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError) as error:
        GGUFSource(file)
    assert str(error.value) == f"{file}: cannot be read (Permission denied)."


def complaint(path: Path) -> str:
    """What reading everything in a file says, empty if nothing."""
    try:
        source = GGUFSource(path)
        for key in METADATA:
            source.value(key)
        for name, (array, _) in TENSORS.items():
            source.tensor(name, array.shape)
        source.rows("eight", [0], 64)
    except SourceError as error:
        return str(error)
    return ""


@pytest.mark.drawn
@pytest.mark.slow
def test_truncation_is_noticed_at_every_length(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    end = max(t.data_offset + t.n_bytes for t in GGUFSource(file)._reader.tensors)
    path = tmp_path / "short.gguf"
    for length in range(4, end):
        path.write_bytes(whole[:length])
        said = complaint(path)
        start = f"{path}: the GGUF file is damaged or incomplete ({length:,} bytes; "
        assert said.startswith(start), length
        assert said.endswith("); fetch it again.")
        assert "\n" not in said
    path.write_bytes(whole[:end])
    assert complaint(path) == ""


def test_the_sentence_says_where_a_truncated_file_ends(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(file.read_bytes()[:30])
    with pytest.raises(SourceError) as error:
        GGUFSource(path)
    assert f"{path}: the GGUF file is damaged or incomplete (30 bytes; it ends" in str(error.value)


def test_an_absurdly_long_array_is_refused_at_once(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    start = data.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    path = tmp_path / "long.gguf"
    path.write_bytes(data[:start] + (1 << 60).to_bytes(8, "little") + data[start + 8 :])
    with pytest.raises(SourceError, match=r"an array of 1,152,921,504,606,846,976 items"):
        GGUFSource(path)


def test_a_kind_that_gguf_cannot_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "kind.gguf", {"w": (MATRIX, Kind.Q8_0)})
    source = GGUFSource(path)

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("gguf.dequantize", refuse)
    with pytest.raises(SourceError) as error:
        source.tensor("w", (3, 64))
    assert f"{path}: tensor 'w' is stored as Q8_0, which the gguf" in str(error.value)


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=300)
@given(data=st.data())
def test_damaged_bytes_give_values_or_a_source_error(
    data: st.DataObject, file: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        content[data.draw(st.integers(4, 700))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    assert "\n" not in complaint(path)


@pytest.mark.parametrize("shape", [(0,), (0, 32), (32, 0), (2, 0, 32)])
def test_an_axis_of_0_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    file = write_gguf(tmp_path / "empty.gguf", {"w": (np.zeros(shape), Kind.F32)})
    with pytest.raises(SourceError) as error:
        GGUFSource(file)
    assert f"{file}: tensor 'w' has shape {shape}, an axis of 0" in str(error.value)
