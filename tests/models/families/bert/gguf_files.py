"""GGUF files of BERT's checkpoints, with the keys and tensors of llama.cpp's converter.

`BertModel` of llama.cpp's `conversion/bert.py` describes them; names are those of
`gguf.get_tensor_name_map` and ids of special tokens of `gguf.SpecialVocab`, which it uses as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

from pytest_ane.mlprogram.arrays import FloatArray

POOLINGS = {
    "mean_tokens": gguf.PoolingType.MEAN,
    "cls_token": gguf.PoolingType.CLS,
    "lasttoken": gguf.PoolingType.LAST,
}
_ARCH = gguf.MODEL_ARCH.BERT


def write_gguf_of(
    folder: Path,
    file: Path,
    *,
    fused: bool = False,
    dtype: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    more: Mapping[str, bool | int] | None = None,
) -> Path:
    """A checkpoint as a GGUF file; without `tokenizer.json` its tokens are `token 0` and so on.

    Args:
        folder: the checkpoint's.
        file: to be written.
        fused: whether the maps of queries, keys and values are one tensor.
        dtype: of matrices.
        more: keys and values besides.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[_ARCH])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    if (modules := folder / "1_Pooling" / "config.json").is_file():
        (mode,) = (mode for mode, on in json.loads(modules.read_text()).items() if on is True)
        writer.add_pooling_type(POOLINGS[mode.removeprefix("pooling_mode_")])
    add_vocabulary(writer, folder, config)
    for key, value in (more or {}).items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(key, value)
    loaded = load_file(folder / "model.safetensors")
    stored = {name: tensor.float().numpy() for name, tensor in loaded.items()}
    for name, values in tensors(config, stored, fused=fused):
        if values.ndim == 2 and dtype != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quantize(values, dtype), raw_dtype=dtype)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_vocabulary(writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
    """`BertModel.set_vocab`: continuations lose `##`, and other words begin with U+2581."""
    writer.add_token_type_count(config["type_vocab_size"])
    tokens = [f"token {i}" for i in range(config["vocab_size"])]
    special: set[str] = set()
    if (file := folder / "tokenizer.json").is_file():
        stored = json.loads(file.read_text())
        special = {entry["content"] for entry in stored["added_tokens"] if entry["special"]}
        words = {index: word for word, index in stored["model"]["vocab"].items()}
        tokens = [words.get(i, f"[PAD{i}]") for i in range(config["vocab_size"])]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([t if t in special else phantom(t) for t in tokens])
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if t in special else kinds.NORMAL for t in tokens])
    gguf.SpecialVocab(folder, n_vocab=len(tokens)).add_to_gguf(writer)


def phantom(token: str) -> str:
    """As the converter rewrites a token that is not special."""
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def tensors(
    config: Mapping[str, Any], stored: Mapping[str, FloatArray], *, fused: bool
) -> Iterator[tuple[str, FloatArray]]:
    """Names and values; poolers and the heads of pre-training are left out."""
    names = gguf.get_tensor_name_map(_ARCH, config["num_hidden_layers"])
    whole = {name.removeprefix("bert."): values for name, values in stored.items()}
    for name, values in whole.items():
        if name.startswith(("pooler.", "cls.")) or name == "embeddings.position_ids":
            continue
        if not fused or ".attention.self." not in name:
            yield names.get_name(name, try_suffixes=(".weight", ".bias")), values
        elif ".query." in name:
            parts = [whole[name.replace("query", part)] for part in ("query", "key", "value")]
            layer, kind = name.split(".")[2], name.rpartition(".")[2]
            yield f"blk.{layer}.attn_qkv.{kind}", np.concatenate(parts)
