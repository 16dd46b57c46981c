"""Why an item fails that fails: not applicable here, or explained. Anything else is our defect."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.conformance.records import Item


@dataclass(frozen=True)
class Reason:
    """A rule: items whose id and failure match share a reason.

    Attributes:
        applicable: False where the item asks for something that is no part of the executor.
        half: it holds for items with fp16 values only.
    """

    item: str
    why: str
    text: str
    applicable: bool = True
    half: bool = False

    def fits(self, item: Item) -> bool:
        """Whether an item is meant."""
        if self.half and not item.half:
            return False
        found = re.search(self.item, item.item) and re.search(self.why, item.why)
        return bool(found)


REASONS = (
    Reason(
        "",
        r"\.mlmodel: is one file|is a neuralNetwork",
        "The item converts to the older neural-network kind, which is refused.",
        applicable=False,
    ),
    Reason(
        "",
        r"^No module named|ModuleNotFoundError|module 'torchvision' has no attribute",
        "The item needs a package that is not installed (torchvision).",
        applicable=False,
    ),
    Reason(
        r"precision='fp32'",
        "Not equal to tolerance",
        "The program has fp16 values, which cannot meet the relative tolerance of 1e-5.",
        applicable=False,
        half=True,
    ),
    Reason(
        r"precision='fp32'.*",
        r"^assert 0 == 2",
        "The item counts the casts that conversion to fp16 adds.",
        applicable=False,
    ),
    Reason(
        r"precision='fp32'.*",
        r"Not equal to tolerance .*violations: 0\.000999",
        "The item's expected values are written with four digits.",
    ),
    Reason(
        r"TestResample::.*precision='fp32'",
        r"Not equal to tolerance .*violations: 0\.00859",
        "The item's expected values are written with three digits: 36.3 for 36.3086.",
    ),
    Reason(
        r"TestNormalizationLocalResponseNorm::test_builder_to_backend_smoke",
        "Not equal to tolerance",
        "The item's input has rank 3, and its expected values have no neighbours; MIL's "
        "definition, and the suite's own comparison with torch, sum over neighbouring channels.",
    ),
    Reason(
        r"test_ios17_invalid_indices.*validate_indices=False",
        r"DID NOT RAISE|out of bounds",
        "The item expects a wrong number from an index out of range that is not validated; Core ML "
        "leaves the result open, the executor counts negative indices from the end and refuses "
        "others.",
    ),
    Reason(
        r"TestCropResize::test_builder_to_backend_smoke",
        "Not equal to tolerance",
        "The item's box lies outside the documented range, and its expected values ignore the box.",
    ),
)


LOOSE = (
    Reason(
        r"TestRNN::test_builder_to_backend_smoke.*hidden_size=1-",
        "",
        "64 inputs into one unit: rounding inputs and weights to fp16 alone moves the exact result "
        "by 3.2e-3.",
    ),
)
"""Items that pass and are not close, for a reason."""


def loose(item: Item) -> bool:
    """Whether an item passes and is not close."""
    return item.outcome == "passed" and item.compared > 0 and not item.close


def reason(item: Item) -> Reason | None:
    """The first reason that fits an item that failed or is not close."""
    return next((r for r in (LOOSE if loose(item) else REASONS) if r.fits(item)), None)
