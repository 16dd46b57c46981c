"""`pytest-ane weights`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ane.build import BuildRecord
    from pytest_ane.manifest import Compression


def run(package: Path, against: Path | None) -> Iterator[str]:
    """A package's weights: asked and stored, bytes, and what compression did to them.

    What was asked, and errors without `against`, are known where the package lies as it was built,
    beside its record.
    """
    from pytest_ane.build import distortions, take_census
    from pytest_ane.cli.explain import terminal_width
    from pytest_ane.gates.compression import weights_table
    from pytest_ane.mil import read_model
    from pytest_ane.report.table import table

    model = read_model(package)
    census, record = take_census(model), _record(package)
    if against is not None:
        errors = distortions(model, read_model(against))
    else:
        errors = record.distortions if record else ()
    notes = record.notes if record else ()
    yield from table(weights_table(census, _asked(record), notes, errors), terminal_width())
    ratio = census.dense_bytes / census.stored_bytes if census.stored_bytes else 0.0
    yield (
        f"{len(census.weights)} weights, {census.stored_bytes:,} bytes, "
        f"{ratio:.2f}x smaller than fp16"
    )
    if against is not None and (missing := len(census.weights) - len(errors)):
        yield f"{missing} of them have no counterpart of the same name and shape in {against}"


def _record(package: Path) -> BuildRecord | None:
    from pytest_ane.build import BuildRecord
    from pytest_ane.build.record import PACKAGE, RECORD

    folder = package.absolute().parent
    if package.name != PACKAGE or not (folder / RECORD).is_file():
        return None
    return BuildRecord.read(folder)


def _asked(record: BuildRecord | None) -> Compression | None:
    """What the record says was asked; a record of another version may not be understood."""
    if record is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from pytest_ane.manifest import Compression

    adapter: TypeAdapter[Compression] = TypeAdapter(Compression)
    try:
        return adapter.validate_python(record.key.get("compression"))
    except ValidationError:
        return None
