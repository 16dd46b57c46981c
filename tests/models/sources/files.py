"""Small GGUF files, written with the `gguf` package's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

Tensors = Mapping[str, tuple[npt.NDArray[Any], Kind]]


def write_gguf(path: Path, tensors: Tensors, metadata: Mapping[str, Any] | None = None) -> Path:
    """Write tensors, each quantized as its kind says, and metadata by the values' Python types."""
    writer = gguf.GGUFWriter(path, arch="llama")
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, gguf.quantize(array.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
