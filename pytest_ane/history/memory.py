"""Reads a memory with duckdb: lines that are whole, and which ones were skipped.

duckdb only ever sees what lines and people say as values, never as a part of a query. It opens no
file: files are read here, so that a link to a device, or a line without an end, is noticed before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_ane.gates.words import TIMED
from pytest_ane.history.lines import FORMAT
from pytest_ane.history.order import Commits, Run, ordered
from pytest_ane.manifest.ids import as_range, nearest
from pytest_ane.mlprogram.errors import HistoryError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LONGEST_LINE = 1 << 20
"""Characters; a run writes some thousand."""
_MOST_BYTES = 1 << 31
_TEXTS = (
    "run", "commit", "gate", "subject", "test", "artifact", "question", "backend", "arithmetic",
    "machine", "chip", "os", "compute_units", "recorded",
)  # fmt: skip
_FORM = (
    '{"format":"BIGINT","time":"VARCHAR","clean":"BOOLEAN","versions":"JSON","figures":"JSON",'
    + ",".join(f'"{name}":"VARCHAR"' for name in _TEXTS)
    + "}"
)
_FIGURES = "from_json(figures, '\"MAP(VARCHAR, VARCHAR)\"')"
_PARSED = f"""
create temp table parsed as
select ''::varchar as file, 0::bigint as number, unnest(json_transform('{{}}', '{_FORM}')) limit 0
"""
_PARSE = f"""
insert into parsed
select $1, number, unnest(
    case when length(text) <= {LONGEST_LINE} and json_valid(text)
    then json_transform(text, '{_FORM}') end
) from given where text <> ''
"""
_WHOLE = f"""
create temp table lines as
select row_number() over () as id, file, number, figures,
    coalesce(versions, '{{{{}}}}') as versions,
    {", ".join(f"coalesce({name}, '') as {name}" for name in _TEXTS)},
    coalesce(clean, false) as clean, try_cast(time as timestamp) as time,
    hash({{key}}) as series
from parsed
where format = {FORMAT} and run <> '' and gate <> '' and subject <> ''
    and try_cast(time as timestamp) is not null and json_type(figures) = 'OBJECT'
"""
_KEY = """
subject, gate, coalesce(test, ''), coalesce(backend, ''),
case when coalesce(backend, '') not in ('', 'cpu') or list_contains({timed}, gate)
then concat_ws('|', machine, chip, os, compute_units) else '' end
"""
"""What makes a series: of figures of a device or a clock, the machine as well."""


@dataclass(frozen=True)
class Skipped:
    """A line, or a whole file (`number` 0), that was not read.

    Attributes:
        file: its name.
        number: of the line, from 1.
        why: end of a sentence.
    """

    file: str
    number: int
    why: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.number}" if self.number else self.file
        return f"{where} {self.why}"


@dataclass(frozen=True)
class Series:
    """One figure of one subject over runs, in their order.

    Attributes:
        gate: its name.
        subject: shard or model.
        test: which test of several.
        figure: its name.
        backend: what computed it.
        ids: of lines.
        runs: places in `Memory.runs`.
        values: as measured; NaN and infinities are kept.
    """

    gate: str
    subject: str
    test: str
    figure: str
    backend: str
    ids: tuple[int, ...]
    runs: tuple[int, ...]
    values: tuple[float, ...]


class Memory:
    """All lines of a folder, in an ephemeral database.

    Args:
        folder: of the memory.
        models: files to read; all where it is empty.

    Raises:
        HistoryError: duckdb is missing, or no line of the folder can be read.
    """

    def __init__(self, folder: Path, models: Sequence[str] = ()) -> None:
        self.folder = folder
        self.skipped: list[Skipped] = []
        self._database = _connect()
        self._read([f"{model}.jsonl" for model in models])
        if not self.runs:
            skipped = f"; {len(self.skipped)} lines were skipped" if self.skipped else ""
            raise HistoryError(
                f"{folder} holds no line of history{skipped}; write some with: pytest "
                "--ane-shards=all -m gate --ane-history"
            )

    def _read(self, names: Sequence[str]) -> None:
        self.ask(_PARSED)
        for path in sorted(self.folder.glob("*.jsonl")):
            if names and path.name not in names:
                continue
            try:
                data = _bytes_of(path)
            except OSError as error:
                why = f"cannot be read ({error.strerror or error})"
                self.skipped.append(Skipped(path.name, 0, why))
                continue
            texts = data.decode(errors="replace").replace("\0", "\ufffd").split("\n")
            numbers = np.arange(1, len(texts) + 1)
            given = {"number": numbers, "text": np.array(texts, dtype=object)}
            self._database.register("given", given)
            self.ask(_PARSE, [path.name])
            self._database.unregister("given")
        self.ask(_WHOLE.format(key=_KEY.format(timed=list(TIMED))))
        self.skipped += [
            Skipped(file, number, "is of a newer pytest-ane" if newer else "is damaged")
            for file, number, newer in self.ask(
                f"select file, number, coalesce(format > {FORMAT}, false) from parsed "
                "anti join lines using (file, number) order by file, number"
            )
        ]
        self.ask("drop table parsed")
        self.ask("create temp table runs (run varchar, commit varchar, place bigint)")
        self.ask(
            "insert into runs select unnest($1::varchar[]), unnest($2::varchar[]), "
            "unnest($3::bigint[])",
            [
                [run.id for run in self.runs],
                [run.commit for run in self.runs],
                [*range(len(self.runs))],
            ],
        )

    def ask(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """The rows of a query of ours; whatever a person or a file gives is in `values`."""
        return self._database.execute(query, values or None).fetchall()

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in git's order where it knows their commits, else by time."""
        found = [
            Run(run, commit, clean, str(time), lines)
            for run, commit, clean, time, lines in self.ask(
                "select run, commit, bool_and(clean), min(time), count(*) "
                "from lines group by all order by min(time), min(id)"
            )
        ]
        return ordered(found, self.commits)

    @cached_property
    def commits(self) -> Commits:
        """What git knows of the commits of the lines."""
        named = self.ask("select distinct commit from lines where commit <> ''")
        return Commits(self.folder, [commit for (commit,) in named])

    @property
    def models(self) -> list[str]:
        """Models with lines."""
        query = "select distinct split_part(subject, ':', 1) as model from lines order by model"
        return [model for (model,) in self.ask(query)]

    def subjects(self, shards: str = "all") -> list[str]:
        """Shards and models with lines that a selection names, as for `series`."""
        rows = self.ask("select distinct subject from lines order by subject")
        return [subject for (subject,) in rows if matches(subject, shards)]

    def check(self, *, gate: str = "", shards: str = "all") -> None:
        """See that a gate and each term of a selection name lines; arguments as of `series`.

        Raises:
            HistoryError: one of them names none, or no line is of both.
        """
        pairs = self.ask("select distinct subject, gate from lines order by all")
        gates = sorted({of for _, of in pairs})
        if gate and gate not in gates:
            raise HistoryError(
                f"--gate: {self.folder} has no line of the gate {gate!r}; {nearest(gate, gates)}."
            )
        if not (terms := _terms(shards)):
            raise HistoryError("--shards is empty; name shards such as L01, or 'all'.")
        for term in terms:
            if not any(matches(subject, term) for subject, _ in pairs):
                whole = ":" in term
                names = [s if whole else s.rpartition(":")[2] for s, _ in pairs]
                raise HistoryError(
                    f"--shards: {term!r} matches no shard or model in {self.folder}; "
                    f"{nearest(term, names)}."
                )
        if gate and not any(of == gate and matches(subject, shards) for subject, of in pairs):
            raise HistoryError(
                f"No line in {self.folder} is of both --gate {gate} and --shards {shards}; leave "
                "out one of them."
            )

    def series(
        self,
        figures: str | Sequence[str] = (),
        *,
        gate: str = "",
        shards: str = "all",
        changing: bool = False,
    ) -> list[Series]:
        """Figures over runs.

        Args:
            figures: its name, or those of several; all where it is empty.
            gate: its name; all where it is empty.
            shards: ids, ranges and globs, as for `--ane-shards`, or names of models.
            changing: leave out figures that have one value throughout.
        """
        rows = self.ask(
            f"""
            with asked as (
                select * from lines
                where list_contains($subjects, subject) and ($gate = '' or gate = $gate)
            ), kept as (
                select series from asked group by series
                having not $changing or count(distinct figures) > 1
            ), maps as (
                select series, id, place, {_FIGURES} as figures
                from asked semi join kept using (series)
                join runs on runs.run = asked.run
                    and runs.commit = asked.commit
            ), flat as (
                select series, id, place, unnest(map_keys(figures)) as figure,
                    try_cast(unnest(map_values(figures)) as double) as value
                from maps
            ), listed as (
                select series, figure, list(id order by place, id) as ids,
                    list(place order by place, id) as places,
                    list(value order by place, id) as values
                from flat
                where value is not null and (not $named or list_contains($figures, figure))
                group by all having not $changing or min(value) <> max(value)
            ), named as (
                select series, any_value(gate) as gate, any_value(subject) as subject,
                    any_value(test) as test,
                    any_value(backend) as backend
                from asked group by series
            )
            select gate, subject, test, figure, backend, ids, places, values
            from listed join named using (series) order by subject, gate, test, figure, series
            """,
            {
                "subjects": self.subjects(shards),
                "gate": gate,
                "changing": changing,
                "named": bool(figures),
                "figures": [figures] if isinstance(figures, str) else [*figures],
            },
        )
        return [
            Series(gate, subject, test, name, backend, tuple(ids), tuple(places), tuple(values))
            for gate, subject, test, name, backend, ids, places, values in rows
        ]

    def names(self, *, gate: str = "", shards: str = "all") -> list[str]:
        """Names of figures; arguments as of `series`."""
        rows = self.ask(
            "select distinct subject, unnest(json_keys(figures)) as name from lines "
            "where $1 = '' or gate = $1 order by name",
            [gate],
        )
        return list(dict.fromkeys(name for subject, name in rows if matches(subject, shards)))

    def figures_of(self, run: Run) -> list[tuple[str, str, str, dict[str, str], str, float]]:
        """Gate, subject, test, facts, figure and value of all numbers of a run, the last ones.

        The facts are `backend`, `machine`, `chip` and `compute_units`.
        """
        return self.ask(
            f"""
            with last as (
                select * from lines where run = $1 and commit = $2
                qualify row_number() over (partition by gate, subject, test order by id desc) = 1
            ), flat as (
                select gate, subject, test,
                    {{backend: backend, machine: machine, chip: chip, compute_units: compute_units}}
                        as facts,
                    unnest(map_keys({_FIGURES})) as figure,
                    try_cast(unnest(map_values({_FIGURES})) as double) as value
                from last
            )
            select * from flat where value is not null order by all
            """,
            [run.id, run.commit],
        )

    def facts(self, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Where lines come from, by their ids: artifact, question, machine, versions."""
        names = ("artifact", "question", "machine", "chip", "os", "compute_units", "arithmetic",
                 "versions")  # fmt: skip
        rows = self.ask(
            f"select id, {', '.join(names)} from lines where list_contains($1::bigint[], id)",
            [list(ids)],
        )
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}


def matches(subject: str, shards: str) -> bool:
    """Whether a selection such as `L00-L04,head*`, `smollm2:L01` or `all` names a subject."""
    return any(fnmatchcase(subject, pattern) for pattern in _patterns(shards))


def _terms(shards: str) -> list[str]:
    return [term for term in (term.strip() for term in shards.split(",")) if term]


def _patterns(shards: str) -> Iterator[str]:
    for term in _terms(shards):
        if term == "all":
            yield "*"
            continue
        model, _, name = term.rpartition(":")
        try:
            names = as_range(name) or [name]
        except ValueError as error:
            raise HistoryError(f"--shards={shards}: {error}.") from None
        for each in names:
            each = each.replace("[", "[[]")  # A function of a package: `decoder[verify4]`.
            yield f"{model or '*'}:{each}"
        if not model:
            yield term


def _connect() -> DuckDBPyConnection:
    try:
        import duckdb
    except ImportError:
        raise HistoryError(
            "The history is asked with duckdb, which is not installed: "
            "pip install 'pytest-ane[history]'"
        ) from None
    # Nothing in a line can make it open a file or fetch an extension.
    return duckdb.connect(config={"enable_external_access": False})


def _bytes_of(path: Path) -> bytes:
    # Not blocking: a pipe of this name would wait for its writer.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if status.st_size > _MOST_BYTES:
            raise OSError(f"it has {status.st_size:,} bytes")
        return stream.read()
