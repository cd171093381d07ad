"""Files that `hemnet export` wrote, used like the model they were made from."""

from __future__ import annotations

import functools
import importlib.util
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hemnet.errors import UserError
from hemnet.models.pretrained import parse_config

METADATA = "hemnet"  # under this key travels the whole configuration
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2", "openvino": ".xml"}
_PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch": ()}
_PACKAGES["openvino"] = ("onnx", "onnxscript", "openvino")
_PACKAGES["int8"] = ("nncf",)
_RUNTIME = {"onnx": "onnxruntime", "openvino": "openvino"}

Run = Callable[[Tensor], Tensor]


class ExportedModel(nn.Module):
    """Normalised images B,3,H,W → logits B,classes,H,W, by the file's own engine.

    ONNX and OpenVINO files are data. A `.pt2` file is a program, and torch runs parts of it while
    loading: it is loaded only with `trust`.
    """

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        super().__init__()
        path = Path(path)
        kind = next((f for f, suffix in SUFFIXES.items() if suffix == path.suffix), None)
        if kind is None:
            raise UserError(f"{path}: an exported model ends in {', '.join(SUFFIXES.values())}.")
        if kind == "torch" and not trust:
            raise UserError(
                f"{path} is a program that torch runs while loading it, so it could do anything. "
                "If you exported it yourself or trust who did, give `trust=True`."
            )
        needs(kind, running=True)
        try:
            self._run, texts = _LOADERS[kind](path)
        except UserError:
            raise
        except Exception as error:  # each engine has its own kinds
            text = str(error).strip().splitlines()
            raise UserError(f"{path} cannot be read: {text[0] if text else error!r}") from None
        if METADATA not in texts:
            raise UserError(f"{path} was not written by `hemnet export`: it has no metadata.")
        self.path = path
        self.config = parse_config(texts[METADATA], path)
        self.precision = str(json.loads(texts.get("precision", '"fp32"')))

    def forward(self, images: Tensor) -> Tensor:
        logits = self._run(images.detach().cpu().float())
        expected = (images.shape[0], self.config.num_classes, *images.shape[-2:])
        if logits.shape != expected:  # OpenVINO does so for images of a few pixels
            raise UserError(
                f"the engine of {self.path} cannot do images of {expected[2]}×{expected[3]} "
                f"pixels: its logits have the shape {tuple(logits.shape)}, not {expected}."
            )
        return logits.to(images.device)


def needs(kind: str, running: bool = False) -> None:
    """Says which packages of a format are missing."""
    packages = (_RUNTIME[kind],) if running and kind in _RUNTIME else _PACKAGES[kind]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{kind} needs {' and '.join(missing)}: install the extra packages with "
            f"pip install 'hemnet-torch[{'nncf' if kind == 'int8' else 'export'}]'."
        )


def _load_onnx(path: Path) -> tuple[Run, dict[str, str]]:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors; they come as exceptions too
    known = onnxruntime.get_available_providers()
    wanted = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in known]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), settings, providers=wanted)

    def run(images: Tensor) -> Tensor:
        (logits,) = session.run(["logits"], {"images": images.contiguous().numpy()})
        return torch.from_numpy(logits)

    return run, dict(session.get_modelmeta().custom_metadata_map)


def _load_torch(path: Path) -> tuple[Run, dict[str, str]]:
    files: dict[str, Any] = {METADATA: "", "precision": '"fp32"'}
    program = torch.export.load(path, extra_files=files)
    try:  # the guards refuse sizes that a compiler would treat differently; these results are right
        module = program.module(check_guards=False)
    except TypeError:  # torch before 2.9 has none
        module = program.module()
    texts = {k: v.decode() if isinstance(v, bytes) else str(v) for k, v in files.items()}
    return module.__call__, texts if texts[METADATA] else {}


@functools.cache
def openvino_core() -> Any:
    """One for the life of the process.

    A core gives the thread that first uses it another signal stack, and frees it at its own end.
    Of two cores that end in the order they began, the second puts the first one's freed stack
    back, and the next signal with a handler kills the process without a word.
    """
    import openvino

    return openvino.Core()


_one_openvino_core = threading.Lock()


def _load_openvino(path: Path) -> tuple[Run, dict[str, str]]:
    with _one_openvino_core:
        core = openvino_core()
    model = core.read_model(path)
    texts = {}
    for key in (METADATA, "precision"):
        if model.has_rt_info([METADATA, key]):
            texts[key] = str(model.get_rt_info([METADATA, key]).value)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # some processors would choose half precision
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    compiled = core.compile_model(model, "CPU", settings)

    def run(images: Tensor) -> Tensor:
        found: NDArray[np.float32] = compiled(images.contiguous().numpy())[0]
        return torch.from_numpy(np.array(found))

    return run, texts


_LOADERS: dict[str, Callable[[Path], tuple[Run, dict[str, str]]]] = {
    "onnx": _load_onnx,
    "torch": _load_torch,
    "openvino": _load_openvino,
}
