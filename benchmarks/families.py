"""Families against transformers: greatest differences, as tables.

    python -m benchmarks.families [FAMILY ...]

Checkpoints are tiny and random; each is made, saved and run by transformers, and read by the family
that its `config.json` names. Of decoders prompts have 60 tokens, and logits are compared; of
encoders 7 tokens among 24 positions, and last hidden states. Differences are relative to the
largest value.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import transformers

from tests.models.families.bert import oracle as bert
from tests.models.families.decoder.cases import CASES
from tests.models.families.decoder.oracle import (
    Case,
    Converted,
    difference,
    expected,
    prompt,
    referred,
)

LENGTH, CALL = 60, 6
TEXT = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="all by default")
    asked = parser.parse_args().families
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}\n")
    print("| family | class | configuration | reference | shards, step by step | top-1 |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if asked and case.family not in asked:
            continue
        with TemporaryDirectory() as folder:
            _row(case, Path(folder))
    print("\n| family | class | configuration | reference | shards, padded | embedding |")
    print("|---|---|---|---|---|---|")
    for encoder in bert.CASES if not asked or "bert" in asked else ():
        with TemporaryDirectory() as folder:
            _encoder_row(encoder, Path(folder))


def _row(case: Case, folder: Path) -> None:
    right, ids = case.save(folder), prompt(LENGTH)
    logits = expected(right, ids)
    reference = referred(case.open(folder, stateful=False), ids)
    shards = Converted(case.open(folder, stateful=True))
    stepped = np.concatenate([shards(ids[i : i + CALL]) for i in range(0, LENGTH, CALL)])
    same = (stepped.argmax(axis=1) == logits.argmax(axis=1)).mean()
    differences = (f"{difference(actual, logits):.0e}" for actual in (reference, stepped))
    what = case.name.removeprefix(case.family).replace("-", " ").strip() or "plain"
    cells = (case.family, type(right).__name__, what, *differences, f"{same:.0%}")
    print(f"| {' | '.join(cells)} |")


def _encoder_row(case: bert.Case, folder: Path) -> None:
    right, ids = case.save(folder), prompt(TEXT)
    model, hidden = case.open(folder), bert.expected(right, ids, padding=bert.LENGTH - TEXT)
    reference, (shards, embedding) = bert.referred(model, ids)[0], bert.converted(model, ids)
    pairs = ((reference, hidden), (shards, hidden), (embedding, bert.pooled(hidden, case)))
    differences = (f"{difference(*pair):.0e}" for pair in pairs)
    cells = ("bert", case.kind, case.name.replace("-", " "), *differences)
    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
