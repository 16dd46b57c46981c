"""What a search measures: the menu, the log, runners that stay, losses, and the words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.manifest import Linear, Palettize
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import CacheError, ManifestError
from pytest_ane.mlprogram.metrics.logits import compare_logits
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.probes.exact_chain import GoldenPrompt
from pytest_ane.tools._recommend import (
    DEFAULT,
    ExactStack,
    LoadedBackend,
    Log,
    filled,
    lowest,
    menu_of,
)
from pytest_ane.tools._recommend_search import Candidate
from pytest_ane.tools.recommend import line, table
from tests.models.test_chain import block, embed, following, head
from tests.tools.recommend.simulated import unit


def test_what_was_not_measured_is_like_the_same_weights_elsewhere() -> None:
    q0, q1, q2 = (unit(shard, "q") for shard in ("L00", "L01", "L02"))
    o2 = unit("L02", "o")
    assert filled([q0, q1, q2, o2], {q0: 1.0, q1: 3.0}) == {q0: 1.0, q1: 3.0, q2: 2.0, o2: 2.0}
    assert filled([q0, o2], {q0: 1.0, o2: 5.0}) == {q0: 1.0, o2: 5.0}
    assert filled([q0, o2], {}) == {}
    assert filled([q0, o2, q2], {q2: 1.0, o2: 5.0})[q0] == 1.0


@pytest.mark.parametrize("cosines", [[None, 0.98], [0.98, None], [None], []])
def test_an_undefined_cosine_is_the_lowest(cosines: list[float | None]) -> None:
    """Python's `min` of 0.98 and NaN is 0.98."""
    assert math.isnan(lowest(cosines))
    assert lowest([0.99, 0.98]) == 0.98


IDS = (2, 3, 5)


def add(amount: float) -> ChainStep:
    def run(x: FloatArray) -> FloatArray:
        return np.asarray(x + amount * np.roll(x, 1, axis=1), np.float32)

    return block("L01", run)


def chain(middle: ChainStep) -> Chain:
    return Chain(embed, (block("L00", np.tanh), middle, head("head.0", following)))


def golden(exact: Chain) -> GoldenPrompt:
    return GoldenPrompt("count", IDS, exact.logits(IDS), (), (), "")


@pytest.mark.parametrize("amount", [0.0, 0.1, 2.0])
def test_it_is_the_whole_chain_with_that_step(amount: float) -> None:
    exact = chain(add(0.0))
    prompt = golden(exact)
    whole = compare_logits(prompt.logits, chain(add(amount)).logits(IDS))[1:]
    alone = ExactStack(exact, [prompt, prompt])
    alone.kl(add(3.0))  # Which leaves nothing behind.
    found = alone.kl(add(amount))
    assert found == pytest.approx(np.mean([p.kl for p in whole]), abs=1e-12)
    assert (found > 1e-6) == (amount > 0)


A, B = Path("a"), Path("b")


def test_the_runners_that_are_kept_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def load(backend: CpuBackend, artifact: Path, function: str | None) -> Any:
        read.append(artifact)
        return object()

    monkeypatch.setattr(CpuBackend, "load", load)
    loaded = LoadedBackend()
    loaded.keep((A, B))
    a, b = loaded.load(A), loaded.load(B)
    assert (loaded.load(A), loaded.load(B)) == (a, b)
    loaded.keep((A,))
    assert loaded.load(A) is a
    assert loaded.load(B) is not b
    loaded.load(B)
    assert loaded.load(A) is a
    assert read == [A, B, B, B]
    assert loaded.provenance() == CpuBackend().provenance()
    assert loaded.simulated() is loaded.simulated()
    assert loaded.simulated().provenance() == CpuBackend(arithmetic="ane").provenance()


@pytest.mark.parametrize(
    "junk", [b"", b"\xff\xfe", b"[]", b"null", b"{}", b'{"context": 1}', b"[" * 5000]
)
def test_what_was_put_is_there_again(junk: bytes, tmp_path: Path) -> None:
    """But for a last line cut short, of its own context, and beside whatever else is there."""
    (file := tmp_path / "deep" / "log.jsonl").parent.mkdir()
    file.write_bytes(junk)
    log = Log(file, {"model": 1})
    log.put("alone", ["L00", "q*"], {"kl": math.nan, "all": [{"a": math.inf}, 0.5]})
    log.put("alone", "L01", {"kl": 0.6})
    entry = json.loads(file.read_text("latin-1").splitlines()[-2])
    found = {"kl": "NaN", "all": [{"a": "Infinity"}, 0.5]}
    assert (entry["kind"], entry["of"], entry["found"]) == ("alone", ["L00", "q*"], found)
    file.write_bytes(file.read_bytes()[:-9])
    again = Log(file, {"model": 1})
    assert (len(again), again.get("alone", ["L00", "q*"])) == (1, found)
    assert again.get("blame", ["L00", "q*"]) is None
    assert Log(file, {"model": 2}).get("alone", ["L00", "q*"]) is None
    again.put("alone", "L02", {"kl": 0.7})
    assert Log(file, {"model": 1}).get("alone", "L02") == {"kl": 0.7}


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"cannot be read: Is a directory; choose another with"):
        Log(tmp_path, 1)


FILE = """
["6-bit"]
method = "palettize"
nbits = 6

[int8]
method = "linear"
"""


def test_the_default_unless_something_else_is_said(tmp_path: Path) -> None:
    assert menu_of(None) is DEFAULT
    with pytest.raises(ManifestError, match="cannot be read: No such file"):
        menu_of(tmp_path / "menu.toml")
    (tmp_path / "menu.toml").write_text(FILE)
    assert menu_of(tmp_path / "menu.toml") == {"6-bit": Palettize(nbits=6), "int8": Linear()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a menu needs at least two settings to choose from"),
        ("[a]\nmethod = 'none'\n", "a menu needs at least two settings"),
        ("a = ", "not valid TOML"),
        ("a = 1\nb = 2", "a: "),
        ("[a]\nmethod = 'palettize'\nnbits = 7\n[b]\nmethod = 'none'\n", "a.palettize.nbits: "),
        ("[a]\nmethod = 'zip'\n[b]\nmethod = 'none'\n", "a: .*'zip'"),
        (
            "[a]\nmethod = 'none'\nkeep = ['r*']\n[b]\nmethod = 'linear'\n",
            "'a' has keep or overrides; .* so leave them out",
        ),
    ],
)
def test_what_is_wrong_with_a_file(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "menu.toml").write_text(text)
    with pytest.raises(ManifestError, match=says) as caught:
        menu_of(tmp_path / "menu.toml")
    assert "menu.toml" in str(caught.value)


FACTS = {"cosine": 0.98, "top1": 0.95, "centred_cosine.min": 0.97}
FOUR = Candidate("4-bit", {}, 70_000_000, 0.5, "failed", ("Mean KL is high.", "And so on."))
SMALL = Candidate("mixed 1", {}, 104_000_000, 0.04, "passed", (), FACTS)
LARGE = Candidate("int8", {}, 135_000_000, 0.01, "passed", (), FACTS)


def test_table() -> None:
    assert list(table([FOUR, LARGE, SMALL], SMALL)) == [
        "candidate     MB  cosine  top-1      KL  centred  verdict",
        "4-bit       70.0       -      -  0.5000        -  failed",
        "mixed 1    104.0  0.9800  95.0%  0.0400   0.9700  passed, recommended",
        "int8       135.0  0.9800  95.0%  0.0100   0.9700  passed",
    ]


def test_lines() -> None:
    assert line(SMALL) == "mixed 1: 104.0 MB, KL 0.0400, passed"
    assert line(FOUR) == "4-bit: 70.0 MB, KL 0.5000, failed: Mean KL is high. (and 1 more)"
    few = Candidate("few", {}, 70_000_000, math.nan, "unproven", ("4 positions are judged.",))
    assert line(few) == "few: 70.0 MB, unproven: 4 positions are judged."
