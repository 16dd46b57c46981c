"""Gates in one line: what passes, what reads like a red row, and what is said of bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pytest_ane
from pytest_ane.mac.testing import DeviceRule, Mac, Replayer, Script
from pytest_ane.mlprogram.errors import AneError, BuildError, GoldenError
from pytest_ane.tools._checks import assert_close, assert_compressed, assert_on_ane
from tests.docs.pages import ROOT
from tests.docs.sessions import Written, steps
from tests.packages import save_conv

X = np.random.default_rng(0).standard_normal((1, 64, 28, 28)).astype(np.float16)


class Trunk(torch.nn.Module):
    """Convolutions of 3x3 and their sum over places: enough work for the ANE."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            convs = [torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)]
        self.convs = torch.nn.ModuleList(convs)

    def forward(self, x: Any) -> tuple[Any, Any]:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return x, x.mean((2, 3), keepdim=True)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fp16`, the trunk; `int4`, its palettes of 4 bits; `conv`, too little work for the ANE."""
    import coremltools.optimize.coreml as cto

    from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools

    ct, folder = import_coremltools(), tmp_path_factory.mktemp("checks")
    with torch.no_grad(), converter_notes():
        traced = torch.jit.trace(Trunk().eval(), torch.from_numpy(X).float(), check_trace=False)
        plain = ct.convert(
            traced,
            inputs=[ct.TensorType("x", X.shape, dtype=np.float16)],
            outputs=[ct.TensorType("y", dtype=np.float16), ct.TensorType("mean", dtype=np.float16)],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )
        plain.save(str(folder / "fp16.mlpackage"))
        config = cto.OpPalettizerConfig(nbits=4, granularity="per_grouped_channel", group_size=8)
        small = cto.palettize_weights(plain, cto.OptimizationConfig(config))
        small.save(str(folder / "int4.mlpackage"))
    save_conv(folder / "conv.mlpackage")
    return folder


def fails(check: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as error:
        check(*arguments, **options)
    return str(error.value)


def test_on_the_ane(packages: Path) -> None:
    says = assert_on_ane(packages / "int4.mlpackage", allow=["reduce_mean"])
    assert says.startswith("on the ANE (predicted: M4, macOS 27)")
    says = assert_on_ane(packages / "int4.mlpackage", chip="M4 Pro", allow=["reduce_mean"])
    assert says.startswith("on the ANE (predicted: M4 Pro, ")
    text = fails(assert_on_ane, packages / "conv.mlpackage")
    assert text.startswith("conv.mlpackage: placement failed\n")
    assert "off the ANE (1 of 1 op, too little work, predicted: M4, macOS 27, T = 1)" in text
    assert "name what may be off the ANE in allow" in text
    assert_on_ane(packages / "conv.mlpackage", allow=["conv"])
    assert "off-ane does not have it" not in fails(
        assert_on_ane, packages / "int4.mlpackage", off=["relu"]
    )
    assert_on_ane(packages / "int4.mlpackage", allow=["reduce_mean"], spec_version=9)
    text = fails(assert_on_ane, packages / "int4.mlpackage", allow=["reduce_mean"], spec_version=6)
    assert "version 9, above spec_version = 6; convert" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_sampling_that_must_not_run_on_the_ane(tmp_path: Path) -> None:
    """The how-to's detector for iOS 16, as its page says; for iOS 15 the page's session runs it."""
    import coremltools as ct

    page = ROOT / "docs/how-to/own-tests.md"
    (source,) = (s for s in steps(page) if isinstance(s, Written) and s.path == "detector.py")
    detector: dict[str, Any] = {}
    exec(source.text, detector)
    package = detector["export"](tmp_path / "detector.mlpackage", ct.target.iOS16)
    leaves = ["topk", "gather_along_axis", "cast", "resample"]
    text = fails(assert_on_ane, package, allow=leaves, off=["resample"], spec_version=6)
    said = page.read_text(encoding="utf-8").partition("it is red:\n\n```text\nAssertionError: ")[2]
    assert text.startswith(said.partition("```")[0].rstrip())


def test_on_a_mac_core_ml_answers(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ane.tools._checks.default_backend", lambda: "coreml")
    with Replayer(Script(Mac(compiler=""))):
        assert assert_on_ane(packages / "conv.mlpackage").startswith("on the ANE (Core ML's plan)")
    with Replayer(Script(Mac(compiler=""), (DeviceRule("CPU"),))):
        text = fails(assert_on_ane, packages / "int4.mlpackage")
    assert "run on the CPU instead of the ANE" in text
    assert "Core ML's plan)" in text


@pytest.mark.slow
def test_close(packages: Path) -> None:
    right, wrong = Trunk().eval(), Trunk().eval()
    wrong.convs[3].weight.data *= -1
    package, inputs = packages / "int4.mlpackage", {"x": X}
    assert "cosine" in assert_close(package, right, [inputs, {"x": X / 2}])
    assert "cosine" in assert_close(package, packages / "fp16.mlpackage")
    text = fails(assert_close, str(package), wrong, inputs)
    assert text.startswith("int4.mlpackage: fidelity failed\n")
    assert "min_cosine = 0.97" in text

    def by_name(x: Any) -> dict[str, Any]:
        return dict(zip(("y", "mean"), right(torch.from_numpy(x).float()), strict=True))

    assert_close(package, by_name, inputs, uncompressed=packages / "fp16.mlpackage")
    assert "max_relative_l2 = 0.001" in fails(
        assert_close, package, by_name, inputs, max_relative_l2=0.001
    )


def test_compressed(packages: Path) -> None:
    package, plain = packages / "int4.mlpackage", packages / "fp16.mlpackage"
    assert "6 of 12 weights compressed" in assert_compressed(package, 4, max_bytes="200 kB")
    assert_compressed(package, 4, uncompressed=plain)
    text = fails(assert_compressed, plain, keep=["*convs_0*"])
    assert "5 of 12 weights have more than 4 bits" in text
    assert "above max_bytes = 9,000" in fails(assert_compressed, package, max_bytes=9000)


@pytest.mark.parametrize(
    ("error", "sentence", "check", "arguments"),
    [
        (BuildError, "no.mlpackage does not exist; check the path", assert_on_ane, {}),
        (GoldenError, "needs inputs, arrays by the package's names", assert_close,
         {"reference": lambda x: x}),
        (GoldenError, "1 outputs, and the package 2 (y, mean); return them by name", assert_close,
         {"reference": lambda x: x, "inputs": {"x": X}}),
        (GoldenError, "inputs are for a reference that is called", assert_close,
         {"reference": "fp16.mlpackage", "inputs": {"x": X}}),
        (AneError, "z", assert_close, {"reference": lambda z: (z, z), "inputs": {"z": X}}),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence(
    packages: Path, error: type[Exception], sentence: str, check: Any, arguments: dict[str, Any]
) -> None:
    package = "no.mlpackage" if error is BuildError else "int4.mlpackage"
    with pytest.raises(error) as raised:
        check(packages / package, **arguments)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_fixture_has_them(ane_check: Any) -> None:
    assert ane_check.assert_close is assert_close


def test_they_are_loaded_when_they_are_first_used() -> None:
    code = "import pytest_ane, sys; assert 'numpy' not in sys.modules; pytest_ane.assert_close"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert pytest_ane.assert_on_ane is assert_on_ane
    with pytest.raises(AttributeError, match="no attribute 'asserts'"):
        _ = pytest_ane.asserts  # type: ignore[attr-defined]
