"""Errors of weights, read from files: spoilt packages of real weights fail, and right ones pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from pytest_ane.gates.compression import judge, measure
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make import Artifact
from pytest_ane.make.compress import compress
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.manifest import Compression, Shard
from pytest_ane.manifest.policy import CompressionPolicy
from pytest_ane.mlprogram.arrays import Array, HalfArray
from pytest_ane.mlprogram.blob import packed
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.weights import find_weights
from pytest_ane.models.sources import Source

WIDTH, ROWS, BITS = 576, 64, 6
KMEANS = {"method": "palettize", "nbits": BITS, "group_size": 16}
Weights = dict[str, HalfArray]
Judge = Callable[..., Verdict]


@pytest.fixture(scope="module")
def weights(smollm2: Source) -> Weights:
    """Rows of real projections, a norm, a bias that is long, and a factor."""

    def of(name: str, height: int) -> HalfArray:
        tensor = smollm2.tensor(f"blk.1.{name}.weight", (height, WIDTH), np.float16)
        return np.array(tensor[:ROWS], np.float16).reshape(ROWS, WIDTH, 1, 1)

    norm = np.array(smollm2.tensor("blk.1.attn_norm.weight", (WIDTH,), np.float16))
    return {
        "gate": of("ffn_gate", 1536),
        "up": of("ffn_up", 1536),
        "v": of("attn_v", 192),
        "norm": norm.reshape(1, WIDTH, 1, 1),
        "bias": np.linspace(-1, 1, 4096).astype(np.float16),
        "factor": np.float16(0.125),
    }


def model(weights: Mapping[str, Any]) -> Any:
    """Projections of `x` times a norm and a factor, and a long bias."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb

    half = ct.converters.mil.mil.types.fp16
    inputs = [mb.TensorSpec((1, WIDTH, 1, 1), dtype=half), mb.TensorSpec((4096,), dtype=half)]

    @mb.program(input_specs=inputs, opset_version=ct.target.iOS18)
    def program(x: Any, long: Any) -> Any:
        y = mb.mul(x=x, y=mb.const(val=weights["norm"], name="norm"))
        y = mb.mul(x=y, y=mb.const(val=weights["factor"], name="factor"))
        made = [
            mb.conv(x=y, weight=mb.const(val=value, name=name))
            for name, value in weights.items()
            if name not in ("norm", "bias", "factor")
        ]
        return *made, mb.add(x=long, y=mb.const(val=weights["bias"], name="bias"))

    with converter_notes():
        return ct.convert(
            program, minimum_deployment_target=ct.target.iOS18, skip_model_load=True,
            pass_pipeline=ct.PassPipeline.EMPTY,
        )  # fmt: skip


def save(weights: Mapping[str, Any], asked: Any, path: Path) -> Path:
    source = Path(model(weights).package_path)
    compress(source, TypeAdapter(Compression).validate_python(asked), path, "m:a")
    return path


@pytest.fixture(scope="module")
def plain(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(weights, {"method": "none"}, tmp_path_factory.mktemp("plain") / "fp16.mlpackage")


@pytest.fixture
def verdict_of(plain: Path) -> Judge:
    """The gate's verdict on a package of which `plain` is the uncompressed form."""

    def judged(path: Path, asked: Any = KMEANS) -> Verdict:
        shard = Shard.model_validate(
            {"model": "m", "id": "a", "artifact": path, "reference": "none",
             "uncompressed": plain, "compression": asked}
        )  # fmt: skip
        measurement = measure(shard, Artifact(path), read_model(path))
        return judge(measurement, CompressionPolicy(), "m:a", shard.compression)

    return judged


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        KMEANS,
        {**KMEANS, "engine": "coremltools"},
        {**KMEANS, "engine": "coremltools", "nbits": 4, "granularity": "per_tensor"},
        {**KMEANS, "engine": "coremltools", "mode": "uniform", "nbits": 8},
        {"method": "linear"},
        {"method": "linear", "dtype": "int4", "granularity": "per_block"},
        {"method": "prune", "n_m_ratio": [2, 4]},
        {"method": "prune", "target_sparsity": 0.5, "joint": [KMEANS]},
        {**KMEANS, "joint": [{"method": "linear", "granularity": "per_tensor"}]},
    ],
)
def test_what_its_scheme_explains_passes(
    asked: Any, weights: Weights, verdict_of: Judge, tmp_path: Path
) -> None:
    """Palettes of coremltools' own engine too; the long bias is compressed by none."""
    verdict = verdict_of(save(weights, asked, tmp_path / "m.mlpackage"), asked)
    assert (verdict.findings, verdict.values["weights_missing"]) == ((), 0)
    assert 0.99 < verdict.values["max_weight_error"] <= 1.25
    assert verdict.values["max_weight_row_error"] <= 4


def changed(weights: Weights, name: str, change: Callable[[Any], Any]) -> Weights:
    return weights | {name: change(weights[name].copy())}


def clipped(weight: HalfArray) -> HalfArray:
    most = np.float16(4 * weight.astype(np.float32).std())
    return np.clip(weight, -most, most)


def with_zeros(norm: HalfArray) -> HalfArray:
    norm[0, 100:116] = 0
    return norm


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda w: changed(w, "gate", lambda gate: w["up"]), "gate rows 0 to 63 cost"),
        (lambda w: changed(w, "gate", np.zeros_like), "gate rows 0 to 63 cost"),
        (lambda w: changed(w, "gate", clipped), "gate row"),
        (lambda w: changed(w, "norm", with_zeros), "norm is not compressed, but row 0 differ"),
        (lambda w: changed(w, "bias", np.negative), "bias is not compressed, but rows"),
        (lambda w: w | {"factor": np.float16(0.25)}, "factor is another number"),
        (
            lambda w: {name: value for name, value in w.items() if name != "up"},
            "up of the uncompressed program is not in the package",
        ),
    ],
    ids=["neighbour", "dead", "clipped", "norm", "bias", "factor", "missing"],
)
def test_other_weights_fail(
    make: Callable[[Weights], Weights], says: str, weights: Weights, verdict_of: Judge,
    tmp_path: Path,
) -> None:  # fmt: skip
    verdict = verdict_of(save(make(weights), KMEANS, tmp_path / "m.mlpackage"))
    assert verdict.status == "failed"
    assert says in verdict.reasons[0].reason
    assert len(verdict.reasons) == 1


def edit(package: Path, name: str, key: str, change: Callable[[Array], None]) -> None:
    """Change the bytes that a compressed weight has as `indices` or `lut`."""
    read = read_model(package)
    (weight,) = (w for w in find_weights(read) if w.weight.name == name)
    (value,) = weight.operation.inputs[key]
    before = packed(read, value).tobytes()
    file = package / "Data/com.apple.CoreML/weights/weight.bin"
    content = file.read_bytes()
    assert content.count(before) == 1
    after = np.frombuffer(before, np.uint8).copy()
    change(after)
    assert after.tobytes() != before
    file.write_bytes(content.replace(before, after.tobytes()))


def zeroed_table(data: Array) -> None:
    data.view(np.float16).reshape(-1, 1 << BITS)[1] = 0


def reversed_table(data: Array) -> None:
    tables = data.view(np.float16).reshape(-1, 1 << BITS)
    tables[1] = tables[1, ::-1].copy()


def swapped_tables(data: Array) -> None:
    tables = data.view(np.float16).reshape(-1, 1 << BITS)
    tables[:] = tables[[1, 0, 2, 3]]


def flipped_bit(data: Array) -> None:
    """The highest bit of the first index of row 20."""
    at = 20 * WIDTH * BITS + BITS - 1
    data[at // 8] ^= 1 << at % 8


def lost_page(data: Array) -> None:
    data[4096:8192] = 0


@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        ("lut", zeroed_table, "rows 16 to 31 cost "),
        ("lut", reversed_table, "rows 16 to 31 cost "),
        ("indices", flipped_bit, "row 20 cost "),
        ("indices", lost_page, "rows 9 to 18 cost "),
        # Tables of neighbouring groups are much alike: no row is far off, the whole weight is.
        ("lut", swapped_tables, "costs "),
    ],
)
def test_spoilt_bytes_fail(
    key: str, change: Callable[[Array], None], says: str, weights: Weights, verdict_of: Judge,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = save(weights, KMEANS, tmp_path / "m.mlpackage")
    edit(path, "gate", key, change)
    (finding,) = verdict_of(path).reasons
    assert finding.reason.startswith(f"compression: gate {says}")
