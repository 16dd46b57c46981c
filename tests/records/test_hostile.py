"""Whatever is in a file: a judge can read it, or it is refused in one sentence."""

from __future__ import annotations

import json
import zlib
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.records.record import Record, changes, pretty, sealed
from tests.records.makers import MEASURED, judged, record

GATES = list(MEASURED)
MUTANTS = 800
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 17, 2**31, 2**53, 2**53 + 1, 2**64, -(2**64), 0.5, -0.5,
    1e-320, 1e-300, 1e300, -1e300, 1.0000001, -0.0, "NaN", "Infinity", "-Infinity", "nan", "1", "",
    "x", "conv", "constexpr_lut_to_dense", "constexpr_sparse_to_dense", "captured", "ANE", "é",
    "a" * 2000, [], {}, [[]], [0], [0, 0], [-1], [1, 0], ["NaN"], [0.5, "NaN", 2], {"a": 1},
    [2**40, 2**40], [1] * 70, {"op": "constexpr_blockwise_shift_scale", "nbits": 4},
]  # fmt: skip


def outcome(data: bytes) -> bool:
    """Whether a file is read; then every judge must have something to say."""
    try:
        found = Record.from_json(data)
    except EvidenceError as error:
        says = str(error)
    else:
        says = ""
    if says:
        assert len(says) <= 1003
        assert says.isprintable()
        return False
    assert judged(found.measurement)
    assert Record.from_json(found.to_json().encode()).to_json() == found.to_json()
    list(changes(record(found.gate), found))
    return True


def mutate(value: Any, random: Random) -> None:
    """Change one thing within JSON data: put, take, double or exchange it."""
    holders = [value]
    for one in holders:
        inner = one.values() if isinstance(one, dict) else one
        holders += [child for child in inner if isinstance(child, dict | list) and child]
    holder = random.choice(holders)
    key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    kind = random.random()
    if kind < 0.15:
        del holder[key]
    elif kind < 0.3 and isinstance(holder, list):
        holder.insert(key, deepcopy(holder[key]))
    elif kind < 0.4:
        other = random.choice(holders)
        holder[key] = deepcopy(other) if not _within(holder, other) else None
    else:
        holder[key] = deepcopy(random.choice(VALUES))


def _within(holder: Any, other: Any) -> bool:
    return len(json.dumps(other)) > 2000 or other is holder


@pytest.mark.slow
@pytest.mark.parametrize("gate", GATES)
def test_mutated_measurements(gate: str) -> None:
    """Sealed anew, so that the digest does not stand before everything else."""
    random = Random(zlib.crc32(gate.encode()))
    original = json.loads(record(gate).to_json())
    read = 0
    for _ in range(MUTANTS):
        data = deepcopy(original)
        for _ in range(random.randint(1, 3)):
            mutate(data["measurement"] or [0], random)
        read += outcome(pretty(sealed(data)).encode())
    # If none or all were read, the mutations would try little.
    assert MUTANTS / 20 < read < MUTANTS * 19 / 20


@pytest.mark.slow
@pytest.mark.parametrize("gate", GATES)
def test_mutated_statements(gate: str) -> None:
    random = Random(zlib.crc32(gate.encode()))
    original = json.loads(record(gate).to_json())
    for _ in range(MUTANTS // 4):
        data = deepcopy(original)
        mutate(data, random)
        outcome(pretty(sealed(data)).encode())


@pytest.mark.parametrize("gate", GATES)
def test_mutated_bytes(gate: str) -> None:
    random = Random(zlib.crc32(gate.encode()))
    original = record(gate).to_json().encode()
    for _ in range(MUTANTS // 4):
        data = bytearray(original)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data))
            data[at : at + random.randint(0, 9)] = random.randbytes(random.randint(0, 3))
        # What is read differs in white space alone.
        assert not outcome(bytes(data)) or json.loads(data) == json.loads(original)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    assert not outcome(data)


@settings(max_examples=50)
@given(
    st.sampled_from(GATES),
    st.recursive(
        st.sampled_from(VALUES),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    ),
)
def test_any_measurement(gate: str, value: Any) -> None:
    data = json.loads(record(gate).to_json())
    data["measurement"] = value
    outcome(pretty(sealed(data)).encode())
