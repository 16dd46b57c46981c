"""Recorded plans on disk: formats, counts, logs of Core ML, fields of an untrusted file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.placement.plans import explain, parse_plan, read_plan, summarise
from pytest_ane.mlprogram.errors import PlanError
from pytest_ane.report.placement import explain_plan
from tests.gates.placement.plans import samples
from tests.gates.placement.plans.samples import ALL, COUNTS_TEXT, LOG

_INSERTS = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"-1", b"1e999", b"NaN", b"(", b")",
            b"\n", b"\x00", b"\xff", b"true", b"{}", b"[]", b"99999999999999999999")  # fmt: skip


def outcome(data: bytes) -> None:
    """It is read and can be told, or is refused in one sentence."""
    try:
        said = list(explain_plan(parse_plan(data)))
    except PlanError as error:
        said = [str(error)]
    assert not any("\n" in line for line in said)


def mutated(data: bytes, random: Random) -> bytes:
    for _ in range(random.randint(1, 3)):
        at, length = random.randrange(len(data) + 1), random.randint(1, 12)
        change = random.randrange(4)
        if change == 0:
            data = data[:at] + data[at + length :]
        elif change == 1:
            data = data[:at] + random.choice(_INSERTS) + data[at:]
        elif change == 2:
            data = data[:at] + random.choice(_INSERTS) + data[at + length :]
        else:
            data = data[:at] + data[at // 2 : at // 2 + length * 4] + data[at:]
    return data


@pytest.mark.parametrize("name", ALL)
def test_a_format_is_recognised_by_its_content(name: str, tmp_path: Path) -> None:
    file = tmp_path / "plan"
    file.write_text(ALL[name])
    assert read_plan(file).source == name.split("/")[0]


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_mutated_files_are_refused_in_one_sentence(name: str) -> None:
    random, data = Random(name), ALL[name].encode()
    for _ in range(2000):
        outcome(mutated(data, random))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from(["infos", "aneOps", "ane_ops"]), value=_JSON)
def test_any_value_under_a_known_key_is_refused_in_one_sentence(key: str, value: object) -> None:
    outcome(json.dumps({key: value}).encode())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is none of these"),
        (b"nothing of note", "is none of these"),
        (b"{}", "is none of these"),
        (b"\xff\xfe", "no UTF-8"),
        (b'{"infos": NaN}', "NaN"),
        (b'{"infos": [], "infos": []}', "'infos' twice"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"infos": ' + b"9" * 5000 + b"}", "damaged"),
        (b'{"infos": [', "damaged"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_plan(data)


@pytest.mark.parametrize(
    "text",
    [
        "a_ane=1" * 50_000,
        "op=a " + " " * 200_000 + "preferred=" + "\nx_ane=1",
        "a" * 200_000 + "_ane=1",
        LOG * 5_000,
    ],
)
def test_a_hostile_text_does_not_hang(text: str) -> None:
    from time import process_time

    begun = process_time()
    outcome(text.encode())
    assert process_time() - begun < 3


def test_a_file_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"absent: cannot be read \(No such file"):
        read_plan(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanError, match="no regular file"):
        read_plan(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(PlanError, match="67,108,865 bytes"):
        read_plan(tmp_path / "large")


@pytest.mark.parametrize(
    ("text", "convs", "ane", "compute", "outcome"),
    [
        (samples.COUNTS_CHUNK, None, 1058, 1058, "resident"),
        (samples.COUNTS_TYPES, (36, 36), 217, 217, "resident"),
        (samples.COUNTS_TEXT, (4, 4), 148, 148, "resident"),
        (samples.COUNTS_OPS, (1, 1), 1, 2, "not resident"),
        (samples.COUNTS_SHARE, None, 412, 480, "not resident"),
        # The convolutions alone are no proof, and a file's own opinion is none either.
        ("conv_ane=36/36 conv_non_ane=0 PASS=True", (36, 36), 0, 0, "inconclusive"),
        ('{"aneOps":0,"nonANE":0,"totalOps":9}', None, 0, 0, "inconclusive"),
        (f"{samples.COUNTS_CHUNK}\n{samples.COUNTS_CHUNK}", None, 2116, 2116, "resident"),
        (f"[{samples.COUNTS_CHUNK},{samples.COUNTS_CHUNK}]", None, 2116, 2116, "resident"),
    ],
)
def test_counts_are_summed(
    text: str, convs: tuple[int, int] | None, ane: int, compute: int, outcome: str
) -> None:
    summary = summarise(parse_plan(text.encode()))
    assert (summary.conv_ane, summary.conv_total) == (convs or (None, None))
    assert (summary.devices.get("ANE", 0), summary.compute) == (ane, compute)
    assert summary.outcome == outcome


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("conv_total=4 conv_ane=3 conv_non_ane=0", "3 and conv_non_ane 0 are not 4 together"),
        ("conv_ane=4", "what it is counted of, is missing"),
        ("compute_total=4 compute_ane=5", "5 operations on the ANE, of 4"),
        ("conv_ane=36/36 conv_total=35", "conv_total is 36 and 35"),
        ('{"aneOps":3,"nonANE":2,"totalOps":4}', "5 operations have a device, of 4"),
        ('{"aneOps":true,"totalOps":4}', "aneOps is no count"),
        ('{"ane_ops":3,"schedulable_ops":9,"total_ops":4}', "9 schedulable operations, of 4"),
        ("op=a preferred=NPU supported=[]", "'NPU' is no device"),
    ],
)
def test_contradictions_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_plan(text.encode())


TEXTS = {
    "E5RT encountered an STL exception. msg = MILCompilerForANE error: failed to compile ANE model "
    "using ANEF. Error=_ANECompiler : ANECCompile() FAILED.": "falls back to CPU or GPU silently",
    "Invalid blob shape: Data-dependent shapes were disabled": "R053",
    "ANE does not support blob with rank: 6": "R027",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_failure_is_explained(text: str) -> None:
    (message,) = explain(f"noise\n2026 {text}\n")
    assert (message.failure, message.line) == (True, 2)
    assert TEXTS[text] in message.meaning
    assert parse_plan(text.encode()).source == "log"


def test_what_a_log_says() -> None:
    assert [message.failure for message in parse_plan(LOG.encode()).messages] == [True, False]
    found = summarise(parse_plan(LOG.encode()))
    assert found.outcome == "inconclusive"
    plan = parse_plan(f"ANECCompile() FAILED\n{COUNTS_TEXT}\n".encode())
    assert plan.source == "counts"
    assert summarise(plan).outcome == "inconclusive"
    assert explain("all is well\n") == ()
    assert len(explain("Error plan build: -1.\n" * 5000)) == 1000
