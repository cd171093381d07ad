"""From a configuration to the parts of a run: data sets, network, batches."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hemnet.data import (
    GENERATED,
    Augmentation,
    Batches,
    Info,
    SegmentationDataset,
    open_dataset,
    training_batches,
)
from hemnet.errors import UserError
from hemnet.inference.evaluate import normalisation
from hemnet.inference.open_model import load_model
from hemnet.models.registry import create_model, resolve_preset
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import EMUnit
from hemnet.run_folder import RunFolder
from hemnet.training.config import DataConfig, TrainConfig
from hemnet.training.config_parser import run_config

log = logging.getLogger("hemnet")

Datasets = tuple[SegmentationDataset, SegmentationDataset | None]  # for training, validation


def open_split(
    config: DataConfig, split: str, length: int | None, **given: Any
) -> SegmentationDataset:
    """A split of a configuration's data; `given` are other arguments of `open_dataset`."""
    settings: dict[str, Any] = {
        "root": config.root,
        "skip_missing": config.skip_missing,
        "classes": config.classes,
        "label_map": config.label_map,
        "labels": config.labels if config.name == "folder" else None,
        "columns": config.columns if config.name == "hf" else None,
        "size": config.size if config.name in GENERATED else None,
        "length": length,
    }
    return open_dataset(config.name, split=split, **settings | given)


def open_datasets(config: DataConfig) -> Datasets:
    train = open_split(config, config.split, config.length)
    if config.val_split is None:
        return train, None
    return train, open_split(config, config.val_split, config.val_length)


def known_data(run: str | Path | None, name: str | None) -> DataConfig | None:
    """What a run knows of its data; of another data set the name alone, None without any."""
    config = None if run is None else run_config(run)
    if config is not None and name in (None, config.data.name):
        return config.data
    return None if name is None else DataConfig(name)


def run_dataset(run: str | Path) -> SegmentationDataset:
    """What a run validates on; what it trains on, if it has no validation."""
    config = run_config(run)
    if config is None:
        raise UserError(f"{run} is not a run folder: it has no {RunFolder(run).config.name}.")
    train, validation = open_datasets(config.data)
    return validation or train


def settle(config: TrainConfig) -> TrainConfig:
    """With what a preset of the unit chooses, so that the run keeps it when the preset changes,

    and a warm-up that ends before a short run does.
    """
    options = resolve_preset(config.model.name, config.model.options)
    warmup = min(config.optim.warmup, config.optim.steps // 4)
    if config.optim.warmup < config.optim.steps:
        warmup = config.optim.warmup
    return replace(
        config,
        model=replace(config.model, options=options),
        optim=replace(config.optim, warmup=warmup),
    )


def create_network(config: TrainConfig, num_classes: int, **more: Any) -> Segmenter:
    """The network that a configuration describes; `more` are arguments of `create_model`."""
    network = config.model
    return create_model(
        network.name,
        num_classes,
        network.backbone,
        network.output_stride,
        network.channels,
        partial_weights=network.partial_weights,
        multi_grid=network.multi_grid,
        resnet_v1=network.resnet_v1,
        align_corners=network.align_corners,
        auxiliary=config.loss.auxiliary > 0,
        **more,
        **network.options,
    )


def build_model(config: TrainConfig, info: Info) -> Segmenter:
    """The network as it is before the first step, with what is frozen frozen."""
    torch.manual_seed(config.run.seed)
    start = config.model.init_from
    weights = config.model.weights if start is None else None  # it has a whole backbone
    model = create_network(
        config, len(info.classes), weights=weights, classes=info.classes, palette=info.palette
    )
    if start is not None:
        start_from(model, start)
    model.train()
    freeze_stages(model, config.model.freeze_stages)
    if config.model.freeze_norm:
        freeze_norm(model)
    if config.model.norm_momentum is not None:
        set_norm_momentum(model, config.model.norm_momentum)
    return model.to(memory_format=memory_format(config))


def memory_format(config: TrainConfig) -> torch.memory_format:
    """The layout of images and weights."""
    return torch.channels_last if config.run.channels_last else torch.contiguous_format


def start_from(model: Segmenter, source: str) -> None:
    """Take over the weights of a trained model; layers for other classes start anew."""
    other = load_model(source)
    for name in ("align_corners", "resnet_v1", "multi_grid"):
        mine, wanted = getattr(model.config, name), getattr(other.config, name)
        if mine != wanted:  # the weights would fit a network that they were not trained for
            raise UserError(
                f"model.init_from {source} was trained with model.{name} {_text(wanted)}, this "
                f"model has {_text(mine)}. Set model.{name} to the same"
            )
    # Its weights know images in its own normalisation.
    model.config = replace(model.config, mean=other.config.mean, std=other.config.std)
    ours, theirs = model.state_dict(), other.state_dict()
    taken = {k: v for k, v in theirs.items() if k in ours and ours[k].shape == v.shape}
    left = [k for k in ours if k not in taken]
    if not taken or any(key.startswith("backbone.") for key in left):
        raise UserError(
            f"model.init_from {source}: its {other.config.backbone} does not fit this "
            f"{model.config.backbone}. Start from a model of the same kind"
        )
    rates = _gain_rates(model)
    for name, rate in _gain_rates(other).items():
        taken.pop(f"{name}.gain.rate", None)  # how fast to learn is this run's choice
        for key in (f"{name}.norm.weight", f"{name}.norm.bias"):
            if key in taken:  # the unit adds its rate times as much as these say
                taken[key] *= rate / rates[name]
    model.load_state_dict(taken, strict=False)
    log.info("%d of %d tensors start from %s", len(taken), len(ours), source)
    if left:
        log.warning("not in %s, so these start anew: %s", source, ", ".join(left[:6]))
    unused = [k for k in theirs if k not in ours and not k.startswith("auxiliary.")]
    if unused:
        log.warning("this model has no place for some of %s: %s", source, ", ".join(unused[:6]))


def _text(value: object) -> str:
    """As a configuration says it."""
    return json.dumps(value)


def _gain_rates(model: Segmenter) -> dict[str, float]:
    units = model.named_modules()
    return {name: unit.gain.factor for name, unit in units if isinstance(unit, EMUnit)}


def freeze_stages(model: Segmenter, stages: int) -> None:
    """Stop training everything that the first feature maps of the backbone depend on."""
    if stages == 0:
        return
    count = len(model.backbone.channels)
    if stages > count:
        raise UserError(
            f"model.freeze_stages is {stages}, but {model.config.backbone} has {count} stages"
        )
    # Which parameters those are, autograd knows for any network.
    model.eval()
    features = model.backbone(torch.zeros(1, 3, 64, 64))
    sum(f.sum() for f in features[:stages]).backward()
    model.train()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.requires_grad_(False)
            parameter.grad = None
    for module in model.backbone.modules():
        if isinstance(module, _BatchNorm) and not module.weight.requires_grad:
            module.eval()


def freeze_norm(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval().requires_grad_(False)


def set_norm_momentum(model: nn.Module, momentum: float) -> None:
    """The share that a batch has in the running statistics. Frozen norms do not use it."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum


def synchronise_norms(model: nn.Module) -> nn.Module:
    """Batch norms over the images of all processes; timm's own kind keeps its activation."""
    modes = {name: module.training for name, module in model.named_modules()}
    converted: nn.Module = convert_sync_batchnorm(model)
    for name, module in converted.named_modules():
        module.training = modes[name]
    return converted


def augmentation_of(config: TrainConfig, model: nn.Module) -> Augmentation:
    """What training does to an image before this model sees it."""
    data = config.data
    return replace(
        normalisation(model),
        crop=data.crop,
        scale=data.scale,
        scale_step=data.scale_step,
        flip=data.flip,
        jitter=data.jitter,
    )


def build_batches(
    config: TrainConfig,
    dataset: SegmentationDataset,
    model: Segmenter,
    step: int,
    accelerator: Accelerator,
) -> Batches:
    """Endless batches from optimizer step `step` on; `accumulate` of them make a step."""
    data = config.data
    return training_batches(
        dataset,
        augmentation_of(config, model),
        batch_size=share_of_batch(config, accelerator.num_processes),
        workers=data.workers,
        seed=config.run.seed,
        step=step * config.optim.passes,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        on_error="skip" if data.skip_broken else "raise",
        device=accelerator.device,
        pin_memory=accelerator.device.type == "cuda",
    )


def share_of_batch(config: TrainConfig, world: int) -> int:
    """Images of one pass of one process."""
    parts = config.optim.passes * world
    if config.optim.batch_size % parts:
        raise UserError(
            f"optim.batch_size {config.optim.batch_size} is over all processes: it cannot be split "
            f"into {world} processes × {config.optim.accumulate} accumulated passes"
        )
    return config.optim.batch_size // parts
