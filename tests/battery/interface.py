"""Faults of a package's interface, and of the compression that it was built with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from pytest_ane.manifest import Shard
from tests.battery.fault import Fault, Modules, Put, unique

_WHERE = ("smollm2:L01",)
_HEAD = ("smollm2:head.1",)


@contextmanager
def converter(fault: Fault) -> Iterator[None]:
    """Convert as an interface's fault has it: `fault.put` changes the arguments of the converter.

    It gets the keyword arguments of `coremltools.convert`.
    """
    from pytest_ane.make.coremltools_quiet import import_coremltools

    ct = import_coremltools()
    right = ct.convert

    def convert(model: Any, **arguments: Any) -> Any:
        fault.put(arguments, None)  # type: ignore[arg-type]
        return right(model, **arguments)

    with mock.patch.object(ct, "convert", convert):
        yield


def _inputs(change: Callable[[Any], Any]) -> Put:
    def put(arguments: dict[str, Any], _: Modules) -> None:
        arguments["inputs"] = [change(port) for port in arguments["inputs"]]

    return put


def _outputs(change: Callable[[Any], Any]) -> Put:
    def put(arguments: dict[str, Any], _: Modules) -> None:
        arguments["outputs"] = [change(port) for port in arguments["outputs"]]

    return put


def _both(*puts: Put) -> Put:
    def put(arguments: Any, modules: Modules) -> None:
        for each in puts:
            each(arguments, modules)

    return put


def _typed(dtype: Any, only: str = "") -> Callable[[Any], Any]:
    def change(port: Any) -> Any:
        ct = _coremltools()
        if only and port.name != only:
            return port
        shape = port.shape and tuple(port.shape.shape)
        return ct.TensorType(port.name, shape, dtype=dtype)

    return change


def _named(names: dict[str, str]) -> Callable[[Any], Any]:
    def change(port: Any) -> Any:
        shape = port.shape and tuple(port.shape.shape)
        return _coremltools().TensorType(names.get(port.name, port.name), shape, dtype=np.float16)

    return change


def _range(low: int, high: int, default: int | None = None) -> Callable[[Any], Any]:
    """Another range of T; of one number it is fixed."""

    def change(port: Any) -> Any:
        ct = _coremltools()
        flexible = low if low == high else ct.RangeDim(low, high, default=default or low)
        shape = [flexible if isinstance(d, ct.RangeDim) else d for d in port.shape.shape]
        return ct.TensorType(port.name, tuple(shape), dtype=np.float16)

    return change


def _coremltools() -> Any:
    from pytest_ane.make.coremltools_quiet import import_coremltools

    return import_coremltools()


def _precision(arguments: dict[str, Any], _: Modules) -> None:
    arguments["compute_precision"] = _coremltools().precision.FLOAT32


def _interface(name: str, what: str, put: Put, shards: tuple[str, ...] = _WHERE) -> Fault:
    return Fault(name, "interface", what, put, shards, "interface", "fidelity", "interface")


_WIDE_IN, _WIDE_OUT = _inputs(_typed(np.float32)), _outputs(_typed(np.float32))

INTERFACE = [
    _interface("types-in", "inputs are float32", _WIDE_IN),
    _interface("types-out", "the output is float32", _WIDE_OUT),
    _interface("types-both", "inputs and the output are float32", _both(_WIDE_IN, _WIDE_OUT)),
    _interface("types-mask", "the mask is float32", _inputs(_typed(np.float32, "mask"))),
    _interface("types-head", "logits are float32", _WIDE_OUT, _HEAD),
    _interface("range-128", "T reaches 128", _inputs(_range(1, 128))),
    _interface("range-32", "T ends at 32", _inputs(_range(1, 32))),
    _interface("range-from-2", "T begins at 2", _inputs(_range(2, 64))),
    _interface("range-fixed", "T is 64", _inputs(_range(64, 64))),
    _interface("range-head", "T of the head reaches 128", _inputs(_range(1, 128)), _HEAD),
    _interface("name-in", "an input has another name", _inputs(_named({"mask": "causal"}))),
    _interface("name-out", "the output has another name", _outputs(_named({"y": "hidden"}))),
    _interface("precision", "the program computes in float32", _precision),
]


def _scheme(name: str, what: str, shards: tuple[str, ...] = _WHERE, **settings: Any) -> Fault:
    put = scheme(**settings)
    return Fault(name, "scheme", what, put, shards, "scheme", "compression", "compression")


def scheme(**settings: Any) -> Put:
    """Build with other settings of compression than are asked for."""

    def put(shard: Shard, _: Modules) -> Shard:
        compression = shard.compression.model_copy(update=settings)
        return shard.model_copy(update={"compression": compression})

    return put


SCHEME = [
    _scheme("scheme-4-bits", "4 bits in place of 8", nbits=4),
    _scheme("scheme-no-overrides", "overrides are left out", overrides=()),
    _scheme("scheme-tensor", "one table for a weight", granularity="per_tensor"),
    _scheme("scheme-threshold", "weights below 200,000 elements stay fp16",
            weight_threshold=200_000),
    _scheme("scheme-head-6-bits", "6 bits in place of 8", _HEAD, nbits=6),
]  # fmt: skip

FAULTS = unique([*INTERFACE, *SCHEME])
