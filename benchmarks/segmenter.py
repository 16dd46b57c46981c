"""How often the predicted placement is Core ML's: published cases and plans, scored.

    python -m benchmarks.segmenter --cases FILE.csv --plans FILE.csv

`--cases` has the operations of small programs with what Core ML said of each (columns `set` to
`ms_source`), `--plans` whole networks with a device per operation. Nothing is looked up by name: an
operation is made of its shapes, types and parameters, and the answer is compared. Exit code 1 where
a total on the last line is below its bar.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from benchmarks.segmenter_rows import Row, case_op, plan_ops
from pytest_ane.gates.placement.segmenter import (
    Op,
    edge_costs,
    estimated,
    estimates,
    predict,
    shortest,
)
from pytest_ane.gates.placement.segmenter._costs import (
    BACKENDS,
    UNIT,
    Backend,
    CostModel,
    Units,
    milliseconds,
    models,
    obstacle,
)

_CASE_COLUMNS = (
    *("set", "units", "case", "index", "role", "op", "in_shapes", "out_shape", "dtypes", "params"),
    *("supported", "preferred", "cost_share", "ms_ane", "ms_bnns", "ms_classic_cpu"),
)
_PLAN_COLUMNS = (
    *("model", "machine", "units", "index", "op", "out_shape", "device", "cost_share", "note"),
)
_MS: Mapping[str, Backend] = {"ms_ane": "ane", "ms_bnns": "bnns", "ms_classic_cpu": "classic"}
_UNITS: Mapping[str, Units] = {"cpune": "CPU_AND_NE", "all": "ALL"}
_CHIPS = {"m4": "M4", "m4-pro": "M4 Pro"}
_SHARE = 5e-5
"""Half of the last digit of a case's share."""
_TOLERANCE = 0.05
BARS = {"paths": 0.98, "costs": 0.95, "CPU_AND_NE": 1.0, "ALL strict": 0.95, "ALL with ties": 0.99}


@dataclass
class Tally:
    """What was right, of how many; `wrong` names the others."""

    right: int = 0
    total: int = 0
    wrong: list[str] = field(default_factory=list)

    def count(self, right: bool, name: str) -> None:
        """Count one comparison."""
        self.right += right
        self.total += 1
        if not right:
            self.wrong.append(name)

    @property
    def ratio(self) -> float:
        """Right of all; 1 where nothing was compared."""
        return self.right / self.total if self.total else 1.0

    def __str__(self) -> str:
        return f"{self.right} of {self.total} ({self.ratio:.1%})"


@dataclass
class Score:
    """All totals.

    Attributes:
        paths: programs whose published path costs no more than the best.
        exact: those whose published path is the predicted one.
        support: verdicts per operation and unit.
        costs: per operation and unit, against published milliseconds, or against shares, which
            tell ratios within a program.
        plan_costs: the same of whole networks, which no bar is on.
        plans: operations by compute units; with ALL strictly, and with ties.
        unestimated: programs for which Core ML published no estimates, so no support either.
    """

    paths: Tally = field(default_factory=Tally)
    exact: Tally = field(default_factory=Tally)
    support: Tally = field(default_factory=Tally)
    costs: Tally = field(default_factory=Tally)
    plan_costs: Tally = field(default_factory=Tally)
    plans: dict[str, Tally] = field(default_factory=dict)
    unestimated: int = 0

    @property
    def passed(self) -> bool:
        """Whether every total is at its bar, and something was compared."""
        if not (self.paths.total and self.support.total and self.plans):
            return False
        ratios = {"paths": self.paths.ratio, "costs": self.costs.ratio}
        ratios |= {name: tally.ratio for name, tally in self.plans.items()}
        return not self.support.wrong and all(ratios.get(n, 1.0) >= bar for n, bar in BARS.items())


def score_cases(rows: Iterable[Row], score: Score) -> None:
    """Add the programs of `--cases`: consecutive rows of one set, units and case."""
    model = models()["M4"]
    for key, group in groupby(rows, key=lambda row: (row["set"], row["units"], row["case"])):
        members = list(group)
        ops = [case_op(row) for row in members]
        units = _UNITS["all" if key[1].startswith("all") else "cpune"]
        _score_costs("/".join(key), members, ops, model, score)
        placed = all(row["preferred"] for row in members)
        if placed and not any(row["cost_share"] for row in members):
            score.unestimated += 1
        else:
            _score_support("/".join(key), members, ops, units, score)
        if placed:
            _score_path("/".join(key), [row["preferred"] for row in members], ops, units, score)


def _score_support(
    name: str, rows: Sequence[Row], ops: Sequence[Op], units: Units, score: Score
) -> None:
    for row, op in zip(rows, ops, strict=True):
        if not (row["supported"] and op.known):
            continue
        published = set(row["supported"].split(","))
        for backend in BACKENDS[units]:
            # CPU stands for two backends, of which one at least takes everything.
            if (unit := UNIT[backend]) != "CPU":
                takes = not obstacle(op, backend)
                score.support.count(takes == (unit in published), f"{name}/{row['index']} {unit}")


def _score_path(
    name: str, published: Sequence[str], ops: Sequence[Op], units: Units, score: Score
) -> None:
    prediction = predict(ops, units)
    exact = [op.unit for op in prediction.operations] == list(published)
    score.exact.count(exact, name)
    score.paths.count(exact or _gap(published, ops, units, models()["M4"]) == 0.0, name)


def _gap(published: Sequence[str], ops: Sequence[Op], units: Units, model: CostModel) -> float:
    """Milliseconds by which the published units cost more than the best path; 0 for a tie."""
    if not estimated(ops):
        return float("inf")
    costs, edges = estimates(ops, units, model), edge_costs(units, model)
    allowed = [
        tuple(
            ms if UNIT[backend] == unit else float("inf")
            for backend, ms in zip(BACKENDS[units], row, strict=True)
        )
        for row, unit in zip(costs, published, strict=True)
    ]
    best = shortest(costs, edges, model.tie_ms)
    theirs = shortest(allowed, edges, model.tie_ms)
    gap = theirs.total - best.total
    return 0.0 if gap <= model.tie_ms else gap


def _score_costs(
    name: str, rows: Sequence[Row], ops: Sequence[Op], model: CostModel, score: Score
) -> None:
    for row, op in zip(rows, ops, strict=True):
        for column, backend in _MS.items():
            if row[column] and not obstacle(op, backend):
                ours, theirs = milliseconds(op, backend, model), float(row[column])
                near = abs(ours - theirs) <= _TOLERANCE * theirs
                score.costs.count(near, f"{name}/{row['index']} {backend} {ours:.6g} {theirs:.6g}")
    if len(rows) > 1 and all(row["cost_share"] and row["preferred"] for row in rows):
        _score_shares(name, rows, ops, model, score.costs, _SHARE)


def _score_shares(
    name: str,
    rows: Sequence[Row],
    ops: Sequence[Op],
    model: CostModel,
    tally: Tally,
    digit: float,
) -> None:
    """Shares of the published units, scaled by the operations around the tested one."""
    chosen: dict[str, Backend] = {"ANE": "ane", "CPU": "bnns", "GPU": "gpu"}
    ours = []
    for row, op in zip(rows, ops, strict=True):
        device = row.get("preferred") or row.get("device") or ""
        backend = chosen[device]
        if backend == "bnns" and obstacle(op, "bnns"):
            backend = "classic"
        ours.append(milliseconds(op, backend, model))
    shares = [float(row["cost_share"]) for row in rows]
    clear = [i for i, share in enumerate(shares) if share > digit / _TOLERANCE]
    anchors = [i for i in clear if rows[i].get("role") == "wrap"] or clear
    if not anchors:
        return
    scale = statistics.median(ours[i] / shares[i] for i in anchors)
    for row, ms, share in zip(rows, ours, shares, strict=True):
        if share <= digit / _TOLERANCE:
            continue  # its last digit is more than the tolerance
        near = abs(ms - share * scale) <= (_TOLERANCE * share + digit) * scale
        tally.count(near, f"{name}/{row['index']} {row['op']} {ms:.6g} {share * scale:.6g}")


def score_plans(rows: Iterable[Row], score: Score) -> None:
    """Add the networks of `--plans`: consecutive rows of one model, machine and units."""
    for (name, machine, units), group in groupby(
        rows, key=lambda row: (row["model"], row["machine"], row["units"])
    ):
        members, chip = list(group), _CHIPS.get(machine.lower().replace(" ", "-"))
        if chip is None or units not in BACKENDS:
            print(f"{name}: no costs of {machine} with {units}; left out")
            continue
        model, ops = models()[chip], plan_ops(members)
        prediction = predict(ops, units, chip)
        paths = shortest(estimates(ops, units, model), edge_costs(units, model), model.tie_ms)
        strict = "ALL strict" if units == "ALL" else units
        for row, op, through in zip(members, prediction.operations, paths.through, strict=True):
            if row["device"] not in UNIT.values():
                continue
            label = f"{name}/{units}/{row['index']} {op.kind} {row['device']}"
            score.plans.setdefault(strict, Tally()).count(op.unit == row["device"], label)
            theirs = min(
                ms
                for backend, ms in zip(BACKENDS[units], through, strict=True)
                if UNIT[backend] == row["device"]
            )
            tie = theirs - paths.total <= model.tie_ms
            if units == "ALL":
                score.plans.setdefault("ALL with ties", Tally()).count(tie, label)
        told = [(row, op) for row, op in zip(members, ops, strict=True) if row["cost_share"]]
        if told:
            rows_told, ops_told = zip(*told, strict=True)
            _score_shares(f"{name}/{units}", rows_told, ops_told, model, score.plan_costs, 0.0)


def read(path: Path, columns: Sequence[str]) -> list[Row]:
    """Rows of a CSV file.

    Raises:
        SystemExit: it cannot be read, or a column is missing.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
                raise SystemExit(f"{path}: has no column {', '.join(missing)}.")
            return list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{path}: cannot be read ({error}).") from None


def report(score: Score, *, verbose: bool = False) -> Iterator[str]:
    """The score in lines, the totals last."""
    tallies = {
        "paths optimal": score.paths,
        "paths as predicted": score.exact,
        "support verdicts": score.support,
        "costs within 5 %": score.costs,
        **{f"plan operations, {name}": tally for name, tally in score.plans.items()},
        "plan shares within 5 %": score.plan_costs,
    }
    for name, tally in tallies.items():
        yield f"{name}: {tally}"
        if verbose:
            yield from (f"    {wrong}" for wrong in tally.wrong)
    yield f"programs without estimates, support not compared: {score.unestimated}"
    plans = ", ".join(f"{name} {tally.ratio:.1%}" for name, tally in score.plans.items())
    yield (
        f"total: paths {score.paths.ratio:.1%}, wrong support verdicts "
        f"{len(score.support.wrong)}, costs {score.costs.ratio:.1%}; plans {plans or 'none'}: "
        f"{'passed' if score.passed else 'failed'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score; 1 where it is below a bar."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(__file__).parents[1] / "tests/gates/placement/segmenter"
    parser.add_argument("--cases", type=Path, default=data / "cases.csv")
    parser.add_argument("--plans", type=Path, default=data / "plans.csv")
    parser.add_argument("--verbose", action="store_true", help="name what is wrong")
    options = parser.parse_args(arguments)
    score = Score()
    score_cases(read(options.cases, _CASE_COLUMNS), score)
    score_plans(read(options.plans, _PLAN_COLUMNS), score)
    for line in report(score, verbose=options.verbose):
        print(line)
    return 0 if score.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
