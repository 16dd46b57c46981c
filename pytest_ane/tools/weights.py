"""`pytest-ane weights`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_function
from pytest_ane.cli.output import Output, terminal_width

if TYPE_CHECKING:
    from pytest_ane.make import BuildRecord, Distortion
    from pytest_ane.manifest import Compression
    from pytest_ane.mlprogram.weights import Weight

HELP = "list every weight: bits, bytes, and the error of its compression"
EXAMPLE = "pytest-ane weights int4.mlpackage --against fp16.mlpackage"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The package, and its uncompressed form."""
    parser.add_argument("package", type=Path, help="an .mlpackage or .mlmodelc")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PACKAGE",
        help="its uncompressed form, for errors (default: as measured when it was built)",
    )
    add_function(parser)


def run(options: argparse.Namespace) -> Output:
    """A package's weights: settings and storage, bytes, and errors of compression.

    The settings, and errors without `--against`, are known where the package has its build record
    next to it, as in the cache.
    """
    from pytest_ane.gates.compression import weights_table
    from pytest_ane.make import compare_weights, take_census
    from pytest_ane.mlprogram.digests import tree_digest
    from pytest_ane.mlprogram.model import counterpart, read_model
    from pytest_ane.mlprogram.text import size_ratio
    from pytest_ane.report.table import table

    against: Path | None = options.against
    model = read_model(options.package, function=options.function)
    if len(functions := model.program.functions) > 1:
        yield f"function {model.function} of {', '.join(functions)}; --function names another"
        model = replace(model, program=model.program.only(model.function))
    census, record = take_census(model), _record(options.package)
    if against is not None:
        errors = compare_weights(
            model,
            read_model(against, function=counterpart(against, model.function or None)),
            _settings(record),
        ).distortions
    else:
        as_built = record is not None and record.digest == tree_digest(options.package)
        errors = record.weights.distortions if record and as_built else ()
        if record and not as_built:
            yield "the package has other bytes than its build measured: errors are left out"
    notes = record.notes if record else ()
    rows = weights_table(census, _settings(record), notes, errors)
    yield from table(replace(rows, title=""), terminal_width())
    ratio = census.dense_bytes / census.stored_bytes if census.stored_bytes else 0.0
    count = len(census.weights)
    yield (
        f"{count} {'weight' if count == 1 else 'weights'}, {census.stored_bytes:,} bytes, "
        f"{size_ratio(ratio)}"
    )
    if against is not None and (missing := len(census.weights) - len(errors)):
        yield f"{missing} of them have no counterpart of the same name and shape in {against}"
    by_name = {error.name: error for error in errors}
    return {
        "bytes": census.stored_bytes,
        "fp16_bytes": census.dense_bytes,
        "notes": notes,
        "weights": [_data(weight, by_name.get(weight.name)) for weight in census.weights],
    }


def _data(weight: Weight, error: Distortion | None) -> dict[str, Any]:
    errors = {"sse": error.sse, "snr_db": error.snr} if error else {}
    return {**vars(weight), "storage": weight.storage, **errors}


def _record(package: Path) -> BuildRecord | None:
    from pytest_ane.make import BuildRecord
    from pytest_ane.make.record import PACKAGE, RECORD

    folder = package.absolute().parent
    if package.name != PACKAGE or not (folder / RECORD).is_file():
        return None
    return BuildRecord.read(folder)


def _settings(record: BuildRecord | None) -> Compression | None:
    """The compression settings of the build; None where another version wrote the record."""
    if record is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from pytest_ane.manifest import Compression

    adapter: TypeAdapter[Compression] = TypeAdapter(Compression)
    try:
        return adapter.validate_python(record.key.get("compression"))
    except ValidationError:
        return None
