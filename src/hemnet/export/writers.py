"""Trained models as files for other programs: ONNX, torch.export, OpenVINO.

A file takes images B,3,H,W of any size, normalised, and gives logits B,classes,H,W. Batch norms
are folded into convolutions, and the metadata have class names, palette, mean and std, iterations
and step size. A file is kept only if it reproduces the model's logits for several sizes and
batches; an int8 file, if it loses no more accuracy on held-out images than the caller accepts.
"""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from hemnet.errors import UserError
from hemnet.export import quantise
from hemnet.export.quantise import AccuracyDrop, Calibration, HalfWeights
from hemnet.inference.exported_model import METADATA, SUFFIXES, ExportedModel, needs
from hemnet.models.saving import config_content
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import em_units
from hemnet.progress import stage

SIZES = ((65, 65), (96, 128), (129, 97), (160, 225))  # height and width: even and odd
BATCHES = (1, 2)
TOLERANCE = 1e-3  # of the largest logit
HALF_TOLERANCES = {"fp16": 0.02, "bf16": 0.1}  # their weights have 11 and 8 bits
OPSET = 18


@dataclass(frozen=True)
class Parity:
    """How far a file's logits are from the model's on random images of one size.

    Attributes:
        batch: number of images.
        height: of the images.
        width: of the images.
        difference: the largest, as a share of the largest logit.
        same_class: share of the pixels.
    """

    batch: int
    height: int
    width: int
    difference: float
    same_class: float


@dataclass(frozen=True)
class ExportResult:
    """How a file compares with its model: int8 files have `loss`, all others `parity`."""

    parity: list[Parity]
    loss: AccuracyDrop | None = None


def export_model(
    model: Segmenter,
    path: str | Path,
    kind: str = "onnx",
    iterations: int | None = None,
    precision: str = "fp32",
    calibration: Calibration | None = None,
    tolerance: float = quantise.TOLERANCE,
    keep_float: Sequence[str] = (),
    accurate: bool = False,
) -> ExportResult:
    """Export a model for use without hemnet; a file that disagrees with the model is not kept.

    Args:
        model: what `create_model`, `from_pretrained` or `load_model` gave.
        path: ends in `.onnx`, `.pt2` or `.xml`.
        kind: "onnx", "torch" or "openvino".
        iterations: of EM, instead of the model's own.
        precision: "fp32", "fp16" or "bf16" for weights stored so, "int8" for int8 arithmetic.
        calibration: images for int8.
        tolerance: points of mIoU or agreement that int8 may lose.
        keep_float: patterns of module names that stay in float32 in an int8 file.
        accurate: return layers to float32 until int8 loses no more than `tolerance`; slow.

    Returns:
        The comparison with the model: of int8 the loss of accuracy, else a row for each size.
    """
    path = Path(path)
    if precision not in quantise.PRECISIONS:
        raise UserError(
            f"there is no precision {precision!r}; choose from {', '.join(quantise.PRECISIONS)}."
        )
    if kind not in WRITERS:
        raise UserError(f"there is no format {kind!r}; choose from {', '.join(WRITERS)}.")
    suffix = SUFFIXES[kind]
    if path.suffix != suffix:
        raise UserError(f"{path}: a file of format {kind} ends in {suffix}.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}.")
    needs(kind)
    if precision == "int8":
        quantise.needs_nncf(kind)
        if calibration is None or not calibration.images or not calibration.held_out:
            raise UserError("int8 needs images to calibrate on and others to judge by.")
    if (kind, precision) == ("openvino", "bf16"):
        raise UserError("OpenVINO files store weights as fp32 or fp16, not bf16.")
    model = copy.deepcopy(model).cpu().float().eval()
    if iterations is not None and not em_units(model):
        raise UserError("this model has no EM unit, so there are no iterations to choose.")
    for unit in em_units(model):
        unit.eval_iterations = unit.eval_iterations if iterations is None else iterations
    try:
        fused = model.fuse()
        fused.auxiliary = None  # for training only
        texts = metadata(model) | _as_json(
            quantise.precision_metadata(precision, calibration, None)
        )
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".export-") as folder:
            scratch = Path(folder, path.name)
            if precision == "int8":
                assert calibration is not None
                job = _Quantisation(model, fused, calibration, tolerance, keep_float, accurate)
                found = ExportResult([], job.write(kind, texts, scratch))
            elif precision == "fp32":
                WRITERS[kind](capture(fused), texts, scratch)
                found = ExportResult(check_parity(model, ExportedModel(scratch, trust=True)))
            else:
                _write_halved(fused, kind, precision, texts, scratch)
                file = ExportedModel(scratch, trust=True)
                found = ExportResult(check_parity(model, file, HALF_TOLERANCES[precision]))
            # OpenVINO's weights before the file that names them.
            for part in sorted(Path(folder).iterdir(), reverse=True):
                os.replace(part, path.parent / part.name)
    except (UserError, OSError):
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        raise UserError(
            f"{model.config.model} with {model.config.backbone} cannot be exported to {kind}: "
            f"{type(error).__name__}: {text[0] if text else 'no reason given'}"
        ) from error
    return found


def _write_halved(
    fused: Segmenter, kind: str, precision: str, texts: dict[str, str], path: Path
) -> None:
    if kind == "onnx":
        write_onnx(capture(fused), texts, path)
        quantise.halve(path, precision)
    elif kind == "openvino":
        _write_openvino(capture(fused), texts, path, half=True)
    else:
        _write_torch(capture(HalfWeights(copy.deepcopy(fused), precision)), texts, path)


@dataclass(frozen=True)
class _Quantisation:
    model: Segmenter
    fused: Segmenter
    data: Calibration
    tolerance: float
    keep_float: Sequence[str]
    accurate: bool

    def write(self, kind: str, texts: dict[str, str], path: Path) -> AccuracyDrop:
        """Write the int8 file with its loss of accuracy in the metadata; raise above tolerance."""
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            onnx_file, probe = Path(folder, "model.onnx"), Path(folder, "probe.xml")
            made = make_onnx(capture(self.fused, modules=True))
            ignored = quantise.float_nodes(
                made.model.graph.all_nodes(), self.fused, self.keep_float
            )
            save_onnx(made, texts, onnx_file)
            judge = self._judge if self.accurate else None
            signed = kind == "onnx"  # OpenVINO makes use of the finer grid
            quantise.quantise(onnx_file, ignored, self.data, signed, judge, self.tolerance)
            if kind == "openvino":  # not the file itself: its weights are mapped into memory
                _openvino_from(onnx_file, texts, probe)
            file = ExportedModel(probe if kind == "openvino" else onnx_file)
            quantise.check_runs(self.model, file, SIZES)
            loss = quantise.measure_drop(self.model, file, self.data)
            quantise.refuse_above(loss, self.tolerance, self.accurate)
            texts = texts | _as_json(quantise.precision_metadata("int8", self.data, loss))
            if kind == "openvino":
                _openvino_from(onnx_file, texts, path)
            else:
                quantise.set_metadata(onnx_file, texts)
                os.replace(onnx_file, path)
        return loss

    def _judge(self, path: Path) -> float:
        return quantise.measure_drop(self.model, ExportedModel(path), self.data).after


def _as_json(content: dict[str, Any]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in content.items()}


def metadata(model: Segmenter) -> dict[str, str]:
    """The file's metadata as JSON texts; `hemnet` is the whole configuration."""
    config = model.config
    content: dict[str, Any] = {
        "classes": config.classes,
        "palette": config.palette,
        "mean": config.mean,
        "std": config.std,
    }
    for unit in em_units(model):
        content["iterations"] = unit.eval_iterations or unit.iterations
        step: Any = getattr(unit, "step_size", 1.0)
        content["step_size"] = step.tolist() if isinstance(step, torch.Tensor) else step
    return _as_json(content) | {METADATA: json.dumps(config_content(model))}


def check_parity(
    model: nn.Module, exported: nn.Module, tolerance: float = TOLERANCE
) -> list[Parity]:
    """Compare logits on random images; raise if they differ by more than `tolerance`."""
    stage(f"comparing the file with the model: {len(SIZES)} sizes, {len(BATCHES)} batches")
    random = torch.Generator().manual_seed(0)
    found = []
    for height, width in SIZES:
        for batch in BATCHES:
            images = torch.randn(batch, 3, height, width, generator=random)
            with torch.inference_mode():
                ours, theirs = model(images), exported(images)
            if ours.shape != theirs.shape:
                raise UserError(f"the file gives {tuple(theirs.shape)} for {tuple(ours.shape)}")
            difference = float((ours - theirs).abs().max() / ours.abs().max())
            same = float((ours.argmax(1) == theirs.argmax(1)).float().mean())
            if not difference <= tolerance:
                raise UserError(
                    f"the file does not agree with the model: for {batch} images of "
                    f"{height}×{width} logits differ by {difference:.1e} of the largest, at most "
                    f"{tolerance:.0e} is accepted. No file was written."
                )
            found.append(Parity(batch, height, width, difference, same))
    return found


def capture(
    model: nn.Module, size: tuple[int, int] = (65, 97), modules: bool = False
) -> ExportedProgram:
    """Export a model as a graph for any batch, height and width, with an example of `size`.

    `modules`: keep the name of the module of each node.
    """
    stage("tracing the network for any size")
    images = torch.randn(2, 3, *size)
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    with torch.no_grad(), _not_in_place(model):
        program = torch.export.export(model, (images,), dynamic_shapes=(sizes,), strict=False)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:  # paths on the machine that exports
                for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                    if not (modules and key == "nn_module_stack"):
                        node.meta.pop(key, None)
    return program


@contextmanager
def _not_in_place(model: nn.Module) -> Iterator[None]:
    """Activations in place are taken apart into dozens of symbolic comparisons: seconds each."""
    changed = [module for module in model.modules() if getattr(module, "inplace", None) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


def write_onnx(program: ExportedProgram, texts: dict[str, str], path: Path) -> None:
    save_onnx(make_onnx(program), texts, path)


def make_onnx(program: ExportedProgram) -> Any:
    stage("translating the graph to ONNX")
    return torch.onnx.export(
        program,
        input_names=["images"],
        output_names=["logits"],
        opset_version=OPSET,
        verbose=False,
    )


def save_onnx(made: Any, texts: dict[str, str], path: Path) -> None:
    for node in made.model.graph.all_nodes():
        node.metadata_props.clear()
    _name_axes(made.model.graph)
    made.model.metadata_props.update(texts)
    made.save(path, external_data=False)


def _name_axes(graph: Any) -> None:
    """batch, height and width instead of the exporter's symbols."""
    images, logits = graph.inputs[0], graph.outputs[0]
    for axis, name in ((0, "batch"), (2, "height"), (3, "width")):
        for value in (images, logits):
            value.shape[axis] = name


def _write_torch(program: ExportedProgram, texts: dict[str, str], path: Path) -> None:
    buffer = io.BytesIO()  # on a full disk torch's own writer ends the process
    torch.export.save(program, buffer, extra_files=texts)
    path.write_bytes(buffer.getbuffer())


def _write_openvino(
    program: ExportedProgram, texts: dict[str, str], path: Path, half: bool = False
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(program, texts, Path(folder, "model.onnx"))
        _openvino_from(Path(folder, "model.onnx"), texts, path, half)


def _openvino_from(source: Path, texts: dict[str, str], path: Path, half: bool = False) -> None:
    import openvino

    converted = openvino.convert_model(source)
    for key, text in texts.items():
        converted.set_rt_info(text, [METADATA, key])
    try:
        openvino.save_model(converted, path, compress_to_fp16=half)
    except RuntimeError as error:
        if "iostream" not in str(error):
            raise
        reason = "OpenVINO cannot write it; is the disk full?"
        raise OSError(errno.EIO, reason, str(path)) from None


WRITERS: dict[str, Callable[[ExportedProgram, dict[str, str], Path], None]] = {
    "onnx": write_onnx,
    "torch": _write_torch,
    "openvino": _write_openvino,
}
