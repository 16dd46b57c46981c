"""What a measurement is of and was asked, alike for who records and for who verifies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from pytest_ane.make import Artifact
from pytest_ane.manifest import Input, Model, Palettize, Probes, Prompt, Shard
from pytest_ane.mlprogram.digests import file_digest, key_digest, tree_files
from pytest_ane.records.record import files_of, question

IDENTITY = {"source": {"seeded": 1}, "family": {"name": "llama", "version": 3}, "versions": "mac"}
SHARD = Shard(model="m", id="L01", family="llama", probes=Probes(kinds=("gaussian",), seed=7))
PROMPTS = (Prompt(name="france", text="The capital of France is"),)
MODEL = Model(name="m", family="llama", shards=(SHARD,), prompts=PROMPTS)


def unread() -> NoReturn:
    raise AssertionError("the source was looked at")


def ask(gate: Any = "fidelity", identity: Any = lambda: IDENTITY, **changes: Any) -> dict[str, Any]:
    """What is asked of a shard with these changes."""
    asked = question(gate, SHARD.model_copy(update=changes), MODEL, identity)
    json.dumps(asked, allow_nan=False)
    return asked


def test_files_are_named_by_shard(tmp_path: Path) -> None:
    for shard in ("L00", "L01"):
        (tmp_path / shard / "Data").mkdir(parents=True)
        (tmp_path / shard / "Data" / "weight.bin").write_bytes(shard.encode())
    found = files_of({"L01": Artifact(tmp_path / "L01"), "head.0": Artifact(tmp_path / "L00")})
    assert found == {
        "L01/Data/weight.bin": tree_files(tmp_path / "L01")["Data/weight.bin"],
        "head.0/Data/weight.bin": tree_files(tmp_path / "L00")["Data/weight.bin"],
    }


def test_compression_depends_on_nothing_but_an_own_package_s_uncompressed_form(
    tmp_path: Path,
) -> None:
    assert ask("placement", unread) == ask("compression", unread) == {}
    own = {"artifact": tmp_path / "a.mlpackage", "reference": "none"}
    assert ask("compression", **own) == {}
    (tmp_path / "Manifest.json").write_text("{}")
    digest = key_digest(tree_files(tmp_path))
    for key in ("reference", "uncompressed"):
        assert ask("compression", **own | {key: tmp_path}) == {"uncompressed": digest}
    assert ask("compression", **own, compression=Palettize())["compression"]["nbits"] == 4


def test_fidelity_against_the_source() -> None:
    """Versions, and where a builder's files lie, are no part of the question."""
    asked = ask()
    assert asked["probes"] == {"kinds": ["gaussian"], "count": 2, "seed": 7, "generator": 5}
    assert (asked["reference"], asked["max_tokens"]) == ("float32", 64)
    assert "prompts" not in asked
    assert asked == ask(identity=lambda: {**IDENTITY, "versions": "linux"})
    other = ask(identity=lambda: {**IDENTITY, "source": {"seeded": 2}})
    assert [key for key in asked if asked[key] != other[key]] == ["source"]
    depends = ({"/a/w": "1"}, {"/b/w": "1"}, {"/a/w": "2"})
    here, there, others = (ask(identity=lambda d=d: {"depends": d}) for d in depends)
    assert here == there != others


@pytest.mark.parametrize("kind", ["captured", "outlier", "extreme"])
def test_captured_states_come_from_the_prompts(kind: Any) -> None:
    france = {"name": "france", "text": "The capital of France is", "greedy": 10}
    assert ask(probes=Probes(kinds=(kind,)))["prompts"] == [france]


def test_fidelity_without_a_source(tmp_path: Path) -> None:
    (tmp_path / "Manifest.json").write_text("{}")
    asked = ask("fidelity", unread, reference=tmp_path)
    assert asked["reference"] == key_digest(tree_files(tmp_path))
    assert str(tmp_path) not in json.dumps(asked)
    assert ask("fidelity", unread, reference="none")["reference"] == "none"


def test_what_a_package_s_inputs_are_drawn_from_is_part_of_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", [1.0])
    tables = [
        {},
        {"x": Input(kind="ids", count=3)},
        {"x": Input(kind="ids", count=4)},
        {"x": Input(kind="constant", files=(str(tmp_path / "x.npy"),))},
    ]
    asked = [ask(reference="none", inputs=table) for table in tables]
    assert all(a != b for i, a in enumerate(asked) for b in asked[:i])
    np.save(tmp_path / "x.npy", [2.0])
    assert ask(reference="none", inputs=tables[-1]) != asked[-1]
    assert str(tmp_path) not in json.dumps(asked)


def test_golden_tensors_hold_their_probes(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    assert ask("fidelity", unread, reference=path)["reference"] == {"golden": "missing"}
    path.write_bytes(b"one")
    one = ask("fidelity", unread, reference=path)
    assert one == {"reference": {"golden": file_digest(path)}, "max_tokens": 64}
    path.write_bytes(b"other")
    assert ask("fidelity", unread, reference=path) != one
    (plain := tmp_path / "plain.mlpackage").mkdir()
    held = {"uncompressed": key_digest(tree_files(plain))}
    assert ask("fidelity", unread, reference=path, uncompressed=plain).items() >= held.items()


def test_behaviour_and_what_is_no_part_of_a_question() -> None:
    asked = question("behaviour", MODEL, MODEL, lambda: IDENTITY)
    assert asked["prompts"] == ask(probes=Probes(kinds=("captured",)))["prompts"]
    assert asked["source"] == ask()["source"]
    assert ask(policy=SHARD.policy.model_copy(update={"unproven": "allow"})) == ask()
