"""Trained models as files for other programs: ONNX, torch.export, OpenVINO.

A file takes images B,3,H,W of any size, normalised, and gives logits B,classes,H,W. Batch norms
are folded into convolutions, and what a program needs to use it travels in the file: class names,
palette, mean and std, iterations and step size. A file appears only after it has given the
model's own logits for several sizes and batches.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from hemnet.engine.exported import METADATA, SUFFIXES, ExportedModel, needs
from hemnet.engine.inference import em_units
from hemnet.errors import UserError
from hemnet.hub import config_content
from hemnet.nn.segmenter import Segmenter
from hemnet.progress import stage

SIZES = ((65, 65), (96, 128), (129, 97), (160, 225))  # height and width: even and odd
BATCHES = (1, 2)
TOLERANCE = 1e-3  # of the largest logit
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


def export_model(
    model: Segmenter, path: str | Path, kind: str = "onnx", iterations: int | None = None
) -> list[Parity]:
    """Write a model for use without hemnet; there is no file if it does not agree.

    Args:
        model: what `create_model`, `from_pretrained` or `load_model` gave.
        path: ends in `.onnx`, `.pt2` or `.xml`.
        kind: "onnx", "torch" or "openvino".
        iterations: of EM, instead of the model's own.

    Returns:
        The comparison with the model, a row for each size.
    """
    path = Path(path)
    if kind not in WRITERS:
        raise UserError(f"there is no format {kind!r}; choose from {', '.join(WRITERS)}.")
    suffix = SUFFIXES[kind]
    if path.suffix != suffix:
        raise UserError(f"{path}: a file of format {kind} ends in {suffix}.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}.")
    needs(kind)
    model = copy.deepcopy(model).cpu().float().eval()
    if iterations is not None and not em_units(model):
        raise UserError("this model has no EM unit, so there are no iterations to choose.")
    for unit in em_units(model):
        unit.eval_iterations = unit.eval_iterations if iterations is None else iterations
    try:
        fused = model.fuse()
        fused.auxiliary = None  # for training only
        program = trace(fused)
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".export-") as folder:
            scratch = Path(folder, path.name)
            WRITERS[kind](program, metadata(model), scratch)
            found = check_parity(model, ExportedModel(scratch, trust=True))
            for file in sorted(Path(folder).iterdir(), reverse=True):  # OpenVINO's weights first
                os.replace(file, path.parent / file.name)
    except (UserError, OSError):
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        raise UserError(
            f"{model.config.model} with {model.config.backbone} cannot be exported to {kind}: "
            f"{type(error).__name__}: {text[0] if text else 'no reason given'}"
        ) from error
    return found


def metadata(model: Segmenter) -> dict[str, str]:
    """What travels in the file, each as JSON; under `hemnet` all that its own programs need."""
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
    return {key: json.dumps(value) for key, value in content.items()} | {
        METADATA: json.dumps(config_content(model))
    }


def check_parity(model: nn.Module, exported: nn.Module) -> list[Parity]:
    """Compares logits on random images; raises where they differ by more than `TOLERANCE`."""
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
            if not difference <= TOLERANCE:
                raise UserError(
                    f"the file does not agree with the model: for {batch} images of "
                    f"{height}×{width} logits differ by {difference:.1e} of the largest, at most "
                    f"{TOLERANCE:.0e} is accepted. No file was written."
                )
            found.append(Parity(batch, height, width, difference, same))
    return found


def trace(model: nn.Module, size: tuple[int, int] = (65, 97)) -> ExportedProgram:
    """A model as a graph for any batch, height and width; `size` is that of an example."""
    stage("tracing the network for any size")
    images = torch.randn(2, 3, *size)
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.export.export(model, (images,), dynamic_shapes=(sizes,), strict=False)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:  # where the code lay on the disk of whoever exported
                for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
                    node.meta.pop(key, None)
    return program


def write_onnx(program: ExportedProgram, texts: dict[str, str], path: Path) -> None:
    stage("translating the graph to ONNX")
    made: Any = torch.onnx.export(
        program,
        input_names=["images"],
        output_names=["logits"],
        opset_version=OPSET,
        verbose=False,
    )
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
    torch.export.save(program, path, extra_files=texts)


def _write_openvino(program: ExportedProgram, texts: dict[str, str], path: Path) -> None:
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        write_onnx(program, texts, Path(folder, "model.onnx"))
        converted = openvino.convert_model(Path(folder, "model.onnx"))
        for key, text in texts.items():
            converted.set_rt_info(text, [METADATA, key])
        openvino.save_model(converted, path, compress_to_fp16=False)


WRITERS: dict[str, Callable[[ExportedProgram, dict[str, str], Path], None]] = {
    "onnx": write_onnx,
    "torch": _write_torch,
    "openvino": _write_openvino,
}
