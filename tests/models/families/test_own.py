"""Modules of the user's: where they are looked for, and what of them a cache key sees."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from pytest_ane.manifest import Manifest, Model
from pytest_ane.manifest.records import OwnPort
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Cut, Layout, Port, Ports, trait
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    DecoderModel,
    Settings,
    plain,
)
from pytest_ane.models.families.own import (
    RenamedLayout,
    Renaming,
    code_digests,
    error_line,
    make_importable,
)
from pytest_ane.models.families.registry import identify_family
from pytest_ane.models.sources import SeededSource


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which modules are found."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_module_in_no_package_is_its_file(folder: Path) -> None:
    (folder / "lonely_module.py").write_text("raise AssertionError('imported')")
    (folder / "other_module.py").write_text("x = 1")
    digest = sha256("raise AssertionError('imported')")
    assert code_digests("lonely_module") == {"lonely_module": digest}


def test_a_module_in_a_package_is_all_of_the_package(folder: Path) -> None:
    package = folder / "some_package" / "inner"
    package.mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/family.py"):
        (folder / "some_package" / name).write_text(name)
    (package / "notes.txt").write_text("unseen")
    names = ("__init__.py", "inner/__init__.py", "inner/family.py")
    assert code_digests("some_package.inner.family") == {
        f"some_package/{name}": sha256(name) for name in names
    }
    assert "some_package" not in sys.modules


@pytest.mark.parametrize("name", ["nowhere", "__main__", ""])
def test_no_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(ManifestError) as error:
        code_digests(name)
    assert str(error.value) == f"{name} is neither in the manifest's folder nor installed."


def test_a_module_without_a_file() -> None:
    assert code_digests("sys") == {}


@pytest.mark.parametrize(
    ("model", "searched"),
    [
        ({"builder": "a:b"}, True),
        ({"family": "my.family"}, True),
        ({"family": "llama"}, False),
        ({}, False),
    ],
)
def test_a_manifest_s_folder_is_searched_only_where_it_names_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, str], searched: bool
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    manifest = Manifest(
        path=tmp_path / "shards.toml", models=(Model(name="m", shards=(), **model),)
    )
    for _ in range(2):
        make_importable(manifest)
    assert sys.path.count(str(tmp_path)) == int(searched)


def test_an_error_of_many_lines_is_said_in_one() -> None:
    assert error_line(ValueError("two\n  lines."), "nowhere") == "ValueError: two lines"
    assert error_line(KeyError(), "nowhere") == "KeyError"


TRAITS = ("window", "entry_scale", "causal", "recurrent")
X, Y = Port("x", (1, 4, "T", 1)), Port("y", (1, 4, "T", 1))


def renamed(layout: Any) -> RenamedLayout:
    own = {"x": OwnPort(name="hidden"), "y": OwnPort(name="out"), "tail": OwnPort(name="past")}
    ports = Ports((X,), (Y,), (Port("tail", (1, 2)),))
    return RenamedLayout(cast("Layout", layout), Renaming("m:L00", ports, own))


def test_all_that_a_family_tells_of_its_layout() -> None:
    family = AneLayout("gemma3", 4, window=9, recurrent=("tail",), entry_scale=1 / 32)
    own = renamed(family)
    assert (own.width, own.sees, own.shifts) == (family.width, family.sees, family.shifts)
    assert [trait(own, name) for name in TRAITS] == [9, 1 / 32, True, ("past",)]
    hidden = np.ones((2, 4), np.float32)
    assert own.inputs(hidden)["hidden"].shape == (1, 4, 2, 1)
    np.testing.assert_array_equal(own.output({"out": np.ones((1, 4, 2, 1), np.float32)}), hidden)


K, V = Port("k", (1, 2, 8, 4)), Port("v", (1, 2, 4, 8))
STACKED = {"v": OwnPort(name="kv", axes=(0, 1, 3, 2), join=0), "k": OwnPort(name="kv", join=0)}


def renaming(**own: OwnPort) -> Renaming:
    return Renaming("m:L00", Ports((X,), (Y,), (K, V)), own)


def test_two_caches_that_the_package_keeps_as_one() -> None:
    """In the manifest's order, one of them transposed."""
    names = renaming(**STACKED)
    assert names.declared().states == (Port("kv", (2, 2, 8, 4)),)
    k, v = (np.random.default_rng(0).standard_normal(port.shape) for port in (K, V))
    (state,) = names.arrays({"k": k, "v": v}).values()
    np.testing.assert_array_equal(state, np.concatenate([v.transpose(0, 1, 3, 2), k]))
    family = AneLayout("gemma3", 4, recurrent=("k", "v"))
    assert RenamedLayout(cast("Layout", family), names).recurrent == ("kv",)
    (one,) = renaming(k=OwnPort(axes=(0, 3, 2, 1))).declared().states[:1]
    assert one == Port("k", (1, 4, 8, 2))


@pytest.mark.parametrize(
    "own",
    [
        {"k": OwnPort(name="kv"), "v": OwnPort(name="kv")},
        {"k": OwnPort(name="v")},
        {"k": OwnPort(name="kv", join=0)},
        {"k": OwnPort(name="kv", join=0), "v": OwnPort(name="kv", join=1)},
        {"k": OwnPort(name="kv", join=0), "v": OwnPort(name="kv", join=0)},
        {"x": OwnPort(name="kv", join=0), "y": OwnPort(name="kv", join=0)},
        {"k": OwnPort(name="kv", join=7), "v": OwnPort(name="kv", axes=(0, 1, 3, 2), join=7)},
    ],
)
def test_ports_that_no_package_can_have_as_one(own: dict[str, OwnPort]) -> None:
    with pytest.raises(ManifestError, match="two or more states may be one of the package's"):
        renaming(**own)


def test_what_a_family_of_the_user_s_own_leaves_out() -> None:
    own = renamed(SimpleNamespace(width=4, sees="itself"))
    assert [trait(own, name) for name in TRAITS] == [None, 1.0, True, None]


FAMILY = """
from pytest_ane.models.families.decoder import DecoderFamily, plain
FAMILY = DecoderFamily("mine", lambda s, positions: plain(s, positions), reference="{}")
"""


def test_the_module_of_a_reference_s_class_is_part_of_what_shards_depend_on(folder: Path) -> None:
    (folder / "mine_alone.py").write_text(FAMILY.format("theirs_alone.Mine"))
    (folder / "theirs_alone.py").write_text("x = 1")
    before = identify_family("mine_alone")
    assert before["code"].keys() == {"mine_alone", "theirs_alone"}
    (folder / "theirs_alone.py").write_text("x = 2")
    assert identify_family("mine_alone") != before


TINY = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 40,
}  # fmt: skip


def opened(kind: str, reference: Any = "", configure: Any = plain, **more: Any) -> DecoderModel:
    family = DecoderFamily("mine", configure, types=(kind,), reference=reference)
    source = SeededSource(7, family.spread, {**TINY, **more})
    return family.open_model(source, Cut(("L00", "L01", "head.0"), max_tokens=4))


HIDDEN = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)


@pytest.mark.parametrize("kind", ["t5", "nobody_s"])
def test_a_type_without_a_causal_model_is_held_against_its_own_form(kind: str) -> None:
    model = opened(kind)
    assert not model.independent("L00")
    module, layout = model.conversion("L00").module, model.layout("L00")
    inputs = [torch.from_numpy(value) for value in layout.inputs(HIDDEN).values()]
    with torch.inference_mode():
        own = layout.output({"y": module(*inputs).numpy()})
    np.testing.assert_allclose(model.reference("L00")([HIDDEN])[0], own, rtol=1e-6, atol=1e-6)


def test_a_class_is_another_author_unless_it_is_in_the_family_s_module() -> None:
    assert opened("llama").independent("L00")
    assert opened("nobody_s", "transformers.LlamaForCausalLM").independent("L00")
    assert not opened("nobody_s", f"{plain.__module__}.Model").independent("L00")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nowhere.Model", "is no class of a transformers model"),
        ("transformers.LlamaConfig", "is no class of a transformers model"),
        ("transformers.BertForMaskedLM", "does not make a model of layers"),
        ("transformers.LlamaModel", "has no head behind a norm"),
    ],
)
def test_a_reference_that_is_no_decoder(reference: str, said: str) -> None:
    with pytest.raises((SourceError, ManifestError), match=said):
        opened("nobody_s", reference).reference("head.0")


@pytest.mark.parametrize(("key", "value"), [("initializer_range", None), ("id2label", 5)])
def test_what_transformers_refuses_is_one_sentence(key: str, value: Any) -> None:
    with pytest.raises(SourceError) as error:
        opened("llama", **{key: value}).reference("L00")
    assert "transformers" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_model_returns_and_pads_is_no_setting_of_its_reference() -> None:
    plainly, otherwise = opened("llama"), opened("llama", return_dict=False, pad_token_id=300)
    np.testing.assert_array_equal(
        plainly.reference("head.0")([HIDDEN])[0], otherwise.reference("head.0")([HIDDEN])[0]
    )


def test_an_activation_that_is_not_computed() -> None:
    def configure(s: Settings, positions: int) -> DecoderConfig:
        return replace(plain(s, positions), activation="relu")  # type: ignore[arg-type]

    with pytest.raises(SourceError, match="activation 'relu'; computed are silu and gelu"):
        opened("llama", configure=configure)
