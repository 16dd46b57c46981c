"""Real text through the real stack: drafts change the time it takes, not a token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.suite.conftest import SOURCE, UNIFORM

STATES = "stateful = true\ncontext = 256\n"
TEXTS = (
    "1. apple\n2. banana\n3. apple\n4.",
    "a b c d a b c d a b c",
    "def f(x):\n    return x\n\ndef g(x):\n    return",
    "The quick brown fox jumps over the lazy dog. The quick brown",
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 |",
    "My favourite things about Paris are",
    "To be or not to be, that is",
    "import os\nimport sys\nimport",
    '{"name": "Ann", "age": 1}\n{"name": "Bob", "age": 2}\n{"name":',
    "Once upon a time, there was a little girl named Lily who",
    "one, two, three, one, two, three, one,",
    "SELECT a FROM t;\nSELECT b FROM t;\nSELECT",
)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("widths", "floor"),
    [
        pytest.param({TEXTS[0]: (4,), TEXTS[1]: (7,)}, 15, id="two", marks=pytest.mark.heavy),
        pytest.param(dict.fromkeys(TEXTS, (4, 7)), 120, id="all", marks=pytest.mark.full),
    ],
)
def test_tokens_are_those_of_plain_decoding(
    widths: Mapping[str, tuple[int, ...]], floor: int, tmp_path: Path, cache_root: Path
) -> None:
    from pytest_ane.models.chain import decode
    from pytest_ane.tools._speculate import speculate
    from pytest_ane.tools._stack import open_stack

    (tmp_path / "shards.toml").write_text(
        SOURCE.replace("shards =", f"{STATES}shards =", 1) + UNIFORM
    )
    accepted = 0
    with open_stack(tmp_path / "shards.toml", None, cache_root) as stack:
        for text in widths:
            ids = stack.encode(text)
            plain = decode(stack.chain, ids, 32).tokens
            for width in widths[text]:
                found = speculate(stack.chain, ids, 32, width)
                assert list(found.tokens) == list(plain), (text, width)
                accepted += found.accepted
    assert accepted > floor
