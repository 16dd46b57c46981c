"""Reading the file itself; what is in it is the matter of `test_messages` and `test_resolve`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.manifest import FAMILIES, Linear, Palettize, load, package_manifest
from pytest_ane.manifest.base import loads
from pytest_ane.manifest.load import Resolver
from pytest_ane.manifest.records import OF_FAMILIES
from pytest_ane.mlprogram.errors import ManifestError
from tests.manifest.conftest import Complaints, Read
from tests.manifest.test_docs import EXAMPLE

MINE = '[models.mine.shard.encoder]\nartifact = "e.mlpackage"\nreference = "none"\n'


def test_arithmetic_of_a_model_and_of_its_shards(read: Read) -> None:
    manifest = read('[models.mine]\narithmetic = ["typed", "ane", "ane"]\n' + MINE)
    assert manifest.models[0].arithmetic == manifest.shards[0].arithmetic == ("typed", "ane")
    (model,) = manifest.in_arithmetic(("typed",)).models
    assert {model.arithmetic, *(shard.arithmetic for shard in model.shards)} == {("typed",)}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "shards.toml does not exist; run 'pytest-ane init' to write one, or name yours with "
         "--ane-manifest=FILE."),
        (b"[models]\nname = '\xff'\n", "shards.toml:2: not UTF-8 text; save it as UTF-8."),
    ],
)  # fmt: skip
def test_what_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content:
        Path("shards.toml").write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        load(Path("shards.toml"))
    assert str(caught.value) == sentence


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "shards.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINE.encode())
    assert len(load(path).shards) == 1


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("[models.m]\nname = = 3", "shards.toml: not valid TOML: Invalid value (at line 2, column"),
        ("[models.m", "shards.toml: not valid TOML: "),
        ("a = 1\na = 2\n", "shards.toml: not valid TOML: Cannot overwrite a value"),
        ("a = " + "[" * 5000, "shards.toml: not a manifest: nested too deeply."),
    ],
)
def test_malformed_toml(text: str, start: str, complaints: Complaints) -> None:
    (line,) = complaints(text)
    assert line.startswith(start)
    assert line.endswith(".")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", ["shards.toml: 'models' is missing; add it."]),
        ("[models]", ["shards.toml:1: [models] must not be empty."]),
        ("models = 3", ["shards.toml:1: models = 3: must be a table."]),
        ("models.m = 3", ["shards.toml:1: [models] m = 3: must be a table."]),
        ("[model.m]", [
            "shards.toml: 'models' is missing; add it.",
            "shards.toml:1: unknown key 'model': did you mean 'models'?",
        ]),
        ("[models.m.shard]\nx = 3", ["shards.toml:2: [models.m.shard] x = 3: must be a table."]),
        ("[models.m]\nshard = 3", ["shards.toml:2: [models.m] shard = 3: must be a table."]),
    ],
)  # fmt: skip
def test_the_top_of_the_file(text: str, sentences: list[str], complaints: Complaints) -> None:
    assert complaints(text) == sentences


def test_everything_wrong_is_said_at_once_in_the_file_s_order(complaints: Complaints) -> None:
    text = """\
[models.a]
family = "lama"
policy.fidelity.min-cosine = 2

[models.b.shard.x]
artifact = "x.mlpackage"
reference = "none"
probes.count = 0

[models.b.shard."y*"]

[models.b.policy]
unproven = "maybe"
"""
    assert complaints(text) == [
        "shards.toml:1: [models.a] 'source' is missing; say where the family's weights come from.",
        "shards.toml:1: [models.a] 'shards' is missing; name them, such as \"L00-L29, "
        'head.0-head.3".',
        f'shards.toml:2: [models.a] family = "lama": is neither a family ({", ".join(FAMILIES)}) '
        "nor a module in the manifest's folder or an installed one; did you mean 'llama'?",
        "shards.toml:3: [models.a.policy.fidelity] min-cosine = 2: must be less than or equal "
        "to 1.",
        "shards.toml:8: [models.b.shard.x.probes] count = 0: must be greater than or equal to 1.",
        'shards.toml:10: [models.b.shard."y*"] matches no shard; there are: x.',
        "shards.toml:13: [models.b.policy] unproven = \"maybe\": must be 'fail' or 'allow'.",
    ]


@pytest.mark.parametrize(("name", "id"), [("0é", "p-0-"), ("all", "p-all")])
def test_a_package_with_a_name_that_is_no_id(tmp_path: Path, name: str, id: str) -> None:
    (tmp_path / f"{name}.mlpackage").mkdir()
    assert package_manifest(tmp_path / f"{name}.mlpackage").shards[0].id == id


def test_only_packages_that_name_massive_probes_have_them(tmp_path: Path, read: Read) -> None:
    """Others need no input that is as large as an output."""
    package = tmp_path / "e.mlpackage"
    package.mkdir()
    for manifest in (read(MINE), package_manifest(package)):
        assert manifest.shards[0].probes.kinds == ("gaussian",)


def test_packages_of_one_name_are_numbered(tmp_path: Path) -> None:
    packages = [tmp_path / name for name in ("a/x.mlpackage", "b/x.mlpackage", "x-2.mlpackage")]
    for package in packages:
        package.mkdir(parents=True)
    shards = package_manifest(*packages).shards
    assert [shard.id for shard in shards] == ["x", "x-2", "x-2-2"]
    assert [shard.artifact for shard in shards] == packages


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(ManifestError, match=r"^--ane-package: x\.mlpackage does not exist; check"):
        package_manifest(Path("x.mlpackage"))


def test_loading_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "shards.toml"
    path.write_text(MINE)
    code = (
        "import sys; from pathlib import Path; from pytest_ane.manifest import load; "
        f"load(Path({str(path)!r})); "
        "print([m for m in ('torch', 'coremltools', 'numpy', 'tomlkit') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout == "[]\n"


MODEL = """\
[models.m]
family = "llama"
source = { path = "weights/m.gguf" }
shards = "L00-L03, head.0"
"""
PALETTE = '[models.m.compression]\nmethod = "palettize"\nnbits = 6\n'
PROMPT = '[[models.m.prompts]]\nname = "p"\ntext = "x"\n'


def test_a_family_s_shard(read: Read, tmp_path: Path) -> None:
    manifest = read(MODEL + PALETTE + PROMPT)
    shard = manifest.shard("m:L01")
    assert shard.family == "llama"
    assert shard.source is not None
    assert shard.source.path == tmp_path / "weights" / "m.gguf"
    assert (shard.artifact, shard.reference) == (None, "float32")
    assert shard.compression == Palettize(nbits=6)
    assert (shard.max_tokens, shard.target) == (64, "iOS18")
    model = manifest.model_of("m")
    assert model.ids == ("L00", "L01", "L02", "L03", "head.0")
    assert [prompt.name for prompt in model.prompts] == ["p"]
    assert model.source == shard.source


@pytest.mark.parametrize(
    ("text", "where"),
    [(MINE.replace("encoder", "all"), "[models.mine.shard]"),
     (MODEL.replace("head.0", "all"), "[models.m]")],
)  # fmt: skip
def test_all_is_no_name_of_a_shard(complaints: Complaints, text: str, where: str) -> None:
    (line,) = complaints(text)
    assert where in line
    assert "a shard may not be called 'all', which selects every shard" in line


def test_shards_as_a_list(read: Read) -> None:
    text = MODEL.replace('"L00-L03, head.0"', '["L00-L01", "head.0, head.1"]')
    assert read(text).model_of("m").ids == ("L00", "L01", "head.0", "head.1")


def test_layers_from_model_to_shard(read: Read) -> None:
    manifest = read(
        MODEL
        + "policy.fidelity.min-cosine = 0.9\nprobes.count = 3\nmax-tokens = 16\n"
        + PALETTE
        + '[models.m.shard."L0[0-1]"]\ncompression = { nbits = 8 }\nprobes.seed = 1\n'
        + "[models.m.shard.L01]\ncompression = { group_size = 8 }\npolicy.fidelity.min-cosine = 1\n"
        + '[models.m.shard."head.*".compression]\nmethod = "linear"\n'
    )
    assert [shard.probes.seed for shard in manifest.shards] == [1, 1, 0, 0, 0]
    cosines = [shard.policy.fidelity.min_cosine for shard in manifest.shards]
    assert cosines == [0.9, 1, 0.9, 0.9, 0.9]
    assert {shard.max_tokens for shard in manifest.shards} == {16}
    assert {shard.probes.count for shard in manifest.shards} == {3}
    assert [shard.compression for shard in manifest.shards] == [
        Palettize(nbits=8),
        Palettize(nbits=8, group_size=8),
        Palettize(nbits=6),
        Palettize(nbits=6),
        Linear(),
    ]
    assert manifest.model_of("m").max_tokens == 16
    assert manifest.model_of("m").policy.fidelity.min_cosine == 0.9


def test_probes_are_captured_where_there_are_prompts(read: Read) -> None:
    assert read(MODEL).shards[0].probes.kinds == ("gaussian", *OF_FAMILIES)
    kinds = read(MODEL + PROMPT).shards[0].probes.kinds
    assert kinds == ("gaussian", "outlier", "captured", "extreme", *OF_FAMILIES)
    own = '[models.m.shard.a]\nartifact = "a.mlpackage"\nreference = "none"\n'
    assert read(own).shards[0].probes.kinds == ("gaussian",)


def test_packages_of_one_s_own(read: Read, tmp_path: Path) -> None:
    manifest = read(
        '[models.mine.shard."*"]\nreference = "none"\n'
        '[models.mine.shard.encoder]\nartifact = "e.mlpackage"\nreference = "/r/e.mlpackage"\n'
        'uncompressed = "fp16/e.mlpackage"\n'
        '[models.mine.shard."dec.0"]\nartifact = "d.mlmodelc/"\ncompression.method = "linear"\n'
    )
    encoder, decoder = manifest.shards
    assert (encoder.id, decoder.id) == ("encoder", "dec.0")
    assert (encoder.artifact, decoder.artifact) == (
        tmp_path / "e.mlpackage",
        tmp_path / "d.mlmodelc",
    )
    assert (encoder.reference, decoder.reference) == (Path("/r/e.mlpackage"), "none")
    assert encoder.uncompressed == tmp_path / "fp16" / "e.mlpackage"
    assert decoder.uncompressed is None
    assert (encoder.compression, decoder.compression) == (None, Linear())
    assert (encoder.family, encoder.source) == (None, None)


def test_a_package_in_place_of_a_family_s_shard(read: Read, tmp_path: Path) -> None:
    shard = read(
        MODEL + '[models.m.shard.L02]\nartifact = "L02.mlpackage"\nreference = "float32"\n'
    ).shard("m:L02")
    assert shard.artifact == tmp_path / "L02.mlpackage"
    assert (shard.family, shard.reference) == ("llama", "float32")


def test_paths_are_relative_to_the_file(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    here, home = (
        read(MODEL.replace("weights/", folder)).shards[0].source for folder in ("../", "~/")
    )
    assert here is not None
    assert home is not None
    assert here.path == tmp_path / ".." / "m.gguf"
    assert home.path == Path("/home/me/m.gguf")


X = '[models.m.shard.x]\nartifact = "x.mlpackage"'
KINDS = MODEL + "probes.kinds = "
CONTRADICTIONS = [
    ("[models.m]", ["1: [models.m] has no shards; give it a family, source and shards, or a"]),
    ('[models.m]\nfamily = "llama"',
     ["'source' is missing; say where", "'shards' is missing; name"]),
    (MODEL.replace('family = "llama"\n', ""),
     ["has no shards", "2: [models.m] 'source' needs a family", "3: [models.m] 'shards' needs"]),
    ("[models.m.shard.x]", ["'artifact' is missing; name the shard's .mlpackage."]),
    (X, ["1: [models.m.shard.x] 'reference' is missing; add what the artifact is held against: a"]),
    (f'{X}\nreference = "float32"',
     ['3: [models.m.shard.x] reference = "float32": needs a family']),
    (MODEL + X.replace("x]", "L00]"), ["golden .safetensors or .npz, 'float32' or 'none'."]),
    (MODEL + '[models.m.shard."L0*"]\nuncompressed = "x.mlpackage"',
     ["needs an 'artifact'; a shard"]),
    (MODEL + "[models.m.shard.L04]", ["5: [models.m.shard.L04] matches no shard; nearest: "]),
    (MODEL + '[models.m.shard."M*"]', ["matches no shard; there are: L00, L01, L02, L03, head.0."]),
    (MODEL + PROMPT + PROMPT,
     ['9: [[models.m.prompts]] name = "p": is the name of an earlier prompt']),
    (KINDS + '["captured"]',
     ['kinds = ["captured"]: captured: give golden prompts to capture from']),
    (KINDS + '["extreme", "outlier"]', ["extreme and outlier: give golden prompts"]),
    (f'{X}\nreference = "none"\nprobes.kinds = ["ragged"]', ["ragged: give a family, or leave"]),
    (f'{X}\nreference = "none"\nprobes.lengths = [64]', ["lengths[0] = 64: needs a family, which"]),
    (MODEL + "context = 64\nprobes.lengths = [64, 65]",
     ["lengths[1] = 65: is more than the 64 pos"]),
    (MODEL.replace("L00-L03", "L03-L00"),
     ["the range 'L03-L00' counts backwards; write its lower"]),
    (MODEL.replace("head.0", "L01"), ["shard 'L01' is named twice; name every shard once."]),
    (f'{X}\nreference = "none"\n{PROMPT}',
     ["4: [models.m] 'prompts' needs a family; add family = \"llama\"."]),
    # A mistake of many shards is said once.
    (MODEL + '[models.m.shard."L*".compression]\nmethod = "palettize"\nnbits = 7',
     ['7: [models.m.shard."L*".compression] nbits = 7: must be 1, 2, 3, 4, 6 or 8.']),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentences"), CONTRADICTIONS)
def test_contradictions(text: str, sentences: list[str], complaints: Complaints) -> None:
    for line, sentence in zip(complaints(text), sentences, strict=True):
        assert sentence in line


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from _paths(inner, (*path, key))


DOCUMENT = loads(EXAMPLE)
ODD = st.sampled_from(
    [True, -1, 0, 3, 1.5, float("nan"), "", "x", "*", "L00-L01", [], [3], ["x"], {}, {"x": 3}]
)


@pytest.mark.drawn(1)
@pytest.mark.slow
@settings(max_examples=300)
@given(
    path=st.sampled_from([*_paths(DOCUMENT)]), value=ODD, key=st.sampled_from(["", "x", "shard"])
)
def test_any_value_anywhere_gives_records_or_sentences(
    path: tuple[Any, ...], value: Any, key: str
) -> None:
    document = deepcopy(DOCUMENT)
    table: Any = document
    for part in path[:-1]:
        table = table[part]
    table[path[-1]] = value
    if key and isinstance(table, dict):
        table[key] = value
    resolver = Resolver(document, Path("shards.toml"))
    assert (resolver.manifest() is None) == bool(resolver.problems)
    for problem in resolver.problems:
        assert "Input should" not in problem.text
        assert "pydantic" not in problem.text
        assert "\n" not in problem.text
