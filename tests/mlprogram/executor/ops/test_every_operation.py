"""What holds of operations alike: what does not fit is refused, and types stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import eval_op
from pytest_ane.mlprogram.executor.ops.lists import State
from pytest_ane.mlprogram.records import DType, TensorType
from tests.mlprogram.executor.ops.oracle import f32, noise

X = f32([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
A, TWO, SEVEN = X[:2, :2], f32([[[0, 1]]]), f32([[[1, 2, 3, 4, 5, 6, 7]]])
SQUARE = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
IMAGES = SQUARE.reshape(2, 1, 2, 4)
POINTS = f32([[[[-1, -2], [-3.7, -1]], [[0, 0], [3.5, 1.2]]]])
ATTENTION = {"query": noise(2, 7, 16), "key": noise(2, 5, 16), "value": noise(2, 5, 32)}
LSTM = {"x": noise(5, 2, 4), "initial_h": noise(2, 3), "initial_c": noise(2, 3),
        "weight_ih": noise(12, 4), "weight_hh": noise(12, 3)}  # fmt: skip
NMS = {"boxes": noise(1, 3, 4), "scores": noise(1, 3, 2), "iou_threshold": 0.5,
       "score_threshold": 0.4, "max_boxes": 4, "opset": "iOS15"}  # fmt: skip
BOX, ROWS, FOUR = f32([[1, 1, 2, 2]]), np.array([0]), np.zeros((17, 5), np.uint8)
HALVES = {"indices": np.zeros((2, 2), np.uint8), "lut": noise(1, 1, 2, 3)}
PACKED = {"indices": np.array([0], np.uint8), "shape": np.array([3], np.uint32), "opset": "iOS16"}
MASK = np.array([[1, 0], [0, 1]], np.uint8)


def resampled(sampling: str, padding: str, coordinates: str, points: Any = POINTS) -> Any:
    return {"x": SQUARE[..., :2, :2], "coordinates": points, "sampling_mode": sampling,
            "padding_mode": padding, "padding_value": 0.0, "coordinates_mode": coordinates,
            "align_corners": True}  # fmt: skip


def named(rows: list[Any]) -> list[str]:
    return [f"{row[0]}-{i}" for i, row in enumerate(rows)]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(("constexpr_lut_to_dense", {"indices": FOUR, "lut": noise(*blocks, 4, 1)}, "do not divide")
      for blocks in ((2, 1), (1, 2), (3, 2), (0, 1))),
    ("constexpr_lut_to_dense", {"indices": FOUR + 4, "lut": noise(1, 1, 4, 1)}, "entries"),
    *(("constexpr_lut_to_dense", {**HALVES, "vector_axis": axis}, "dense fails")
      for axis in (None, 2, -3)),
    ("constexpr_lut_to_dense", {**PACKED, "lut": noise(16)}, "1 bytes; 3 elements of 4 bits"),
    ("constexpr_lut_to_dense", {**PACKED, "lut": noise(5)}, "tables"),
    ("constexpr_lut_to_dense", {**PACKED, "lut": noise(1)}, "0 bits"),
    ("constexpr_blockwise_shift_scale", {"data": FOUR, "scale": noise(2, 1)}, "do not divide"),
    ("constexpr_blockwise_shift_scale",
     {"data": FOUR, "scale": f32([[2]]), "offset": f32([[0.5, 1]])}, "an offset of shape"),
    *(("constexpr_affine_dequantize",
       {"scale": 1.0, "zero_point": 0, name: f32([1, 2]), "axis": 1, "opset": "iOS16",
        "quantized_data": np.zeros((2, 3), np.int8)}, f"2,. values of {name} along an axis of 3")
      for name in ("scale", "zero_point")),
    *(("constexpr_sparse_to_dense", {"nonzero_data": noise(count), "mask": MASK},
       r"values of shape \(\d,\) for 2 ones") for count in (1, 3)),
    ("constexpr_sparse_to_dense", {"nonzero_data": f32([1]), "mask": np.array([1], np.uint8),
                                   "shape": np.array([9]), "opset": "iOS16"}, "1 bytes"),
    *((op, {"input": given, **parameters, **more}, message)
      for op, given, more in (("quantize", noise(2, 3), {"output_dtype": "int8"}),
                              ("dequantize", np.zeros((2, 3), np.int8), {}))
      for parameters, message in (
          ({"scale": f32([1, 2])}, "quantize fails"),
          ({"scale": f32([1, 2]), "axis": 2}, "quantize fails"),
          ({"scale": f32([[1, 2]]), "axis": 1}, "values of scale along an axis of 3"),
          ({"scale": 1, "zero_point": np.zeros(3, np.int8), "axis": 0}, "values of zero_point"),
      )),
    ("quantize", {"input": f32([1]), "scale": 1, "output_dtype": "int4"}, "quantize fails"),
    *(("conv", {"x": noise(1, 4, 8), "weight": noise(*shape), "groups": groups}, "conv fails")
      for shape, groups in (((4, 3, 2), 1), ((3, 2, 2), 2), ((4, 4, 9), 1),
                            ((4, 3, 1), 1), ((3, 2, 1), 2))),
    *(("conv_transpose", {"x": SEVEN[..., :3], "weight": f32([[[1, 10]]]), **parameters}, message)
      for parameters, message in (
          ({"weight": f32([[[1]], [[1]]])}, "conv_transpose fails"),
          ({"output_shape": [1, 2, 4]}, r"does not begin with \[1, 1\]"),
          ({"output_shape": [4]}, "3 integers are needed"),
          ({"pad_type": "custom", "pad": [3, 3]}, "conv_transpose fails"),
          ({"pad_type": "full"}, "unknown pad_type 'full'"),
      )),
    ("gelu", {"x": X, "mode": "HALF"}, "unknown gelu mode 'HALF'"),
    *(("prelu", {"x": noise(1, 3, 2), "alpha": alpha}, "is not a number for each channel")
      for alpha in (f32([1, 2]), f32([[1, 2, 3]]), f32(1))),
    ("fill", {"shape": [2, -1]}, "negative dimensions"),
    ("fill_like", {"ref_tensor": X, "opset": "iOS15"}, "not implemented for opset iOS15"),
    *(("one_hot", {"indices": ROWS, "one_hot_vector_size": 2} | wrong, "one_hot fails")
      for wrong in ({"one_hot_vector_size": -1}, {"axis": 2}, {"axis": -3})),
    *(("range_1d", dict(zip(("start", "end", "step"), bounds, strict=True)), "range_1d fails")
      for bounds in ((0, 1, 0), (0.0, 1.0, 0.0), (0.0, np.inf, 1.0), (0.0, np.nan, 1.0))),
    ("band_part", {"x": f32([1, 2])}, "not a matrix"),
    ("random_uniform", {"shape": [-1]}, "random_uniform fails"),
    *(("random_categorical", {"x": f32(x), "mode": mode}, "random_categorical fails")
      for x, mode in (([1], "odds"), ([1, np.nan], "logits"), ([-np.inf] * 2, "logits"),
                      ([0, 0], "probs"), ([2, -1], "probs"))),
    *((op, {"x": X, "indices": np.array(indices), "validate_indices": checked}, "out of bounds")
      for op, indices in (("gather", [3]), ("gather", [-4]), ("gather_along_axis", [[0, 0, 3]]),
                          ("gather_nd", [[0, 3]])) for checked in (True, False)),
    *((op, {"x": X, "indices": np.array(indices), "validate_indices": True},
       r"out of bounds .* validated")
      for op, indices in (("gather", [-1]), ("gather_along_axis", [[0, 0, -1]]),
                          ("gather_nd", [[0, -1]]))),
    *((op, {"x": X, "indices": np.zeros(shape, int), **parameters}, message)
      for op, shape, parameters, message in (
          ("gather", 1, {"axis": 2}, "gather fails"),
          ("gather", 3, {"batch_dims": 1}, "exceeds axis 0"),
          ("gather", 2, {"axis": 1, "batch_dims": 1}, "differ"),
          ("gather_along_axis", (3, 2), {}, "more than axis 0"),
          ("gather_along_axis", 3, {}, "more than axis 0"),
          ("gather_nd", (1, 4), {}, "gather_nd fails"),
          ("gather_nd", 2, {"batch_dims": 1}, "no rows"),
          ("gather_nd", (2, 1), {"batch_dims": 1}, "differ"),
      )),
    *((op, {"data": X, "indices": np.array(indices), "updates": X[updates], **checked},
       "out of bounds")
      for op, indices, updates in (("scatter", [3], slice(1)), ("scatter_along_axis",
                                   [[0, 3, 0]], slice(1)), ("scatter_nd", [[0, 3]], (0, [0])))
      for checked in ({}, {"validate_indices": True})),
    ("scatter", {"data": X, "indices": ROWS - 1, "updates": X[:1], "validate_indices": True},
     "validated"),
    ("scatter", {"data": X, "indices": ROWS, "updates": X[0]}, r"should be \(1, 3\)"),
    ("scatter", {"data": X, "indices": ROWS, "updates": X[:1], "mode": "mod"}, "unknown mode"),
    ("scatter", {"data": X, "indices": ROWS, "updates": X[:1], "axis": -3}, "scatter fails"),
    ("scatter", {"data": ROWS, "indices": ROWS, "updates": ROWS, "mode": "div"}, "divided by zero"),
    ("matmul", {"x": noise(2, 3), "y": noise(2, 3)}, "matmul fails"),
    *(("linear", {"x": noise(2, 4), "weight": noise(5, 4), "bias": bias}, "a bias")
      for bias in (noise(1), noise(1, 5))),
    ("einsum", {"values": (noise(2, 3, 1), noise(5, 3, 4)), "equation": "chw,whr->chr"},
     "einsum fails"),
    ("einsum", {"values": (noise(2, 3), noise(5, 3, 4)), "equation": "chw,whr->chr"},
     "einsum fails"),
    *(("scaled_dot_product_attention", ATTENTION | changed, message) for changed, message in (
        ({"query": noise(7, 16)}, "batches of one shape"),
        ({"key": noise(1, 5, 16)}, "batches of one shape"),
        ({"key": noise(2, 5, 8)}, "attention fails"),
        ({"value": noise(2, 4, 32)}, "attention fails"),
        ({"attn_mask": noise(7, 1)}, "does not broadcast"),
        ({"attn_mask": noise(3, 7, 5)}, "broadcast"),
        ({"attn_mask": noise(2, 2, 7, 5)}, "does not broadcast"),
    )),
    *(("lstm", LSTM | changed, message) for changed, message in (
        ({"direction": "backward"}, "unknown direction 'backward'"),
        ({"direction": "bidirectional"}, "without weight_ih_back"),
        ({"activation": "gelu"}, "unknown activation 'gelu'"),
        ({"bias": noise(1)}, r"bias has the shape \(1,\), not \(12,\)"),
        ({"peephole": noise(12)}, r"peephole has the shape \(12,\), not \(9,\)"),
        ({"weight_ih": noise(12, 5)}, r"weight_ih has the shape \(12, 5\), not \(12, 4\)"),
        ({"weight": noise(12, 5)}, "unexpected keyword argument 'weight'"),
        ({"initial_h": noise(1, 3)}, r"initial_h has the shape \(1, 3\), not \(2, 3\)"),
        ({"initial_c": noise(2, 6)}, r"initial_c has the shape \(2, 6\)"),
        ({"x": noise(2, 4)}, "of rank 3"),
    )),
    ("write_state", {"input": State(TensorType(DType.FP16, (2,))), "data": np.zeros(3)},
     r"fp16\[2\] cannot take shape \[3\]"),
    ("read_state", {"input": State(TensorType(DType.FP16, (2,))), "opset": "iOS17"},
     "'read_state' is not implemented for opset iOS17"),
    *(("max_pool", {"x": SEVEN, **parameters}, message) for parameters, message in (
        ({"kernel_sizes": [8], "pad_type": "valid"}, "a window of 8 does not fit 7 elements"),
        ({"kernel_sizes": [2, 2], "pad_type": "valid"}, "1 integers are needed"),
        ({"kernel_sizes": [1], "pad_type": "custom", "pad": [1, 0]}, "lies outside 7 elements"),
        ({"kernel_sizes": [2], "pad_type": "full"}, "unknown pad_type 'full'"),
    )),
    ("avg_pool", {"x": SEVEN, "kernel_sizes": [1], "pad_type": "custom", "pad": [1, 0],
                  "exclude_padding_from_average": True}, "lies outside 7 elements"),
    ("cumsum", {"x": X, "axis": 2}, "out of bounds"),
    ("local_response_norm", {"x": TWO, "size": 0}, "do not exist"),
    ("resample", resampled("cubic", "border", "unnormalized"), "unknown sampling_mode 'cubic'"),
    ("resample", resampled("nearest", "wrap", "unnormalized"), "unknown padding_mode 'wrap'"),
    ("resample", resampled("nearest", "border", "degrees"), "unknown coordinates_mode 'degrees'"),
    ("resample", resampled("nearest", "border", "unnormalized", POINTS[..., :1]),
     "do not fit images"),
    ("affine", {"x": SQUARE, "transform_matrix": f32([[1, 2, 3]]), "output_height": 2,
                "output_width": 2, "coordinates_mode": "unnormalized", "align_corners": True},
     "does not fit images"),
    ("crop", {"x": TWO, "crop_height": [3, 2], "crop_width": [0, 0]},
     "1 rows and 2 columns cannot lose"),
    ("crop", {"x": TWO, "crop_height": [0, -1], "crop_width": [0, 0]}, "cannot lose"),
    ("resize_bilinear", {"x": TWO, "sampling_mode": "CORNERS"}, "unknown sampling_mode 'CORNERS'"),
    ("resize_bilinear", {"x": TWO, "target_size_width": 0}, "a size of 0 is not positive"),
    ("resize", {"x": TWO, "shape": [1, 1, 1, 5], "resized_dims": 2}, "do not fit rank 3"),
    ("resize", {"x": TWO, "shape": [5], "resized_dims": 2}, "do not fit rank 3"),
    ("resize", {"x": TWO, "shape": [5], "resized_dims": 1, "interpolation_mode": "CUBIC"},
     "'CUBIC'"),
    ("upsample_nearest_neighbor", {"x": TWO, "scale_factor_width": 0.4},
     "leaves nothing of 2 elements"),
    *(("crop_resize", {"x": SQUARE, "boxes": BOX} | changed, message) for changed, message in (
        ({"boxes": noise(3, 4)}, r"box_indices \[0, 1, 2\] exceed the 1 images"),
        ({"box_indices": [10]}, "exceed the 1 images"),
        ({"box_indices": [[0]]}, "do not fit x"),
        ({"boxes": f32([[1, 1, 2]])}, "do not fit x"),
        ({"box_coordinate_mode": "CENTER"}, "'CENTER'"),
        ({"sampling_mode": "NONE"}, "unknown sampling_mode 'NONE'"),
    )),
    ("crop_resize", {"x": SQUARE, "roi": BOX, "opset": "iOS15"}, "neither"),
    ("reshape", {"x": X, "shape": [0, -1, 1], "opset": "iOS16"}, "must have the rank of x, 2"),
    *(("reshape", {"x": X[:2], "shape": shape}, "reshape fails")
      for shape in ([4], [-1, 4], [-1, -1], [0, 4])),
    ("reshape_like", {"x": X, "ref_tensors": (IMAGES,), "begins": (0,), "ends": (1,),
                      "end_masks": (True,)}, "reshape_like fails"),
    ("squeeze", {"x": X, "axes": [2]}, "squeeze fails"),
    ("cast", {"x": X, "dtype": "text"}, "cast fails"),
    *((op, {"x": IMAGES, **parameters}, "fails") for op, parameters in (
        ("space_to_depth", {"block_size": 3}),
        ("depth_to_space", {"block_size": 2}),
        ("depth_to_space", {"block_size": 0}),
        ("pixel_shuffle", {"upscale_factor": 2}),
        ("pixel_unshuffle", {"downscale_factor": 3}),
        ("space_to_batch", {"block_shape": [2, 3], "paddings": [[0, 0], [0, 0]]}),
        ("space_to_batch", {"block_shape": [2, 2], "paddings": [[2, 0], [-2, 0]]}),
        ("batch_to_space", {"block_shape": [2, 2], "crops": [[0, 0], [0, 0]]}),
        ("batch_to_space", {"block_shape": [2, 1], "crops": [[3, 2], [0, 0]]}),
    )),
    *(("slice_by_size", {"x": X, "begin": begin, "size": size}, "beyond")
      for begin, size in (([2, 0], [2, 1]), ([-4, 0], [1, 1]), ([4, 0], [-1, 1]))),
    *(("slice_update", {"x": X, "update": update, "begin": [0, 0], "end": [1, 1],
                        "squeeze_mask": squeeze}, "update has shape")
      for update, squeeze in ((f32([[1, 1]]), None), (f32([[1]]), [True, False]),
                              (f32(1), [True, True]))),
    ("slice_by_index", {"x": X, "begin": [0], "end": [1]}, "2 integers are needed"),
    ("slice_by_index", {"x": X, "begin": [0, 0], "end": [1, 1], "stride": [0, 1]}, "zero"),
    ("slice_by_index", {"x": X, "begin": [3, 0], "end": [1, 1], "squeeze_mask": [True, False]},
     "out of bounds"),
    *(("sliding_windows", {"x": X, "axis": 0, "size": size, "stride": stride},
       "sliding_windows fails") for size, stride in ((4, 1), (0, 1), (1, 0))),
    ("split", {"x": X, "axis": 0, "split_sizes": [1, 1]}, "add up"),
    ("split", {"x": X, "axis": 0, "split_sizes": [4, -1]}, "add up"),
    ("split", {"x": X, "axis": 0, "num_splits": 2}, "equal division"),
    *(("tile", {"x": A, "reps": reps}, "one positive number") for reps in ([2], [1, 1, 2], [1, 0])),
    *(("reverse_sequence", {"x": A, "lengths": np.int32(lengths), "seq_axis": axis},
       "reverse_sequence fails")
      for lengths, axis in (([1, 1], 0), ([1, 1, 1], 1), ([1, 3], 1), ([-1, 1], 1), ([1, 1], 2))),
    *(("pad", {"x": X, **parameters}, message) for parameters, message in (
        *(({"pad": pad}, "pad fails") for pad in ([1, 2, 3], [0] * 6, [-1, 0])),
        ({"pad": [3, 0], "mode": "reflect"}, r"cannot add \(3, 0\) to axis 1 of 3 elements"),
        ({"pad": [0, 4], "mode": "replicate"}, r"cannot add \(0, 4\) to axis 1 of 3 elements"),
        ({"pad": [1, 1], "mode": "wrap"}, "unknown mode 'wrap'"),
    )),
    ("topk", {"x": X, "k": 4}, "k 4 is not from 0 to 3"),
    ("topk", {"x": np.arange(2**16 + 1), "output_indices_dtype": "uint16"}, "65536 does not fit"),
    *(("classify", {"probabilities": f32([0.5, 0.5]), "classes": classes},
       f"2 probabilities for {len(classes)} classes")
      for classes in ((), ("a",), ("a", "b", "c"))),
    *(("non_maximum_suppression", NMS | wrong, "max_boxes")
      for wrong in ({"boxes": noise(1, 3, 3)}, {"scores": noise(1, 2, 2)}, {"scores": noise(3, 2)},
                    {"max_boxes": -1})),
]  # fmt: skip


@pytest.mark.parametrize(("op", "parameters", "message"), REFUSED, ids=named(REFUSED))
def test_what_does_not_fit_is_refused(op: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        eval_op(op, **parameters)


WIDE, ONE = X.astype(np.float64), np.ones((), np.float64)
KEPT: list[tuple[str, dict[str, Any], Any]] = [
    ("dequantize", {"input": np.array([3], np.int8), "scale": np.array(0.1)}, np.float64),
    *(("conv", {"x": noise(1, 4, 5).astype(np.float64), "groups": groups,
                "weight": noise(4, 4 // groups, 2).astype(np.float64)}, np.float64)
      for groups in (1, 4)),
    ("conv_transpose", {"x": WIDE[None, :1], "weight": WIDE[None, :1]}, np.float64),
    *((op, {"x": ONE}, np.float64) for op in (
        "abs", "atan", "ceil", "cos", "erf", "exp", "exp2", "floor", "inverse", "log", "round",
        "rsqrt", "sign", "sqrt", "square", "tanh", "gelu", "relu", "relu6", "sigmoid", "silu",
        "softplus", "softsign", "scaled_tanh", "sigmoid_hard", "reduce_l1_norm", "reduce_l2_norm",
        "reduce_log_sum_exp", "reduce_log_sum", "reduce_max", "reduce_mean", "reduce_min",
        "reduce_prod", "reduce_sum", "reduce_sum_square")),
    *((op, {"x": ONE, "alpha": 0.5}, np.float64)
      for op in ("elu", "leaky_relu", "thresholded_relu")),
    *((op, {"x": ONE, "alpha": 0.5, "beta": 1.0}, np.float64)
      for op in ("clamped_relu", "linear_activation")),
    *((op, {"x": np.array([-2, 0, 3], np.int32)}, np.int32) for op in ("abs", "sign", "square")),
    *((op, {"x": np.array(7, dtype), "y": np.array(2, dtype)}, dtype)
      for op in ("add", "sub", "mul", "floor_div", "mod", "maximum", "minimum")
      for dtype in (np.int32, np.float32, np.float64)),
    *(("band_part", {"x": X.astype(dtype)}, dtype) for dtype in (np.int32, np.bool_, np.float64)),
    *((op, {"shape": [3]}, np.float32)
      for op in ("random_uniform", "random_normal", "random_bernoulli")),
    ("non_zero", {"x": X}, np.int32),
    ("scatter", {"data": WIDE, "indices": ROWS, "updates": X[:1]}, np.float64),
    ("rnn", {"x": WIDE[:, None], "initial_h": WIDE[:1], "weight_ih": WIDE, "weight_hh": WIDE},
     np.float64),
    *((op, {"x": WIDE[None], "kernel_sizes": [3], "pad_type": "same"}, np.float64)
      for op in ("avg_pool", "max_pool", "l2_pool")),
    *((op, {"x": X, "output_dtype": name}, name) for name in ("int32", "uint16")
      for op in ("reduce_argmax", "reduce_argmin")),
    ("reduce_argmax", {"x": X, "opset": "iOS15"}, np.int32),
    *(("cumsum", {"x": X.astype(dtype), "exclusive": True}, dtype)
      for dtype in (np.int32, np.float64)),
    *((op, {"x": WIDE[None, None]}, np.float64) for op in ("layer_norm", "instance_norm",
                                                           "l2_norm")),
    ("resample", {**resampled("bilinear", "border", "unnormalized"), "x": WIDE[None, None]},
     np.float64),
    *((op, {"x": X.astype(dtype), "target_size_height": 2, "target_size_width": 7}, dtype)
      for op in ("resize_bilinear", "resize_nearest_neighbor")
      for dtype in (np.float32, np.float64)),
    ("shape", {"x": X}, np.int32),
    *(("cast", {"x": X, "dtype": name}, name)
      for name in ("int8", "uint8", "int16", "uint16", "int32")),
    ("cast", {"x": np.int32([1]), "dtype": "fp32"}, np.float32),
    ("cast", {"x": WIDE, "dtype": "fp32"}, np.float64),
    ("cast", {"x": np.float16([0.1]), "dtype": "fp16"}, np.float32),
    ("concat", {"values": (ROWS.astype(np.int32),) * 2, "axis": 0}, np.int32),
    *(("pad", {"x": X.astype(dtype), "pad": [1, 1]}, dtype)
      for dtype in (np.int32, np.uint8, np.bool_, np.float64)),
    ("argsort", {"x": X}, np.int32),
]  # fmt: skip


@pytest.mark.parametrize(("op", "parameters", "dtype"), KEPT, ids=named(KEPT))
def test_results_are_of_the_operands_type(op: str, parameters: dict[str, Any], dtype: Any) -> None:
    found = eval_op(op, **parameters)
    for result in found if isinstance(found, tuple) else (found,):
        assert np.asarray(result).dtype == dtype
    if np.ndim(parameters.get("x", X)) == 0:
        assert np.shape(found) == ()
