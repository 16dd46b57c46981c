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
_COPY = "_4D454D5F4F5054"
_BUFFER = "tensor_buffer<fp32, shape=[1, 8], strides=[8, 1], interleave_factors=[1, 1]>"
_EDGES = """Launch_ane_ms = fp64(0x1p-3), Launch_bnns_ms = fp64(0x0p+0), \
Src_ane_Dest_bnns_ms = fp64(0x1p-3), Src_bnns_Dest_ane_ms = fp64(0x1p-3)"""


def _estimated(statement: str, selected: str, bnns: float, ane: float | None, why: str = "") -> str:
    """A statement of `analytics.mil`; no `ane` means that it refuses."""
    slot, runtime = ("unsupported", "") if ane is None else ("ane", f'{{"ane", {ane}}}, ')
    message = why and f'ValidationMessage = dict<string, string>({{{{"ane", "{why}"}}}}), '
    return (
        f'            {statement}[BackendSupport = list<string, 5>(["unsupported", "unsupported", '
        f'"bnns", "classic_cpu", "{slot}"]), EstimatedRuntime = dict<string, fp64>({{{runtime}'
        f'{{"bnns", {bnns}}}, {{"classic_cpu", {bnns}}}}}), '
        f'SelectedBackend = string("{selected}"), {message}milId = uint64(1), name = string("op")];'
    )


_STATEMENTS = "\n".join(
    (
        _estimated(
            f"tensor<fp32, [1, 8]> x{_COPY} = tensor_buffer_to_tensor<ios17>(input = x)",
            "bnns", 0, 0,
        ),
        _estimated(
            f'tensor<fp16, [1, 8]> x16 = cast(dtype = string("fp16"), x = x{_COPY})',
            "bnns", 6.462546245913618e-06, 0,
        ),
        _estimated(
            "tensor<fp16, [1, 8]> s = sinh(x = x16)",
            "bnns", 0.02, None, r'Unsupported MIL operation \"sinh\".',
        ),
        _estimated(
            "tensor<fp16, [1, 8]> l = linear(weight = tensor<fp16, [8, 8]>(BLOBFILE(path = "
            'string("@model_path/weights/weights.bin"), offset = uint64(64))), x = s)',
            "ane", 0.5, 0.01,
        ),
        _estimated(
            "tensor<fp16, [1, 4]> a, tensor<fp16, [1, 4]> b = split(axis = int32(1), "
            "num_splits = int32(2), x = l)",
            "ane", 0.03, 0.02,
        ),
        _estimated(
            f"tensor<fp16, [1, 8]> y{_COPY} = concat(axis = int32(1), values = (b, a))",
            "bnns", 0.03, 0.02,
        ),
        f"{_BUFFER} y = tensor_to_tensor_buffer<ios17>(input = y{_COPY}, strides = "
        'tensor<int64, [2]>([8, 1]))[BackendSupport = list<string, 5>(["unsupported", '
        '"unsupported", "unsupported", "unsupported", "unsupported"]), SelectedBackend = '
        'string("bnns"), milId = uint64(6)];',
    )
)  # fmt: skip
# The form of public files of macOS 27: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6 (MIT),
# data/03_compile/opdispatch/ana.
ANALYTICS = f"""\
program(1.3)
[buildInfo = dict<string, string>({{{{"coremlc-version", "3600.25.2"}}}})]
{{
    func main<ios18>({_BUFFER} x, tensor<int32, [1]> n) [{_EDGES}] {{
{_STATEMENTS}
        }} -> (y);
}}
"""
ALL = {
    "coremltools": COREMLTOOLS,
    "analytics": ANALYTICS,
    "counts/chunk": COUNTS_CHUNK,
    "counts/types": COUNTS_TYPES,
    "counts/lines": f"{COUNTS_CHUNK}\n{COUNTS_CHUNK}\n",
    "counts/text": COUNTS_TEXT,
    "counts/ops": COUNTS_OPS,
    "counts/share": COUNTS_SHARE,
    "log": LOG,
}
