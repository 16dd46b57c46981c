"""Tiny packages, a tiny Llama model and manifests over them, for projects made by pytester."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, FFN, HEADS, KV_HEADS, VOCABULARY = 64, 96, 2, 1, 64
HEAD = WIDTH // HEADS
TOKENS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "Ġ", "ab"]

LLAMA = """\
[models.mini]
family = "llama"
source = {{ path = "{source}" }}
shards = "L00-L01, head.0-head.1"
max-tokens = 16

[models.mini.probes]
kinds = ["gaussian", "captured"]
count = 1
seed = 7

[models.mini.policy.behaviour]
min-greedy = 3
min-positions = 4

[[models.mini.prompts]]
name = "counting"
ids = [5, 17, 40, 3, 22]
greedy = 3
"""

COUNT = """
import tempfile
from pathlib import Path
from pytest_ane.make import shard

build = shard._build

def counted(given, *arguments):
    with Path(__file__).with_name("builds.txt").open("a") as file:
        print(given.id, tempfile.gettempdir(), file=file)
    build(given, *arguments)

shard._build = counted
"""
"""A conftest that writes down what is built, and the temporary folder of that."""

Build = Callable[[Any], Any]


def make_packages(folder: Path) -> dict[str, Path]:
    """Packages by what they are: good, other, float32, ineligible, nan, weightless."""
    from pytest_ane.make.coremltools_quiet import converter_notes

    with converter_notes():
        return {n: save(folder / f"{n}.mlpackage", build) for n, build in _PROGRAMS.items()}


def save(path: Path, build: Build) -> Path:
    """Convert a one-input program `[1, 8, 1, 4]` and save it."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    full = build is _float32
    dtype = ct.converters.mil.mil.types.fp32 if full else ct.converters.mil.mil.types.fp16

    @mb.program(  # type: ignore[untyped-decorator]
        input_specs=[mb.TensorSpec(shape=(1, 8, 1, 4), dtype=dtype)], opset_version=ct.target.iOS18
    )
    def program(x: Any) -> Any:
        return build(x)

    precision = ct.precision.FLOAT32 if full else ct.precision.FLOAT16
    converted = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=precision,
        skip_model_load=True,
    )
    converted.save(str(path))
    return path


def _weight(seed: int, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).standard_normal((8, 8, 1, 1)).astype(dtype)


def _conv(x: Any, weight: Any) -> Any:
    from coremltools.converters.mil import Builder as mb

    return mb.conv(x=x, weight=weight, name="projection")


def _good(x: Any) -> Any:
    return _conv(x, _weight(0))


def _other(x: Any) -> Any:
    return _conv(x, _weight(1))


def _float32(x: Any) -> Any:
    return _conv(x, _weight(0, np.float32))


def _ineligible(x: Any) -> Any:
    from coremltools.converters.mil import Builder as mb

    return mb.tan(x=_conv(x, _weight(0)), name="tangent")


def _weightless(x: Any) -> Any:
    from coremltools.converters.mil import Builder as mb

    return mb.relu(x=x, name="positive")


def _nan(x: Any) -> Any:
    """A root of -|x| - 1, which is NaN everywhere."""
    from coremltools.converters.mil import Builder as mb

    below = mb.sub(x=np.float16(-1), y=mb.abs(x=_conv(x, _weight(0))))
    return mb.sqrt(x=below, name="root")


_PROGRAMS: dict[str, Build] = {
    "good": _good,
    "other": _other,
    "float32": _float32,
    "ineligible": _ineligible,
    "nan": _nan,
    "weightless": _weightless,
}


def make_llama(path: Path, *, seed: int = 3, blocks: int = 2, loud: float | None = None) -> Path:
    """A Llama model of a few blocks with random weights, and a tokenizer of single letters.

    `loud` is one channel of token 40's embedding, as large as real hidden states become.
    """
    import gguf

    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(blocks)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * VOCABULARY)
    for name, shape in _shapes(blocks).items():
        scale = 1.0 if len(shape) == 1 else 2 / np.sqrt(shape[-1])
        data = rng.standard_normal(shape) * scale if len(shape) > 1 else np.ones(shape)
        if loud is not None and name == "token_embd":
            # Not in the head, which would otherwise be these same weights.
            writer.add_tensor("output.weight", data.astype(np.float32))
            data[40, 7] = loud
        writer.add_tensor(f"{name}.weight", data.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(count: int) -> dict[str, tuple[int, ...]]:
    block = {
        "attn_norm": (WIDTH,),
        "attn_q": (HEADS * HEAD, WIDTH),
        "attn_k": (KV_HEADS * HEAD, WIDTH),
        "attn_v": (KV_HEADS * HEAD, WIDTH),
        "attn_output": (WIDTH, HEADS * HEAD),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (FFN, WIDTH),
        "ffn_up": (FFN, WIDTH),
        "ffn_down": (WIDTH, FFN),
    }
    blocks = {f"blk.{i}.{name}": shape for i in range(count) for name, shape in block.items()}
    return {"token_embd": (VOCABULARY, WIDTH), **blocks, "output_norm": (WIDTH,)}
