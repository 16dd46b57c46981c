"""The example's family of the user's own: VaultGemma against transformers, and its gates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.models.families import get_family, identify_family
from tests.forked import Forge
from tests.models.families.decoder.oracle import (
    MAX_TOKENS,
    Case,
    Converted,
    difference,
    expected,
    prompt,
    referred,
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_family"
CHANGES = {"head_dim": 10, "sliding_window": 5, "query_pre_attn_scalar": 20}
CASES = (
    Case("plain", "vault_gemma", "VaultGemma", CHANGES),
    Case("no-caps", "vault_gemma", "VaultGemma", CHANGES | {
        "attn_logit_softcapping": None, "final_logit_softcapping": 3.0, "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    }),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    right, ids = case.save(tmp_path), prompt(60)
    logits = expected(right, ids)
    shards = Converted(case.open(tmp_path, stateful=True))
    starts = range(0, 60, MAX_TOKENS)
    stepped = np.concatenate([shards(ids[start : start + MAX_TOKENS]) for start in starts])
    for actual in (referred(case.open(tmp_path, stateful=False), ids), stepped):
        assert difference(actual, logits) <= 1e-4
        np.testing.assert_array_equal(actual.argmax(axis=1), logits.argmax(axis=1))


def test_its_source_is_part_of_what_shards_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    assert get_family("vault_gemma").VERSION == "vault_gemma/3.1"
    assert identify_family("vault_gemma")["code"].keys() == {"vault_gemma"}


def test_the_page_shows_it() -> None:
    page = (EXAMPLE.parents[1] / "docs/how-to/own-model.md").read_text()
    shown = page.split("```python\nfrom dataclasses import replace\n")[1].split("```")[0]
    code = (EXAMPLE / "vault_gemma.py").read_text().splitlines()
    assert [line for line in shown.splitlines() if line and line not in code] == []


@pytest.mark.slow
def test_gates_of_its_example(tmp_path: Path, forge: Forge) -> None:
    command = ["pytest", f"--ane-manifest={EXAMPLE / 'shards.toml'}", "--ane-shards=L00,head.0"]
    command += ["-m", "gate", f"--ane-cache={tmp_path / 'cache'}"]
    done = forge.run(command, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "passed: compression 2/2, fidelity 2/2, placement 2/2" in done.stdout
