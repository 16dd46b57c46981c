"""Reading the file itself; what is in it is the matter of `test_messages` and `test_resolve`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_ane.core.errors import ManifestError
from pytest_ane.manifest import FAMILIES, load, of_package
from tests.manifest.conftest import Complaints, Read

MINE = '[models.mine.shard.encoder]\nartifact = "e.mlpackage"\nreference = "none"\n'


def test_a_package_of_one_s_own(read: Read) -> None:
    (shard,) = read(MINE).shards
    assert shard.qualified == "mine:encoder"


def test_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManifestError) as caught:
        load(Path("shards.toml"))
    assert str(caught.value) == (
        "shards.toml does not exist; run 'pytest-ane init' to write one, or name yours with "
        "--ane-manifest=FILE."
    )


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shards.toml").mkdir()
    with pytest.raises(ManifestError, match=r"^shards\.toml cannot be read: [^\n]+\.$"):
        load(Path("shards.toml"))


def test_bytes_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shards.toml").write_bytes(b"[models]\nname = '\xff'\n")
    with pytest.raises(ManifestError) as caught:
        load(Path("shards.toml"))
    assert str(caught.value) == "shards.toml:2: not UTF-8 text; save it as UTF-8."


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "shards.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINE.encode())
    assert len(load(path).shards) == 1


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("[models.m]\nname = = 3", "shards.toml:2:8: not valid TOML: invalid value."),
        ("[models.m", "shards.toml:1: not valid TOML: "),
        ("[a]\n[a]\n", "shards.toml:2:3: not valid TOML: cannot declare"),
        ("a = 1\na = 2\n", "shards.toml:2:6: not valid TOML: cannot overwrite a value."),
        ("a = " + "[" * 5000, "shards.toml: not a manifest: nested too deeply."),
    ],
)
def test_malformed_toml(text: str, start: str, complaints: Complaints) -> None:
    (line,) = complaints(text)
    assert line.startswith(start)
    assert line.endswith(".")


def test_the_end_of_a_file_that_stops_too_early(complaints: Complaints) -> None:
    (line,) = complaints("[models.m]\na =")
    assert line == "shards.toml:2: not valid TOML: invalid value, at the end of the file."


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", ["shards.toml: 'models' is missing; add it."]),
        ("[models]", ["shards.toml:1: [models] must not be empty."]),
        ("models = 3", ["shards.toml:1: models = 3: must be a table."]),
        ("models.m = 3", ["shards.toml:1: [models] m = 3: must be a table."]),
        ("defaults = 3\n" + MINE, ["shards.toml:1: defaults = 3: must be a table."]),
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
[defaults]
max-tokens = 0

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
        "shards.toml:2: [defaults] max-tokens = 0: must be at least 1.",
        "shards.toml:4: [models.a] 'source' is missing; say where the family's weights come from.",
        "shards.toml:4: [models.a] 'shards' is missing; name them, such as \"L00-L29, "
        'head.0-head.3".',
        f'shards.toml:5: [models.a] family = "lama": is neither a family ({", ".join(FAMILIES)}) '
        "nor a module beside the manifest or an installed one; did you mean 'llama'?",
        "shards.toml:6: [models.a.policy.fidelity] min-cosine = 2: must be at most 1.",
        "shards.toml:11: [models.b.shard.x.probes] count = 0: must be at least 1.",
        'shards.toml:13: [models.b.shard."y*"] matches no shard; there are: x.',
        "shards.toml:16: [models.b.policy] unproven = \"maybe\": must be one of 'fail', 'allow'.",
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(cut=st.integers(0, 10**4), junk=st.sampled_from(["", "=", "[", '"', "\n[models", "x = {"]))
def test_a_damaged_manifest_gives_sentences(cut: int, junk: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/reference/manifest.md").read_text("utf-8")
    example = text.partition("```toml\n")[2].partition("```")[0]
    path = tmp_path / "shards.toml"
    path.write_text(example[: cut % len(example)] + junk, encoding="utf-8")
    try:
        load(path)
    except ManifestError as error:
        for line in str(error).splitlines():
            assert line.startswith(str(path))
            assert line.endswith((".", "?"))


def test_one_package_without_a_manifest(tmp_path: Path) -> None:
    package = tmp_path / "My encoder (v2).mlpackage"
    package.mkdir()
    (shard,) = of_package(package).shards
    assert (shard.id, shard.reference, shard.artifact) == ("My-encoder--v2-", "none", package)
    assert shard.compression is None


def test_a_package_with_a_name_that_is_no_id(tmp_path: Path) -> None:
    (tmp_path / "0é.mlpackage").mkdir()
    assert of_package(tmp_path / "0é.mlpackage").shards[0].id == "p-0-"


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(ManifestError, match=r"^--ane-package: x\.mlpackage does not exist; check"):
        of_package(Path("x.mlpackage"))


def test_loading_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "shards.toml"
    path.write_text(MINE)
    code = (
        "import sys; from pathlib import Path; from pytest_ane.manifest import load; "
        f"load(Path({str(path)!r})); "
        "print([m for m in ('torch', 'coremltools', 'numpy', 'tree_sitter') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "[]\n"
