"""`coremldata.bin` of compiled models: what `metadata.json` says, where that is missing.

The format is not published. All that is read is what every file at hand has: the number of the
model's type in Model.proto, and its `ModelDescription` as a protobuf message. After the type come
24 bytes, a text with its length before it, 32 bytes that begin with the specification's version,
and the message with its length before it; lengths are 8 bytes, the lowest first.
"""

from __future__ import annotations

import struct
from pathlib import Path

from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.features import read_features
from pytest_ane.mlprogram.package_files import read_file
from pytest_ane.mlprogram.proto import definitions
from pytest_ane.mlprogram.records import Feature

NAME = "coremldata.bin"
_MOST_BYTES = 1 << 26
_TEXT = 28
"""Bytes before the text's length."""
_VERSION = 32
_SCHEMAS = {"inputSchema": "input", "outputSchema": "output", "stateSchema": "state"}


class ModelData:
    """`coremldata.bin`, read; it answers as `Metadata` does.

    Raises:
        FileNotFoundError: there is none.
        ProgramError: it has another form; or, from `features`, a feature is impossible.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        data = read_file(file, _MOST_BYTES)
        try:
            (number,) = struct.unpack_from("<I", data)
            self.kind = definitions().Model.DESCRIPTOR.fields_by_number[number].name
            after = _TEXT + 8 + _length(data, _TEXT)
            (version,) = struct.unpack_from("<Q", data, after)
            start = after + _VERSION + 8
            message = data[start : start + _length(data, after + _VERSION)]
            self._description = definitions().ModelDescription.FromString(message)
        # protobuf's own DecodeError is not part of its typed interface.
        except Exception as error:
            raise ProgramError(
                f"{file}: has a form that is not known, and there is no metadata.json; compile the "
                "model with `xcrun coremlcompiler`, or name its package."
            ) from error
        self.specification_version = int(version)
        self.user_defined = dict(self._description.metadata.userDefined)
        self.default = self._description.defaultFunctionName
        self._functions = {each.name: each for each in self._description.functions}

    def describes(self, function: str) -> bool:
        """Whether it holds a function's features, or those of the only one."""
        return function in self._functions or function == (self.default or "main")

    def features(self, function: str, schema: str) -> tuple[Feature, ...]:
        """The features of `inputSchema`, `outputSchema` or `stateSchema` of a function."""
        described = self._functions.get(function, self._description)
        return read_features(getattr(described, _SCHEMAS[schema]), self.file)


def read_names(file: Path) -> tuple[str, ...]:
    """The names of a pipeline's parts, `modelNames/coremldata.bin`; none where it names none.

    Raises:
        ProgramError: the file has another form.
    """
    try:
        data = read_file(file, _MOST_BYTES)
        count, at, names = _length(data, 0), 8, []
        for _ in range(count):
            end = at + 8 + _length(data, at)
            names.append(data[at + 8 : end].decode())
            at = end
    except FileNotFoundError:
        return ()
    except (struct.error, ValueError) as error:
        raise ProgramError(f"{file}: damaged ({error}); compile the pipeline again.") from None
    return tuple(names)


def _length(data: bytes, at: int) -> int:
    """A length at a place, if as many bytes follow.

    Raises:
        struct.error, ValueError: they do not.
    """
    (length,) = struct.unpack_from("<Q", data, at)
    if length > len(data) - at - 8:
        raise ValueError(f"{length} bytes at {at} of {len(data)}")
    return int(length)
