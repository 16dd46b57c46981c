"""`pytest-ane init --package`: manifests of packages as they are found, and what they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.cli import main
from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.manifest import Linear, Palettize, load
from pytest_ane.mlprogram.digests import tree_bytes
from tests import multifunction
from tests.forked import Forge
from tests.mlprogram.packages import weight_file
from tests.mlprogram.pipelines import three
from tests.packages import save_conv, save_layers
from tests.tools.conftest import AsJson


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `conv`, `conv4` and `conv8`, compressed from it, `tokens`, `state`, `several`."""
    folder = tmp_path_factory.mktemp("packages")
    save_conv(folder / "conv.mlpackage")
    compress = ["compress", str(folder / "conv.mlpackage"), "--weight-threshold=16"]
    for name, settings in {
        "conv4": ["--nbits=8", "--group-size=8"],
        "conv8": ["--method=linear"],
    }.items():
        assert main([*compress, *settings, "-o", str(folder / f"{name}.mlpackage")]) == 0
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    table = np.random.default_rng(0).standard_normal((100_000, 2)).astype(np.float16)

    def tokens(ids: Any, bytes: Any, kind: Any) -> Any:
        words = mb.gather(x=table, indices=ids, axis=0)
        letters = mb.gather(x=table[:256], indices=bytes, axis=0)
        return mb.add(x=mb.add(x=words, y=letters), y=mb.cast(x=kind, dtype="fp16"), name="y")

    def state(x: Any, sum: Any) -> Any:
        after = mb.add(x=mb.read_state(input=sum), y=x)
        mb.coreml_update_state(state=sum, value=after)
        return mb.mul(x=after, y=np.float16(0.5), name="y")

    rows = [mb.TensorSpec((1, 8), types.int32) for _ in range(2)]
    specs = {
        "tokens": (tokens, [*rows, mb.TensorSpec((1, 8, 1), types.int32)]),
        "state": (
            state,
            [mb.TensorSpec((1, 8), types.fp16), mb.StateTensorSpec((1, 8), types.fp16)],
        ),
    }
    with converter_notes():
        for name, (body, inputs) in specs.items():
            program = mb.program(input_specs=inputs, opset_version=ct.target.iOS18)(body)
            made = ct.convert(
                program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18,
                skip_model_load=True,
            )  # fmt: skip
            made.save(str(folder / f"{name}.mlpackage"))
        one = multifunction._one(folder / "one.mlpackage", seed=0, length=1)
        four = multifunction._one(folder / "four.mlpackage", seed=1, length=4)
    multifunction.save(folder / "several.mlpackage", {"decode": one, "verify4": four})
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*arguments: object) -> list[Any]:
    assert main(["init", "--no-gates", *map(str, arguments)]) == 0
    [model] = load(Path("shards.toml")).models
    assert model.name == "mine"
    return list(model.shards)


def test_one_package(packages: Path, capsys: pytest.CaptureFixture[str], as_json: AsJson) -> None:
    [shard] = init("--package", packages / "conv.mlpackage")
    assert shard.id == "conv"
    assert shard.reference == "none"
    assert shard.artifact.samefile(packages / "conv.mlpackage")
    assert shard.compression is None
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "wrote shards.toml"
    assert out[1].startswith("mine:conv: 1 operations, ")
    assert out[1].endswith(" bytes, nothing compressed")
    assert out[2] == "next: pytest --ane-shards=all -m gate"
    text = Path("shards.toml").read_text()
    assert "#   input x: fp16 [1, 8, 1, 1], from [1, 8, 1, 1] to [1, 8, 4, 1]" in text
    assert ", for iOS 18\n" in text
    Path("shards.toml").unlink()
    data = as_json("init", "--no-gates", "--package", str(packages / "conv.mlpackage"))
    assert data == {"written": ["shards.toml"], "packages": [out[1]]}


def test_compression_is_claimed_as_found(packages: Path) -> None:
    four, eight = init(
        "--package", packages / "conv4.mlpackage", "--package", packages / "conv8.mlpackage",
        "--reference", packages / "conv.mlpackage", "--reference", "none",
    )  # fmt: skip
    assert four.reference.samefile(packages / "conv.mlpackage")
    assert eight.reference == "none"
    assert isinstance(four.compression, Palettize)
    assert (four.compression.nbits, four.compression.group_size) == (8, 8)
    assert four.compression.weight_threshold == 127
    assert isinstance(eight.compression, Linear)
    assert eight.compression.granularity == "per_channel"
    # Packages as small as these are mostly program, so no ratio is asked for.
    assert {shard.policy.compression.min_ratio for shard in (four, eight)} == {None}


def test_what_most_weights_have_is_the_table_and_others_are_exceptions(tmp_path: Path) -> None:
    save_layers(tmp_path)
    assert main(["compress", "model.mlpackage", "--weight-threshold=16", "--mode=uniform",
                 "--group-size=4", "--nbits=3", "--override", 'weights = "odd", group_size = 17',
                 "--keep=wide", "-o", "out.mlpackage"]) == 0  # fmt: skip
    [shard] = init("--package", "out.mlpackage")
    claimed = {name: shard.compression.for_weight(name) for name in ("wide", "odd", "few")}
    assert claimed["wide"].method == "none"
    assert [(c.mode, c.nbits) for name, c in claimed.items() if name != "wide"] == [
        ("uniform", 3), ("uniform", 3),
    ]  # fmt: skip
    found = claimed["odd"]
    assert found.granularity == "per_tensor" or found.group_size == 17


def test_the_package_must_stay_as_small_as_it_is(tmp_path: Path) -> None:
    save_layers(tmp_path)
    assert main(["compress", "model.mlpackage", "-o", "out.mlpackage"]) == 0
    [shard] = init("--package", "out.mlpackage")
    assert shard.compression == Palettize(keep=())
    dense = 2 * (64 * 64 + 17 * 64 + 4 * 17)
    assert 1 < shard.policy.compression.min_ratio <= dense / tree_bytes(Path("out.mlpackage"))


def test_what_no_table_says_is_not_claimed(packages: Path, tmp_path: Path) -> None:
    settings = 'method = "prune"\ntarget_sparsity = 0.5\njoint = [{ method = "linear" }]'
    Path("joint.toml").write_text(f"weight_threshold = 16\n{settings}")
    assert main(["compress", str(packages / "conv.mlpackage"), "--config=joint.toml", "-o",
                 "joint.mlpackage"]) == 0  # fmt: skip
    [shard] = init("--package", "joint.mlpackage")
    assert shard.compression is None
    assert "No table says all of it" in Path("shards.toml").read_text()


def test_inputs(packages: Path) -> None:
    [shard] = init("--package", packages / "tokens.mlpackage")
    assert {name: (spec.count, spec.sample) for name, spec in shard.inputs.items()} == {
        "ids": (100_000, True)
    }
    text = Path("shards.toml").read_text()
    assert '# [models.mine.shard.tokens.inputs.kind]\n# kind = "ids"\n# count = 2\n' in text
    assert "inputs.bytes" not in text  # The program shows it, and probes draw all 256.


def test_states_and_functions(packages: Path) -> None:
    state, several = init(
        "--package", packages / "state.mlpackage", "--package", packages / "several.mlpackage"
    )
    text = Path("shards.toml").read_text()
    assert "#   state sum: fp16 [1, 8]" in text
    assert "# function verify4:\n#   input x: fp32 [1, 8, 1, 4]" in text
    assert (state.id, several.id) == ("state", "several")


def test_a_pipeline(tmp_path: Path) -> None:
    package = three().save(tmp_path)
    weight_file(package).rename(weight_file(package).with_name("1-weight.bin"))
    [shard] = init("--package", package)
    assert (shard.id, shard.compression) == ("model", None)
    text = Path("shards.toml").read_text()
    assert "operations in 3 programs" in text
    assert text.count("#   input ") == 1


def test_packages_of_one_name(packages: Path) -> None:
    Path("all.v2.mlpackage").symlink_to(packages / "conv.mlpackage")
    same = ["--package", packages / "conv.mlpackage"] * 2
    shards = init(*same, "--package", "all.v2.mlpackage")
    assert [shard.id for shard in shards] == ["conv", "conv-2", "p-all"]


def test_paths_are_relative_to_the_manifest(packages: Path, tmp_path: Path) -> None:
    package = save_layers(tmp_path / "built here")
    assert main(["init", "new", "--no-gates", "--package", str(package.relative_to(tmp_path))]) == 0
    text = Path("new/shards.toml").read_text()
    assert 'artifact = "../built here/model.mlpackage"' in text
    [model] = load(Path("new/shards.toml")).models
    assert model.shards[0].artifact is not None
    assert model.shards[0].artifact.samefile(package)


def test_bad_input(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conv = packages / "conv.mlpackage"
    for name in ("file", "damaged.npz"):
        Path(name).touch()
    row: Any = np.zeros((1, 8), np.float32)
    np.savez("hidden.npz", **{"0.input": row, "0.expected": row})
    np.savez("tokens.npz", **{"0.in.tokens": row, "0.out.y": row})
    for arguments, says in (
        (["--package=no.mlpackage"], "no.mlpackage: no such package; check the path."),
        (["--package=file"], "file: not an .mlpackage (it is a file)."),
        (["--package=."], "Manifest.json: missing; the package is incomplete."),
        (["--reference=none"], "0 --package and 1 --reference were given"),
        ([f"--package={conv}", "--reference=no.npz"], "--reference no.npz does not exist"),
        ([f"--package={conv}", "--reference=file"], "--reference file: must be a .mlpackage, "),
        ([f"--package={conv}", "--reference=damaged.npz"], "damaged.npz: "),
        (
            [f"--package={conv}", "--reference=hidden.npz"],
            "holds hidden states of a family's shard",
        ),
        ([f"--package={conv}", "--reference=tokens.npz"], f"has tokens, but {conv} has x; name"),
        ([f"--package={conv}", f"--reference={conv}"], "is the package itself"),
        ([f"--package={conv}", f"--reference={packages / 'tokens.mlpackage'}"], "has bytes, ids, "),
    ):
        assert main(["init", *arguments]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line
        assert not Path("shards.toml").exists()


@pytest.mark.parametrize("form", ["{i}.in.x", "{i}.0.in.x"])
def test_golden_tensors_are_a_reference(form: str, packages: Path) -> None:
    name = form.format(i=0)
    tensors: dict[str, Any] = {
        name: np.zeros((1, 8, 1, 1), np.float16),
        name.replace(".in.x", ".out.y"): np.zeros((1, 16, 1, 1), np.float16),
    }
    np.savez("golden.npz", **tensors)
    [shard] = init("--package", packages / "conv.mlpackage", "--reference", "golden.npz")
    assert shard.reference.samefile("golden.npz")


@pytest.mark.slow
def test_the_gates_of_the_written_manifest(packages: Path, tmp_path: Path, forge: Forge) -> None:
    """A right package passes, one of other weights fails, an input of unknown meaning is said."""
    other = tmp_path / "other.mlpackage"
    assert main(["compress", str(packages / "conv.mlpackage"), "--weight-threshold=16",
                 "--granularity=per_tensor", "--nbits=1", "-o", str(other)]) == 0  # fmt: skip
    pairs = [("conv4", "conv"), ("conv8", "conv"), ("state", "none"), ("several", "none")]
    arguments = ["--package=other.mlpackage", f"--reference={packages / 'conv.mlpackage'}"]
    for name, reference in pairs:
        path = reference if reference == "none" else packages / f"{reference}.mlpackage"
        arguments += [f"--package={packages / name}.mlpackage", f"--reference={path}"]
    init(*arguments)
    command = ["pytest", "--ane-shards=all", "-m", "gate", "-v", "-p", "no:cacheprovider"]
    done = forge.run([*command, f"--ane-cache={tmp_path / 'cache'}"], Path.cwd())
    assert done.returncode == 1, done.stdout
    verdicts = {
        (words[1], words[2]): words[0]
        for line in done.stdout.splitlines()
        if len(words := line.split()) > 2 and words[1].startswith("mine:")
        if words[0] in ("passed", "FAILED", "UNPROVEN")
    }
    compared = ["mine:conv4", "mine:conv8", "mine:state", "mine:several[decode]"]
    assert [verdicts[name, "fidelity"] for name in compared] == ["passed"] * 4
    assert verdicts["mine:other", "fidelity"] == "FAILED"
    compressed = ["mine:conv4", "mine:conv8", "mine:other"]
    assert [verdicts[name, "compression"] for name in compressed] == ["passed"] * 3
