"""Packages with states, as people's own scripts convert them: wrong ones differ over sequences."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_ane.backends import CpuBackend
from pytest_ane.gates.fidelity import measure
from pytest_ane.make.coremltools_quiet import import_coremltools
from pytest_ane.manifest import Probes
from pytest_ane.probes.cases import TURNS, Calls, Case
from pytest_ane.probes.domains import Slots
from pytest_ane.probes.package import package_cases
from pytest_ane.probes.sequences import sequences
from tests.multifunction import save
from tests.probes import packages

WIDTH, SLOTS = 8, 6
PROBES = Probes(kinds=("gaussian",), count=1)


class Attention(nn.Module):
    """One head over slots; `write` says where a position's key and value go."""

    keys: Tensor
    values: Tensor

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        weights = torch.randn(3, WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
        self.weights = nn.Parameter(weights / WIDTH**0.5)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, SLOTS, WIDTH, dtype=torch.float16))

    def forward(self, x: Tensor, write: Tensor) -> Tensor:
        q, k, v = (x @ self.weights[i] for i in range(3))
        kept = 0.0 if self.fault == "forgets" else 1 - write
        keys = self.keys * kept + k * write
        values = v * write if self.fault == "never" else self.values * kept + v * write
        self.keys[:] = keys
        if self.fault != "never":
            self.values[:] = values
        return x + torch.softmax(q @ keys.transpose(1, 2), dim=-1) @ values


@pytest.fixture(scope="module", name="packages")
def packages_by_fault(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By fault; `twin` is the right one converted again, with another name for an operation."""
    return {
        name: convert(Attention(name), tmp_path_factory.mktemp(name) / f"{name}.mlpackage")
        for name in ("right", "forgets", "never", "twin")
    }


def convert(module: Attention, path: Path) -> Path:
    ct = import_coremltools()
    half = partial(ct.TensorType, dtype=np.float16)
    shapes = {"x": (1, 1, WIDTH), "write": (1, SLOTS, 1)}
    names = ("keys", "values")[: 1 if module.fault == "never" else 2]
    return packages.save(
        path, module.half(), [half(*each) for each in shapes.items()],
        *(torch.zeros(shape).half() for shape in shapes.values()), outputs=[half("y")],
        states=[ct.StateType(half(shape=(1, SLOTS, WIDTH)), name) for name in names],
    )  # fmt: skip


def lowest(packages: dict[str, Path], artifact: str) -> tuple[float, list[Case]]:
    backend = CpuBackend()
    cases = package_cases(backend, packages[artifact], packages["right"], PROBES)
    runner = backend.load(packages[artifact])
    comparisons = measure(runner, cases, compared=True, provenance={}).comparisons
    return float(min(c.worst for c in comparisons)), cases


@pytest.mark.slow
def test_a_right_package_agrees_over_a_sequence(packages: dict[str, Path]) -> None:
    cosine, cases = lowest(packages, "twin")
    assert cosine > 0.9999
    assert [len(case.expected["y"]) for case in cases] == [len(case.calls) for case in cases]
    assert dict(cases[0].carried) == {"keys": True, "values": True}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["forgets", "never"])
def test_what_earlier_calls_wrote_is_read(packages: dict[str, Path], fault: str) -> None:
    cosine, _ = lowest(packages, fault)
    assert cosine < 0.97


@pytest.mark.drawn
@pytest.mark.slow
def test_a_state_that_changes_no_output_is_told(packages: dict[str, Path]) -> None:
    case, _ = package_cases(CpuBackend(), packages["twin"], packages["forgets"], PROBES)
    assert dict(case.carried) == {"keys": False, "values": False}


def test_each_function_is_probed_over_a_sequence_of_its_own(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    wrong = {"decode": packages["twin"], "verify4": packages["forgets"]}
    right = {"decode": packages["right"], "verify4": packages["right"]}
    artifact, reference = (
        save(tmp_path / f"{name}.mlpackage", functions)
        for name, functions in (("artifact", wrong), ("reference", right))
    )
    backend, lowest = CpuBackend(), {}
    for name in wrong:
        cases = package_cases(backend, artifact, reference, PROBES, function=name)
        runner = backend.load(artifact, name)
        compared = measure(runner, cases, compared=True, provenance={}).comparisons
        lowest[name] = min(c for comparison in compared for c in comparison.cosines)
        assert [len(case.calls) for case in cases][:1] == [len(TURNS)]
    assert lowest["decode"] > 0.999 > 0.97 > lowest["verify4"]


def test_a_long_sequence_ends_where_random_numbers_let_a_state_grow(
    packages: dict[str, Path],
) -> None:
    """Nothing says that `write` is a mask, so states grow with every call."""
    _, long = package_cases(CpuBackend(), packages["twin"], packages["right"], PROBES)
    assert 4 <= len(long.calls) < 40


@pytest.mark.parametrize(
    ("steps", "slots", "expected"),
    [
        ([4], Slots({"k": 8}, 8), [((0, 4), (4, 4), (0, 4), (4, 4))]),
        (
            [1],
            Slots({"k": 16}, 16),
            [
                (*((at, 1) for at in range(0, 16, 2)), (0, 1), (1, 1)),
                tuple((at, 1) for at in range(1, 16, 2)),
            ],
        ),
        ([1, 3], Slots({"k": 6}, 6), [((0, 3), (3, 1), (4, 1), (5, 1), (0, 1), (1, 1))]),
        ([5], Slots({"k": 4}, 4), []),
        ([1], Slots(), [(*((at, 1) for at in range(38)), (0, 1), (1, 1))]),
    ],
)
def test_sequences_reach_every_slot_and_begin_again(
    steps: list[int], slots: Slots, expected: list[Calls]
) -> None:
    """The last one has drawn starts."""
    planned = [calls for calls, filled in sequences(0, steps, slots)]
    assert planned[: len(expected)] == expected
    assert len(planned) == len(expected) + bool(slots.count and expected)


def test_positions_go_round_and_beyond_the_last_slot() -> None:
    calls = [call for each, _ in sequences(0, [2], Slots({"k": 8}, None)) for call in each]
    assert {at for at, _ in calls} >= {0, 2, 4, 6, 8, 10}
    assert max(map(sum, calls)) == 12


def test_a_state_of_many_slots_is_filled_before_its_end() -> None:
    *some, (last, filled) = sequences(0, [1], Slots({"k": 4096}, 4096))
    assert filled
    assert not any(filled for _, filled in some)
    assert (4095, 1) in last
    assert sum(len(calls) for calls, _ in some) <= 50


@pytest.mark.parametrize("slots", [32, 64])
def test_over_seeds_a_sequence_begins_everywhere(slots: int) -> None:
    leads = Slots({"k": slots}, slots)
    starts = {at for seed in range(1, 41) for calls, _ in sequences(seed, [4], leads)
              for at, _ in calls}  # fmt: skip
    assert starts == {*range(slots - 3)}
