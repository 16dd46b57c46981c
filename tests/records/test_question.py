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


def ask(shard: Shard, gate: Any = "fidelity") -> dict[str, Any]:
    asked = question(gate, shard, MODEL, lambda: IDENTITY)
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


def test_nothing_but_bytes_decides_a_plan_and_compression() -> None:
    assert question("placement", SHARD, MODEL, unread) == {}
    assert question("compression", SHARD, MODEL, unread) == {}


def test_compression_of_an_own_package_depends_on_its_uncompressed_form(tmp_path: Path) -> None:
    own = SHARD.model_copy(update={"artifact": tmp_path / "a.mlpackage", "reference": "none"})
    assert ask(own, "compression") == {}
    (tmp_path / "Manifest.json").write_text("{}")
    digest = key_digest(tree_files(tmp_path))
    for key in ("reference", "uncompressed"):
        asked = ask(own.model_copy(update={key: tmp_path}), "compression")
        assert asked == {"uncompressed": digest}
    palettes = own.model_copy(update={"compression": Palettize()})
    assert ask(palettes, "compression")["compression"]["nbits"] == 4


def test_fidelity_against_the_source() -> None:
    asked = ask(SHARD)
    assert asked["probes"] == {"kinds": ["gaussian"], "count": 2, "seed": 7, "generator": 4}
    assert (asked["reference"], asked["max_tokens"]) == ("float32", 64)
    assert "prompts" not in asked
    assert asked == question("fidelity", SHARD, MODEL, lambda: {**IDENTITY, "versions": "linux"})
    other = question("fidelity", SHARD, MODEL, lambda: {**IDENTITY, "source": {"seeded": 2}})
    assert [key for key in asked if asked[key] != other[key]] == ["source"]


def test_where_a_builder_s_files_lie_is_no_part_of_it() -> None:
    here, there, other = ({"depends": d} for d in ({"/a/w": "1"}, {"/b/w": "1"}, {"/a/w": "2"}))
    asked = [question("fidelity", SHARD, MODEL, lambda i=i: i) for i in (here, there, other)]
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize("kind", ["captured", "outlier", "extreme"])
def test_captured_states_come_from_the_prompts(kind: Any) -> None:
    shard = SHARD.model_copy(update={"probes": Probes(kinds=(kind,))})
    assert ask(shard)["prompts"] == [
        {"name": "france", "text": "The capital of France is", "greedy": 10}
    ]


def test_fidelity_without_a_source(tmp_path: Path) -> None:
    (tmp_path / "Manifest.json").write_text("{}")
    package = SHARD.model_copy(update={"reference": tmp_path})
    asked = question("fidelity", package, MODEL, unread)
    assert asked["reference"] == key_digest(tree_files(tmp_path))
    assert str(tmp_path) not in json.dumps(asked)
    alone = question("fidelity", SHARD.model_copy(update={"reference": "none"}), MODEL, unread)
    assert alone["reference"] == "none"


def test_what_a_package_s_inputs_are_drawn_from_is_part_of_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", [1.0])
    tables = [
        {},
        {"x": Input(kind="ids", count=3)},
        {"x": Input(kind="ids", count=4)},
        {"x": Input(kind="constant", files=(str(tmp_path / "x.npy"),))},
    ]
    package = SHARD.model_copy(update={"reference": "none"})
    asked = [ask(package.model_copy(update={"inputs": table})) for table in tables]
    assert all(a != b for i, a in enumerate(asked) for b in asked[:i])
    np.save(tmp_path / "x.npy", [2.0])
    assert ask(package.model_copy(update={"inputs": tables[-1]})) != asked[-1]
    assert str(tmp_path) not in json.dumps(asked)


def test_golden_tensors_hold_their_probes(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    shard = SHARD.model_copy(update={"reference": path})
    assert question("fidelity", shard, MODEL, unread)["reference"] == {"golden": "missing"}
    path.write_bytes(b"one")
    one = question("fidelity", shard, MODEL, unread)
    assert one == {"reference": {"golden": file_digest(path)}, "max_tokens": 64}
    path.write_bytes(b"other")
    assert question("fidelity", shard, MODEL, unread) != one


def test_behaviour() -> None:
    asked = question("behaviour", MODEL, MODEL, lambda: IDENTITY)
    assert (
        asked["prompts"]
        == ask(SHARD.model_copy(update={"probes": Probes(kinds=("captured",))}))["prompts"]
    )
    assert asked["source"] == ask(SHARD)["source"]


def test_policies_are_no_part_of_a_question() -> None:
    strict = SHARD.model_copy(
        update={"policy": SHARD.policy.model_copy(update={"unproven": "allow"})}
    )
    assert ask(strict) == ask(SHARD)
