"""Whatever a file holds, it is drawn or refused in one sentence."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.report.charts.run import pictures_of, spec
from pytest_ane.report.formats import read_document
from pytest_ane.report.run import Run
from tests.hostile import HOSTILE, check_lines, leaves

DOCUMENTS: dict[str, dict[str, Any]] = {
    "recommend": {
        "max_kl": 0.05,
        "best": {"name": "six"},
        "candidates": [
            {
                "name": "six", "size": 1e8, "kl": 0.04, "passed": True, "reasons": [],
                "facts": {"cosine": 0.98, "top1": 0.9}, "settings": {"six": 9e7},
            },
            {"name": "two", "size": 3e7, "kl": "NaN", "passed": False, "reasons": ["cosine"]},
        ],
    },
    "bound": {
        "name": "m",
        "device": {"name": "M1"},
        "calls": [{"tokens": 1, "rate": 90.0, "kinds": [{"kind": "block", "seconds": 0.01}]}],
        "measured": [{"runtime": "mlx", "device": "M1", "tok_s": 9.0, "tokens": 1}],
    },
    "drift": {"shards": [
        {"shard": "L00", "stack": {"rest": {"relative_l2": 0.1}}},
        {"shard": "L01", "stack": {"rest": {"relative_l2": "Infinity"}}},
        {"shard": "L02", "stack": {"rest": None}},
    ]},
}  # fmt: skip
RUN = Run("", ())
NAMED = pytest.mark.parametrize("command", DOCUMENTS)


def read(folder: Path, document: object) -> dict[str, Any]:
    path = folder / "document.json"
    path.write_text(json.dumps(document))
    return read_document(path, ["m"], "It is a run.")


@NAMED
def test_what_a_command_printed_is_drawn(command: str, tmp_path: Path) -> None:
    found = read(tmp_path, {"command": command, "model": "m", **DOCUMENTS[command]})
    assert pictures_of(replace(RUN, documents=(found,)))


@NAMED
def test_another_model_is_refused(command: str, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="is of model n, and the run is of m"):
        read(tmp_path, {"command": command, "model": "n", **DOCUMENTS[command]})


@pytest.mark.parametrize(
    "document", [[], "drift", {}, {"command": "doctor"}, {"command": ["drift"]}]
)
def test_other_json_is_refused(document: object, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="recommend, bound, drift"):
        read(tmp_path, document)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), HOSTILE, st.just("NaN"),
    st.just([]), st.just({}), st.just([[1]]), st.just({"a": {}}),
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_odd_values_are_drawn_or_refused(data: st.DataObject, tmp_path_factory: Any) -> None:
    command = data.draw(st.sampled_from([*DOCUMENTS]))
    document = deepcopy(DOCUMENTS[command])
    *way, last = data.draw(st.sampled_from([*leaves(document)]))
    at: Any = document
    for key in way:
        at = at[key]
    at[last] = data.draw(ODD)
    try:
        found = read(tmp_path_factory.getbasetemp(), {"command": command, **document})
    except ReportError as error:
        check_lines([str(error)])
        return
    for picture in pictures_of(replace(RUN, documents=(found,))):
        check_lines([picture.title, picture.description])
        json.dumps(spec(picture), allow_nan=False)
