"""Exported models with int8 arithmetic, by post-training quantisation (NNCF), or half weights.

Convolutions and what lies between them run in int8. The EM iterations, every softmax and matrix
product, and the classifier stay in floating point: bases move by differences too small
for int8. Nodes are assigned by the modules they were traced in.
"""

from __future__ import annotations

import ast
import io
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hemnet.errors import UserError
from hemnet.inference.exported_model import ExportedModel, needs
from hemnet.inference.metrics import class_iou, confusion_matrix
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import em_units

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
TOLERANCE = 0.5  # points of mIoU, or of agreement, that int8 may lose
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_SCOPES = "pkg.torch.onnx.name_scopes"
_FLOAT_KINDS = ("MatMul", "Gemm", "Einsum", "Softmax")
_LEAST = 1024  # elements from which a tensor is stored in half precision


@dataclass(frozen=True)
class Calibration:
    """Images of the kind that the model will see, normalised, 1,3,H,W each.

    Attributes:
        images: for the ranges of activations.
        held_out: for comparing the float and the int8 model.
        labels: H,W of each held-out image; None where there are none.
        name: of the data, for the file's metadata.
    """

    images: Sequence[Tensor]
    held_out: Sequence[Tensor]
    labels: Sequence[Tensor] | None
    name: str


@dataclass(frozen=True)
class AccuracyDrop:
    """Accuracy before and after int8 on held-out images, in percent.

    Attributes:
        metric: "mIoU", or "agreement" with the float model where there are no labels.
        before: of the float model.
        after: of the int8 file.
    """

    metric: str
    before: float
    after: float
    images: int

    @property
    def points(self) -> float:
        return self.before - self.after

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.before:.2f} in float32, {self.after:.2f} in int8, on "
            f"{self.images} held-out images"
        )


def measure_drop(model: nn.Module, exported: nn.Module, data: Calibration) -> AccuracyDrop:
    """Compare both models on the held-out images."""
    classes = int(getattr(model, "config").num_classes)  # noqa: B009
    confusions = [torch.zeros(classes, classes, dtype=torch.int64) for _ in range(2)]
    same = pixels = 0
    for number, images in enumerate(data.held_out):
        with torch.inference_mode():
            found = [net(images).argmax(1)[0] for net in (model, exported)]
        same += int((found[0] == found[1]).sum())
        pixels += found[0].numel()
        if data.labels is not None:
            for confusion, classes_found in zip(confusions, found, strict=True):
                confusion += confusion_matrix(data.labels[number], classes_found, classes)
    if data.labels is None:
        return AccuracyDrop("agreement", 100.0, 100 * same / max(1, pixels), len(data.held_out))
    before, after = (float(class_iou(c).nanmean()) for c in confusions)
    return AccuracyDrop("mIoU", before, after, len(data.held_out))


def refuse_above(loss: AccuracyDrop, tolerance: float, accurate: bool) -> None:
    """Raise if int8 loses too much, with advice."""
    if loss.points <= tolerance:
        return
    more = (
        "" if accurate else "`accurate=True`, which returns the layers that lose most to float32; "
    )
    raise UserError(
        f"{loss}: {loss.points:.2f} points are lost, at most {tolerance:g} are accepted "
        f"(`tolerance`). No file was written. You could try {more}`keep_float` with 'head.*' or "
        "'backbone.network.layer4*'; or more images for `calibrate`."
    )


def float_nodes(graph: Any, model: nn.Module, keep: Sequence[str] = ()) -> list[str]:
    """Names of the nodes of an ONNX graph that stay in floating point.

    `keep`: patterns of module names, such as `head.mix*`.
    """
    units = {name for name, module in model.named_modules() if module in em_units(model)}
    found, convolutions = [], 0
    for node in graph:
        module = _module_of(node)
        inside = any(module == unit or module.startswith(f"{unit}.") for unit in units)
        output = node.op_type == "Conv" and module.endswith(".conv_out")
        stays = (
            not module
            or node.op_type in _FLOAT_KINDS
            or (inside and not output)
            or module.startswith("head.classifier")
            or any(fnmatchcase(module, pattern) for pattern in keep)
        )
        if stays and node.name:
            found.append(node.name)
        convolutions += node.op_type == "Conv" and not stays
    if not convolutions:
        raise UserError(
            "there is no layer left for int8: either all are kept in float32, or this version of "
            "torch does not say which module a node of its ONNX graphs comes from."
        )
    return found


def _module_of(node: Any) -> str:
    """The innermost module that a node was traced in; "" for the whole network or unknown."""
    text = node.metadata_props.get(_SCOPES, "[]")
    names = ast.literal_eval(text)
    return str(names[-2]) if len(names) > 1 else ""


def quantise(
    path: Path,
    ignored: Sequence[str],
    data: Calibration,
    signed: bool,
    judge: Callable[[Path], float] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Replace a float32 ONNX file by one with QDQ nodes.

    Args:
        ignored: names of nodes that stay as they are.
        signed: int8 with zero at 0 everywhere, as TensorRT wants it, instead of the finest grid.
        judge: a file's quality in percent; layers return to float32 until at most `tolerance` of
            it is lost.
    """
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # looks for CUDA
    import nncf
    import onnx

    nncf.set_log_level(logging.ERROR)
    model = onnx.load(path)
    images = data.images
    feeds = nncf.Dataset(range(len(images)), lambda i: {"images": images[i].numpy()})
    settings: dict[str, Any] = {
        "subset_size": len(images),
        "preset": nncf.QuantizationPreset.PERFORMANCE if signed else nncf.QuantizationPreset.MIXED,
        "ignored_scope": nncf.IgnoredScope(names=list(ignored), validate=False),
    }
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):  # its bars and advice
        warnings.simplefilter("ignore")
        if judge is None:
            made = nncf.quantize(model, feeds, **settings)
        else:

            def score(candidate: Any, _: Any) -> tuple[float, None]:
                scratch = path.with_name(f"candidate-{path.name}")
                onnx.save(candidate, scratch)
                return judge(scratch), None

            made = nncf.quantize_with_accuracy_control(
                model,
                feeds,
                feeds,
                score,
                max_drop=tolerance,
                **settings,
            )
    if signed:
        _sign(made)
    onnx.save(made, path)


def _sign(model: Any) -> None:
    """Quantise to −127 … 127 what NNCF quantises to 0 … 255, with the same range."""
    from onnx import TensorProto, numpy_helper

    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    scales: set[str] = set()
    zeros: set[str] = set()
    outputs: set[str] = set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            values = numpy_helper.to_array(tensors[node.input[2]])
            if values.dtype == np.uint8 and not values.any():
                scales.add(node.input[1])
                zeros.add(node.input[2])
                outputs.update(node.output if node.op_type == "QuantizeLinear" else ())
    for name in scales:
        values = numpy_helper.to_array(tensors[name]) * np.float32(255 / 127)
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))
    for name in zeros:
        shape = tuple(tensors[name].dims)
        tensors[name].CopyFrom(numpy_helper.from_array(np.zeros(shape, np.int8), name))
    for value in model.graph.value_info:
        if value.name in outputs:
            value.type.tensor_type.elem_type = TensorProto.INT8


def set_metadata(path: Path, texts: dict[str, str]) -> None:
    """Write the metadata of an ONNX file."""
    import onnx
    from onnx import helper

    model = onnx.load(path)
    helper.set_model_props(model, texts)
    onnx.save(model, path)


def halve(path: Path, precision: str) -> None:
    """Store the large weights of an ONNX file in half precision; it computes in float32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(path)
    graph = model.graph
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or not _is_large(tuple(tensor.dims)):
            continue
        values = torch.from_numpy(numpy_helper.to_array(tensor).copy()).to(HALVES[precision])
        kind = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
        name = tensor.name
        raw = values.view(torch.int16).numpy().astype("<i2").tobytes()
        tensor.Clear()
        tensor.name, tensor.data_type, tensor.raw_data = f"{name}.half", kind, raw
        tensor.dims.extend(values.shape)
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*casts, *nodes])
    onnx.save(model, path)


class HalfWeights(nn.Module):
    """A model whose large weights are stored in half precision; it computes in float32."""

    def __init__(self, model: nn.Module, precision: str) -> None:
        super().__init__()
        self.model = model
        self._names = [k for k, p in model.named_parameters() if _is_large(tuple(p.shape))]
        for name in self._names:
            weight = model.get_parameter(name).detach().to(HALVES[precision])
            parent, _, leaf = name.rpartition(".")
            module = model.get_submodule(parent)
            delattr(module, leaf)
            module.register_buffer(leaf, weight)

    def forward(self, images: Tensor) -> Tensor:
        weights = {name: self.model.get_buffer(name).float() for name in self._names}
        found: Tensor = torch.func.functional_call(self.model, weights, (images,))
        return found


def _is_large(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and int(np.prod(shape)) >= _LEAST


def check_runs(model: Segmenter, exported: ExportedModel, sizes: Sequence[tuple[int, int]]) -> None:
    """Raise unless an int8 file gives finite logits for several sizes and batches."""
    random = torch.Generator().manual_seed(0)
    for batch, (height, width) in enumerate(sizes, 1):
        with torch.inference_mode():
            found = exported(torch.randn(batch, 3, height, width, generator=random))
        if not found.isfinite().all():
            raise UserError(f"the int8 file gives logits that are not finite at {height}×{width}.")


def needs_nncf(kind: str) -> None:
    if kind == "torch":
        raise UserError("int8 is for the formats onnx and openvino; torch has no such file.")
    needs(kind)
    needs("int8")


def precision_metadata(
    precision: str, data: Calibration | None, loss: AccuracyDrop | None
) -> dict[str, Any]:
    """The part of a file's metadata about its precision."""
    content: dict[str, Any] = {"precision": precision}
    if data is not None:
        content["calibration"] = {
            "data": data.name,
            "images": len(data.images),
            "loss": None if loss is None else asdict(loss),
        }
    return content
