"""Estimated durations, and the model's numbers."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

from pytest_ane.gates.placement.segmenter import Op, Tensor
from pytest_ane.gates.placement.segmenter._costs import (
    Backend,
    chip_named,
    launch_bounds,
    milliseconds,
    models,
)
from pytest_ane.manifest.base import loads


def test_a_chip_replaces_rates_and_thresholds_of_the_first() -> None:
    first, pro = models()["M4"], models()["M4 Pro"]
    assert first.rates["add"].speeds["ane"] == 35.9805
    speeds = pro.rates["add"].speeds
    assert (speeds["ane"], speeds["bnns"]) == (26.546, 21.1222)
    assert (first.thresholds["conv-high"], pro.thresholds["conv-high"]) == (61.5, 112.0)
    assert (first.launch["ane"], first.launch["bnns"], first.end["gpu"]) == (0.125, 0.0, 0.125)


@pytest.mark.parametrize("name", ["m4 pro", "M4PRO", " M4  Pro "])
def test_a_chips_name_in_any_spelling(name: str) -> None:
    assert chip_named(name) == "M4 Pro"


def test_too_little_and_enough_work_are_far_from_a_launch() -> None:
    """Launch and end are 0.25 ms, launch and two switches 0.375 ms; four times apart."""
    assert launch_bounds() == (0.0625, 1.5)


@pytest.mark.parametrize("name", ["model.toml", "support.toml"])
def test_every_entry_has_a_source_that_its_file_explains_and_a_name_of_its_own(name: str) -> None:
    data = loads(files("pytest_ane.gates.placement.segmenter").joinpath(name).read_text("utf-8"))
    for entries in data.values():
        if isinstance(entries, list) and isinstance(entries[0], dict):
            cited = {source for entry in entries for source in entry["source"].split(", ")}
            assert cited <= {*data["sources"]}
            names = [entry["name"] for entry in entries if "name" in entry]
            assert len({*names}) == len(names)
    for chip in data.get("chip", ()):
        assert chip["name"] not in data["without-costs"]
        assert {*chip.get("rates", ())} <= {rate["name"] for rate in data["rate"]}
        assert {*chip.get("thresholds", ())} <= {entry["name"] for entry in data["threshold"]}


IMAGE = Tensor((1, 64, 32, 32))


def op(kind: str, *inputs: Tensor, to: Tensor = IMAGE, **fields: Any) -> Op:
    return Op(kind, kind, inputs or (IMAGE,), (to,), **fields)


def conv(*weight: int, x: Tensor = IMAGE, **attributes: tuple[int, ...]) -> Op:
    return op("conv", x, to=x, weight=Tensor(weight), attributes=attributes)


def linear(rows: int, depth: int, width: int) -> Op:
    x, y = Tensor((1, rows, depth)), Tensor((1, rows, width))
    return op("linear", x, to=y, weight=Tensor((width, depth)))


TRANSPOSED = op("transpose", attributes={"perm": (0, 1, 3, 2)})
INDICES = Tensor((1, 64), "int32")

POOL = op("avg_pool", attributes={"kernel_sizes": (9, 9)})
TABLE, ROWS = Tensor((32000, 256)), Tensor((1, 64, 256))
DEEP = (Tensor((1, 16, 32768)), Tensor((1, 32768, 16)))
SCALAR, FLAGS = Tensor((), "int32"), Tensor((1, 64), "bool")
DOUBLED, LONG = Tensor((1, 64, 64, 64)), Tensor((1, 64, 514))

# ms on the ANE and BNNS; `None` where Core ML printed none.
RECORDED: list[tuple[Op, float | None, float | None]] = [
    (op("abs"), 0.0035903, 0.00430836),
    (op("relu"), 0.00262144, 0.00262144),
    (op("mul", IMAGE, IMAGE), 0.00609637, 0.0227908),
    (op("add", Tensor((1, 64, 1, 32)), Tensor((1, 1, 32, 1))), 0.000115618, 0.000196949),
    (op("concat", IMAGE, IMAGE, to=Tensor((1, 128, 32, 32))), 0.00262144, 0.0227908),
    (TRANSPOSED, 0.00380633, 0.00299658),
    (op("upsample_bilinear", to=DOUBLED), 0.00330513, 0.499635),
    (op("gather", TABLE, Tensor((1, 64), "int16"), to=ROWS), None, 0.712218),
    (op("gather_nd", IMAGE, Tensor((8, 2), "int16"), to=Tensor((8, 32, 32))), 0.00202005,
     0.00242406),
    (op("matmul", *DEEP, to=Tensor((1, 16, 16))), 0.0287294, 0.0344753),
    # The 9x9 pool that `coreml_dispatch.md` has at 7.0353 us.
    (POOL, 0.0035903, 0.0070353),
    # Below 12 flops a byte, below 61.5, above; the weights' bytes count.
    (conv(64, 2, 3, 3), 0.0050072, 0.0871064),
    (conv(64, 64, 3, 3, x=Tensor((1, 64, 1, 32))), 0.000329472, 0.0060797),
    (conv(64, 64, 3, 3), 0.00467428, 0.100064),
    # A dilation of 2 counts a quarter of the flops.
    (conv(64, 64, 3, 3, dilations=(2, 2)), 0.00263578, 0.0486376),
    (linear(128, 128, 128), 0.00722617, 0.186052),
    (linear(64, 514, 514), 0.058261, 1.50004),
    (linear(64, 1024, 1024), 0.0253684, 0.800072),
    # K x K, not K x N.
    (linear(128, 256, 512), 0.00317112, 0.100011),
    (op("conv_transpose", to=DOUBLED, weight=Tensor((64, 64, 2, 2))), 0.00882719, 2.12563),
    (op("conv_transpose", Tensor((1, 64, 256)), to=LONG, weight=Tensor((64, 64, 4))), 0.000445199,
     0.0795744),
    (op("lstm", Tensor((16, 1, 64)), to=Tensor((16, 1, 64))), None, 476.809),
    (op("cast", INDICES, to=Tensor((1, 64), "int16")), None, 6.31108e-06),
    (op("greater_equal", INDICES, SCALAR, to=FLAGS), None, 5.32497e-06),
    (op("select", FLAGS, INDICES, INDICES, to=INDICES), None, 1.3674e-05),
    # Integers count two bytes each.
    (op("add", INDICES, SCALAR, to=INDICES), None, 6.15466e-06),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "ane", "bnns"),
    RECORDED,
    ids=[f"{row[0].kind}-{number}" for number, row in enumerate(RECORDED)],
)
def test_recorded(operation: Op, ane: float | None, bnns: float | None) -> None:
    expected: dict[Backend, float | None] = {"ane": ane, "bnns": bnns}
    for backend, recorded in expected.items():
        if recorded is not None:
            ms = milliseconds(operation, backend, models()["M4"])
            assert ms == pytest.approx(recorded, rel=2e-3)


def test_a_bias_and_groups_count() -> None:
    plain, biased = conv(64, 64, 1, 1), conv(64, 64, 1, 1, bias=(1,))
    ratio = milliseconds(biased, "bnns", models()["M4"]) / milliseconds(
        plain, "bnns", models()["M4"]
    )
    # An element of the result takes 128 flops of 64 channels, and one of the bias.
    assert ratio == pytest.approx(1 + 1 / 128)
    whole = op("conv_transpose", weight=Tensor((64, 64, 2, 2)))
    grouped = op("conv_transpose", weight=Tensor((64, 32, 2, 2)), attributes={"groups": (2,)})
    model = models()["M4"]
    assert milliseconds(whole, "ane", model) == 2 * milliseconds(grouped, "ane", model)


def test_another_chip_has_its_own_rates() -> None:
    wide = Tensor((16, 256, 56, 56))
    assert milliseconds(op("relu", wide, to=wide), "ane", models()["M4 Pro"]) == pytest.approx(
        milliseconds(op("relu", wide, to=wide), "ane", models()["M4"])
    )
    addition = op("add", wide, wide, to=wide)
    # Shares of ResNet-50's plans: 0.04537 of an addition to 0.012044 of a relu of 0.5138 ms.
    assert milliseconds(addition, "ane", models()["M4 Pro"]) == pytest.approx(1.9355, rel=1e-3)
    assert milliseconds(addition, "gpu", models()["M4 Pro"]) == pytest.approx(0.9334, rel=1e-3)
