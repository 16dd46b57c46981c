"""Gemma 3 270M's real weights, whose terms are Gemma's: `make test-heavy` fetches them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gemma3 import referred, right
from tests.forked import Forge
from tests.models.families.decoder.oracle import difference

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/gemma3-270m.toml"


@pytest.mark.drawn
@pytest.mark.heavy
def test_the_reference_is_transformers() -> None:
    ours = referred()
    theirs = right(ours.ids)
    assert ours.perplexity == pytest.approx(theirs.perplexity, rel=1e-4)
    assert ours.perplexity == pytest.approx(21.5, rel=0.01)
    assert difference(ours.logits, theirs.logits) <= 1e-4
    assert (ours.logits.argmax(axis=1) == theirs.logits.argmax(axis=1)).all()
    # Beyond fp16, so that it needs the factor of 1/32.
    assert max(ours.largest.values()) > 65_504


@pytest.mark.full
def test_the_whole_example_is_green(tmp_path: Path, forge: Forge) -> None:
    """As the program's types say; both arithmetics take twice as long, `make examples` has them."""
    command = ["pytest", f"--ane-manifest={EXAMPLE}", "--ane-shards=all"]
    command += ["-m", "gate", f"--ane-cache={tmp_path}", "-p", "no:cacheprovider"]
    command += ["--ane-arithmetic=typed"]
    done = forge.run(command, ROOT)
    assert done.returncode == 0, done.stdout
    assert "behaviour 1/1, compression 34/34, fidelity 34/34" in done.stdout
