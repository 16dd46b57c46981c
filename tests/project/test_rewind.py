"""Converted attention shards of all families go back to where a draft was wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.make.coremltools_quiet import converter_notes
from pytest_ane.make.shard import convert
from pytest_ane.project._package_chain import ShardSequence
from tests.models.families.gemma4.tiny import tiny_model as tiny_gemma
from tests.models.families.llama.tiny import tiny_model as tiny_llama
from tests.models.families.zaya.tiny import tiny_model as tiny_zaya

pytestmark = [pytest.mark.slow, pytest.mark.drawn]

MODELS: dict[str, Any] = {
    "llama L00": lambda: tiny_llama(["L00"], context=12),
    "zaya L00": lambda: tiny_zaya(["L00"], width=16, head=8, seed=3),
    "gemma4 L00.attn": lambda: tiny_gemma(hidden_size=32, seed=3),
}
Open = Callable[[], ShardSequence]


@pytest.fixture(scope="module")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Open]:
    """What begins sequences through a shard, converted once."""

    @cache
    def convert_once(name: str) -> Open:
        model, shard = MODELS[name](), name.split()[1]
        path = tmp_path_factory.mktemp("packages") / "shard.mlpackage"
        with converter_notes():
            convert(model.conversion(shard), max_tokens=4, target="iOS18", subject=name).save(
                str(path)
            )
        runner, layout = CpuBackend().load(path), model.layout(shard)
        return lambda: ShardSequence(runner, layout, 4)

    return convert_once


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_what_was_rejected_leaves_no_trace(
    opener: Callable[[str], Open], name: str, keep: int
) -> None:
    straight, back = opener(name)(), opener(name)()
    width = straight._layout.width
    rng = np.random.default_rng(5)
    before, kept, wrong, after = (
        rng.standard_normal((n, width)).astype(np.float32) for n in (3, keep, 4 - keep, 2)
    )
    # In calls of the same lengths, so that no rounding is in between.
    straight(before)
    if keep:
        straight(kept)
    back(before)
    mark = back.mark()
    back(np.concatenate([kept, wrong]))
    back.back(mark, keep)
    expected, found = straight(after), back(after)
    assert np.abs(found - expected).max() <= 4e-3 * np.abs(expected).max()
    back.back(mark)
    np.testing.assert_array_equal(back(wrong[:1]), fresh(opener(name), before, wrong[:1]))


def fresh(start: Open, before: Any, rows: Any) -> Any:
    """Rows after others, in a sequence that never went back."""
    sequence = start()
    sequence(before)
    return sequence(rows)
