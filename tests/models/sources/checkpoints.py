"""Small checkpoints in the published layout: index, several files, bf16, JSON beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Tensor = tuple[str, npt.NDArray[Any]]
"""The format's name of a dtype, and values; of BF16 and F8 the bits."""


def bf16(values: Any) -> Tensor:
    """Values cut to bfloat16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16
    return "BF16", bits.astype(np.uint16)


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """One safetensors file, written byte by byte, for the library's numpy side has no bf16."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), end],
        }  # fmt: skip
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_checkpoint(
    folder: Path, *parts: Mapping[str, Tensor], config: Mapping[str, Any] | None = None
) -> Path:
    """A folder with an index and a file for each part."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    homes = {}
    for name, part in zip(names, parts, strict=True):
        write_file(folder / name, part)
        homes |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_tokenizer(folder: Path, words: Sequence[str], **settings: Any) -> None:
    """Whole words as tokens, `<s>` put before every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate(["<s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
