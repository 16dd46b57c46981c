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
XCODE = json.dumps(
    {
        "computeUnit": 3,
        "deviceName": "a Mac",
        "deviceResults": {
            "predict": {"samples": [0.5]},
            "modelStructure": {
                "program": {
                    "_0": {
                        "functions": {
                            "main": {
                                "block": {
                                    "operations": [
                                        {"operatorName": "const", "outputs": [{"name": "w"}]},
                                        {
                                            "operatorName": "ios17.conv",
                                            "cost": {"weight": 0.25},
                                            "deviceUsage": {
                                                "preferred": {"deviceType": "NeuralEngine"},
                                                "supported": [{"deviceType": "CPU"}],
                                            },
                                            "outputs": [{"name": "y"}],
                                        },
                                        {
                                            "operatorName": "while_loop",
                                            "outputs": [{"name": "loop"}],
                                            "blocks": [
                                                {
                                                    "operations": [
                                                        {
                                                            "operatorName": "ios17.add",
                                                            "deviceUsage": {
                                                                "preferred": {"deviceType": "CPU"}
                                                            },
                                                            "outputs": [{"name": "z"}],
                                                        }
                                                    ]
                                                }
                                            ],
                                        },
                                    ]
                                }
                            }
                        }
                    }
                }
            },
        },
    }
)
INSPECT = """\
Analyzing model for compute unit [cpuAndNeuralEngine]...

Key: C=CPU, G=GPU, N=NeuralEngine
<Estimate of total operation cost>% <primary compute|supported compute>  <operation>
func main(input_ids) {
           x_1_axis_0 = const()
0.10% C|GN x_cast = ios16.cast(x: ["input_ids"], dtype: ["value"])
0.68% G|C  x_1_cast_fp16 = ios16.gather(axis: ["x_1_axis_0"], x: ["wte"], indices: ["x_cast"])
99.22 N|CG a, b = ios16.split(x: ["x_1_cast_fp16"])
           -> (a, b)
}
"""
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
ESPRESSO = """\
[CostModelFeature],y_cast_fp16,?,conv,gFlopCnt,0.5,Bound:Memory,Runtime,0.0123
Unsupported op 12 (ios18.slice_update): Cannot support standalone slice_update
"""
LOG = """\
loading
E5RT encountered an STL exception. msg = MILCompilerForANE error: failed to compile ANE model \
using ANEF. Error=_ANECompiler : ANECCompile() FAILED. (11)
ANE model load has failed for on-device compiled macho. Must re-compile the E5 bundle.
"""
ALL = {
    "coremltools": COREMLTOOLS,
    "xcode": XCODE,
    "CoreMLInspect": INSPECT,
    "counts/chunk": COUNTS_CHUNK,
    "counts/types": COUNTS_TYPES,
    "counts/lines": f"{COUNTS_CHUNK}\n{COUNTS_CHUNK}\n",
    "counts/text": COUNTS_TEXT,
    "counts/ops": COUNTS_OPS,
    "counts/share": COUNTS_SHARE,
    "espresso": ESPRESSO,
    "log": LOG,
}
