"""coremltools' protobuf definitions without coremltools: 0.03 s instead of three.

`import coremltools` loads converters and torch. The generated modules in `coremltools/proto` need
protobuf alone, so they are loaded under the package's own name from a bare parent module, which is
taken away again: a later real `import coremltools` runs as if nothing had happened and finds the
same message classes.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pytest_ane.core.errors import ProgramError

_PARENT = "coremltools"


@cache
def definitions() -> Any:
    """The module `coremltools.proto.Model_pb2`; its `MIL__pb2` holds the program's messages.

    Raises:
        ProgramError: coremltools is not installed.
    """
    if _PARENT in sys.modules:
        return import_module(f"{_PARENT}.proto.Model_pb2")
    spec = find_spec(_PARENT)
    if spec is None or not spec.submodule_search_locations:
        raise ProgramError("coremltools is not installed; run: pip install coremltools")
    parent = ModuleType(_PARENT)
    parent.__path__ = list(spec.submodule_search_locations)
    sys.modules[_PARENT] = parent
    try:
        return import_module(f"{_PARENT}.proto.Model_pb2")
    finally:
        del sys.modules[_PARENT]


def mil() -> Any:
    """The module `coremltools.proto.MIL_pb2`."""
    definitions()
    return sys.modules[f"{_PARENT}.proto.MIL_pb2"]
