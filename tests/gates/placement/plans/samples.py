"""A small file of every format, as its tool writes it."""

from __future__ import annotations

import json
from typing import Any

CORES = 16
DEVICES: dict[str, dict[str, Any]] = {
    "ANE": {"neuralEngine": {"totalCoreCount": CORES}},
    "GPU": {"gpu": {}},
    "CPU": {"cpu": {}},
}


def path(*names: str, function: str = "main", blocks: tuple[tuple[int, ...], ...] = ()) -> Any:
    """`path("loop", "y", blocks=((0,),))` is y in block 0 of loop."""
    components: list[Any] = [{"program": {}}, {"programFunction": {"data": {"name": function}}}]
    for indices, name in zip(((-1,), *blocks), names, strict=True):
        components += [{"programBlock": {"data": {"index": index}}} for index in indices]
        components.append({"programOperation": {"data": {"outputName": name}}})
    return {"components": components}


def info(name: str, device: str = "ANE", **more: Any) -> dict[str, Any]:
    supported = [DEVICES["CPU"], DEVICES["GPU"], DEVICES["ANE"]]
    usage = {"preferred": DEVICES[device], "supported": supported}
    return {"deviceUsage": usage, "estimatedCost": 0.0123, "path": path(name), **more}


COREMLTOOLS = json.dumps(
    {
        "infos": [
            info("x_cast_fp16"),
            info("y", "CPU"),
            info("", path=path("loop", "body", blocks=((0, 1),)), estimatedCost=None),
            info("", path=path("z", function="prefill"), note="kept"),
        ],
        "made": "by hand",
    }
)
COUNTS_CHUNK = '{"aneOps":1058,"chunkName":"chunk1","nonANE":0,"totalOps":1058}'
COUNTS_TYPES = (
    '{"ane_ops":217,"schedulable_ops":217,"total_ops":625,"per_op_type":{"conv":{"ANE":36}}}'
)
COUNTS_TEXT = "conv_total=4 conv_ane=4 conv_non_ane=0; compute_total=148 compute_ane=148 PASS=True"
COUNTS_OPS = """\
op=matmul  preferred=MLCPUComputeDevice  supported=[MLCPU, MLGPU, MLNeuralEngine]
op=const  preferred=unknown  supported=[]
op=ios17.conv  preferred=MLNeuralEngineComputeDevice  supported=[MLCPU, MLNeuralEngine]
"""
COUNTS_SHARE = "  ANE:   412 / 480 ( 85.8%)\n  CPU:    68 / 480 ( 14.2%)\n  32  ios17.cast\n"
LOG = """\
loading
E5RT encountered an STL exception. msg = MILCompilerForANE error: failed to compile ANE model \
using ANEF. Error=_ANECompiler : ANECCompile() FAILED. (11)
ANE model load has failed for on-device compiled macho. Must re-compile the E5 bundle.
"""
ALL = {
    "coremltools": COREMLTOOLS,
    "counts/chunk": COUNTS_CHUNK,
    "counts/types": COUNTS_TYPES,
    "counts/lines": f"{COUNTS_CHUNK}\n{COUNTS_CHUNK}\n",
    "counts/text": COUNTS_TEXT,
    "counts/ops": COUNTS_OPS,
    "counts/share": COUNTS_SHARE,
    "log": LOG,
}
