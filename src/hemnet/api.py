"""Train, evaluate and predict from Python; the commands of the same names call these functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from hemnet.data.dataset import SegmentationDataset
from hemnet.errors import UserError
from hemnet.inference import evaluate as evaluation
from hemnet.inference.exported_model import ExportedModel
from hemnet.inference.global_bases import em_unit
from hemnet.inference.input_files import Source, find_images
from hemnet.inference.metrics import Evaluation
from hemnet.inference.open_model import find_device, open_model
from hemnet.inference.options import InferenceOptions, PredictOptions
from hemnet.inference.prediction_files import full_palette
from hemnet.inference.predictor import Predictor, Writer, class_names, write_predictions
from hemnet.inference.sliding_window import Classes
from hemnet.models.segmenter import Segmenter
from hemnet.report import write_report
from hemnet.training import loop
from hemnet.training.config_parser import read_config
from hemnet.training.loop import TrainResult
from hemnet.training.resume import Config, base_config
from hemnet.training.setup import Datasets, known_data, open_split

log = logging.getLogger("hemnet")

Model = str | Path | TrainResult | nn.Module
Picture = str | Path | Image.Image | NDArray[Any]
Options = TypeVar("Options", bound=InferenceOptions)


def train(
    config: Config = None,
    out: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    data: Datasets | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train a model in the run folder `out`, and write its report.

    Args:
        config: a YAML file, its content as nested dictionaries, or a `TrainConfig`.
        out: the run folder: configuration, checkpoints, metrics, model and report.
        overrides: settings that differ, such as `{"optim.lr": 0.01, "data.root": "DATA"}`.
        preset: "cpu" or "gpu": settings to begin with, before those of `config`.
        resume: go on with the run in `out`, by default with its own configuration.
        allow_changes: resume with another configuration.
        data: the data sets for training and validation, where they are not the configuration's.
        quiet: show nothing.

    Examples:
        run = hemnet.train("configs/scenes.yaml", "runs/scenes", {"optim.steps": 100})
        run.best_miou, run.metrics[-1], run.model.predict("photo.jpg")
    """
    source = base_config(config, out, preset=preset, resume=resume, allow_changes=allow_changes)
    assert out is not None
    complete = read_config(source, overrides=overrides, preset=preset)
    result = loop.train(
        complete, out, resume,
        allow_changes=allow_changes, quiet=quiet, data=data, report=write_report,
    )  # fmt: skip
    if result.main and result.stopped_by is None:
        write_report(out, None if data is None else data[1] or data[0])
    return result


def evaluate(
    model: Model,
    data: SegmentationDataset | Mapping[str, Any] | str | None = None,
    options: InferenceOptions | None = None,
    *,
    workers: int = 0,
    device: torch.device | str | None = None,
    trust: bool = False,
    progress: str | None = "evaluating",
    **changes: Any,
) -> Evaluation:
    """The model's mIoU, IoU of every class, pixel accuracy and confusion matrix.

    Args:
        model: a run (its folder, or what `train` returned), a saved or exported model, one that
            comes with hemnet, a hub id, or a module from normalised images to logits.
        data: a data set, its name, or arguments of `open_dataset`, such as `{"root": "DATA"}`;
            what they leave open, the run in the folder `model` knows.
        options: how images are looked at.
        workers: processes that read images.
        device: cpu, cuda or mps; None for a module's own, or the fastest.
        trust: load a `.pt2` file, which could run any program.
        progress: name of the bar, drawn on a terminal; None draws none.
        changes: fields of `InferenceOptions`, such as `scales=(0.75, 1, 1.25), flip=True`.
    """
    chosen = _options(InferenceOptions, options, changes)
    network = _opened(model, device, trust)
    if not isinstance(data, SegmentationDataset):
        data = dataset_for(model, network, {"name": data} if isinstance(data, str) else data)
    return evaluation.evaluate(network, data, chosen, workers=workers, progress=progress)


def dataset_for(
    model: Model, network: nn.Module, given: Mapping[str, Any] | None = None
) -> SegmentationDataset:
    """What arguments of `open_dataset` say; what they leave open, a run folder knows."""
    source = _source(model)
    chosen = {key: value for key, value in (given or {}).items() if value not in (None, False)}
    known = known_data(source, chosen.pop("name", None))
    if known is None:
        raise UserError(
            f"{source or 'a module'} does not say what it was trained on: give `name` and `root`."
        )
    split, length = chosen.pop("split", known.val_split or "val"), known.val_length
    dataset = open_split(known, split, chosen.pop("length", length), **chosen)
    names = getattr(getattr(network, "config", None), "classes", None)
    if names is not None and names != tuple(dataset.info.classes):
        pairs = zip(names, dataset.info.classes, strict=False)
        mine, other = next((p for p in pairs if p[0] != p[1]), (len(names), dataset.num_classes))
        raise UserError(
            f"the model's classes are not those of {known.name}: {mine!r} is {other!r} there. "
            "Evaluate it on the data set it was trained for."
        )
    return dataset


@overload
def predict(
    model: Model,
    images: Picture,
    options: PredictOptions | None = None,
    *,
    device: torch.device | str | None = None,
    trust: bool = False,
    **changes: Any,
) -> Classes: ...
@overload
def predict(
    model: Model,
    images: Sequence[Picture],
    options: PredictOptions | None = None,
    *,
    device: torch.device | str | None = None,
    trust: bool = False,
    **changes: Any,
) -> list[Classes]: ...
def predict(
    model: Model,
    images: Picture | Sequence[Picture],
    options: PredictOptions | None = None,
    *,
    device: torch.device | str | None = None,
    trust: bool = False,
    **changes: Any,
) -> Classes | list[Classes]:
    """The class of every pixel of an image, H,W; of several images a list.

    Args:
        model: as for `evaluate`.
        images: a path, a PIL image, an array H,W,3, or several of them. Large ones are predicted
            in windows.
        options: how images are looked at.
        device: cpu, cuda or mps; None for a module's own, or the fastest.
        trust: load a `.pt2` file, which could run any program.
        changes: fields of `PredictOptions`, such as `scales=(0.75, 1, 1.25), flip=True`.
    """
    pictures = (
        [images] if isinstance(images, str | Path | Image.Image | np.ndarray) else list(images)
    )
    sources = [
        Source(Path(picture), str(number)) if isinstance(picture, str | Path)
        else Source(Path(f"image {number}"), str(number), picture)
        for number, picture in enumerate(pictures)
    ]  # fmt: skip
    predictor = _predictor(model, options, changes, device, trust)
    found: dict[str, Classes] = {}
    for item in predictor.predict_files(sources):
        if item.classes is None:
            raise UserError(str(item.error))
        found[item.source.name] = item.classes
    classes = [found[source.name] for source in sources]
    return classes[0] if sources and pictures[0] is images else classes


def predict_files(
    model: Model,
    inputs: Sequence[str | Path] | Sequence[Source],
    out: str | Path,
    options: PredictOptions | None = None,
    *,
    overlays: bool = True,
    upright: bool = True,
    workers: int = 2,
    device: torch.device | str | None = None,
    trust: bool = False,
    tell: Callable[[str], object] = log.warning,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Write class maps, overlays and `predictions.jsonl` into a folder; returns its lines.

    Args:
        model: as for `evaluate`.
        inputs: files, folders (with all below) and patterns.
        out: the folder for the results.
        options: how images are looked at.
        overlays: also write the images tinted in their classes' colours.
        upright: obey rotation marks of photographs.
        workers: threads that read files.
        device: cpu, cuda or mps; None for a module's own, or the fastest.
        trust: load a `.pt2` file, which could run any program.
        tell: hears why a file could not be predicted; the others are.
        changes: fields of `PredictOptions`, such as `scales=(0.75, 1, 1.25), flip=True`.
    """
    out = Path(out)
    sources = _sources(inputs, out)
    predictor = _predictor(
        model, options, changes, device, trust, workers=workers, upright=upright, scratch=out
    )
    network = predictor.model
    palette = full_palette(getattr(network.config, "palette"))  # noqa: B009
    writer = Writer(out, class_names(network), palette, overlays=overlays)
    return write_predictions(predictor, writer, sources, tell)


def _sources(inputs: Iterable[str | Path | Source], out: Path) -> list[Source]:
    given = list(inputs)
    found = [source for source in given if isinstance(source, Source)]
    texts = [str(text) for text in given if not isinstance(text, Source)]
    return found + (find_images(texts, leave_out=out) if texts or not found else [])


def _predictor(
    model: Model,
    options: PredictOptions | None,
    changes: Mapping[str, Any],
    device: torch.device | str | None,
    trust: bool,
    **more: Any,
) -> Predictor:
    chosen = _options(PredictOptions, options, changes)
    network = _opened(model, device, trust)
    if chosen.global_bases:
        em_unit(network)  # says so where there is none
    place = next((p.device for p in network.parameters()), torch.device("cpu"))
    return Predictor(network, chosen, place, **more)


def _options(kind: type[Options], options: Options | None, changes: Mapping[str, Any]) -> Options:
    try:
        return replace(options or kind(), **changes)
    except TypeError:
        known = ", ".join(kind.__dataclass_fields__)
        raise UserError(f"expected options among {known}; got {', '.join(changes)}") from None


def _source(model: Model) -> str | Path | None:
    """The folder, file or name of a model; None for a module."""
    if isinstance(model, TrainResult):
        return model.folder
    return None if isinstance(model, nn.Module) else model


def _opened(
    model: Model, device: torch.device | str | None, trust: bool
) -> Segmenter | ExportedModel | nn.Module:
    source = _source(model)
    if source is not None:
        network: nn.Module = open_model(source, trust)
        device = "auto" if device is None else device
    else:
        assert isinstance(model, nn.Module)
        network = model
    if device is not None:
        network.to(find_device(device) if isinstance(device, str) else device)
    return network
