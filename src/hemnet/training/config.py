"""Everything a training run can be told, as dataclasses.

`configs/*.yaml` are complete examples, and every field is a flag of `hemnet train`: the field
`lr` of `OptimConfig` is `optim.lr` in a file and `--optim.lr` on the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from hemnet.errors import UserError
from hemnet.inference.options import InferenceOptions
from hemnet.limits import number, out_of_range, shortened

LOSSES = ("cross_entropy", "focal", "dice", "lovasz")  # that can be added
Precision = Literal["float32", "bf16", "fp16"]


@dataclass
class NetworkConfig:
    """The network.

    Args:
        name: of the head: hemnet, emanet, fcn or another of hemnet.list_models()
        backbone: a timm name, such as resnet101s, resnet50 or tf_efficientnet_lite0
        output_stride: 8, 16 or 32
        channels: width of the head; null for the head's own
        weights: of the backbone: null, imagenet (timm's, from the hub) or a local file
        partial_weights: take a local file that lacks more than a tenth of the backbone's tensors
        init_from: a run or a saved model whose weights the whole network begins with
        multi_grid: dilation rates of a ResNet's last stage; auto is 1, 2, 4 for resnet*s
        resnet_v1: stride in the first 1×1 convolution of a block, for weights trained so
        align_corners: false for weights trained with up-sampling of that kind, as mmsegmentation's
        options: of the head, such as iterations, step_size, variance or dropout
        freeze_stages: how many of the backbone's stages, stem included, are not trained
        freeze_norm: batch norms keep their statistics, scales and shifts
        norm_momentum: share of a batch in batch norms' running statistics; null for the network's
    """

    name: str = "hemnet"
    backbone: str = "resnet101s"
    output_stride: int = 8
    channels: int | None = number(None, 1)
    weights: str | None = None
    partial_weights: bool = False
    init_from: str | None = None
    multi_grid: Literal["auto"] | list[int] | None = "auto"
    resnet_v1: bool = False
    align_corners: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    freeze_stages: int = number(0, 0)
    freeze_norm: bool = False
    norm_momentum: float | None = number(None, above=0, most=1)


@dataclass
class DataConfig:
    """The images.

    Args:
        name: a data set of `hemnet data`, such as voc, camvid, folder or scenes
        root: its folder (of hf: a folder or a name on the hub); scenes and recall have none
        split: what is trained on
        val_split: what validation looks at; null for no validation
        skip_missing: skip listed pairs whose files are missing, instead of stopping
        skip_broken: leave out files that cannot be read, instead of stopping
        classes: names, or a file of names, for folder and list
        label_map: value in the label files → class
        labels: names of label files, such as {stem}_mask.png; null for the images' names
        columns: image and mask column of a Hugging Face data set; null to find them
        size: side of generated images; null for 128
        length: how many generated images to train on; null for 4000
        val_length: how many generated images to validate on; null for 400
        crop: height and width that the network sees in training
        scale: range of the random scale
        scale_step: draw scales this far apart, both ends included; null for any in the range
        flip: probability of a horizontal flip
        jitter: strength of random colour changes, 0 to 1
        workers: processes that read images
    """

    name: str = "scenes"
    root: str | None = None
    split: str = "train"
    val_split: str | None = "val"
    skip_missing: bool = False
    skip_broken: bool = False
    classes: str | list[str] | None = None
    label_map: dict[int, int] | None = None
    labels: str | None = None
    columns: tuple[str, str] | None = None
    size: int | None = number(None, 1)
    length: int | None = number(None, 1)
    val_length: int | None = number(None, 1)
    crop: tuple[int, int] = (513, 513)
    scale: tuple[float, float] = (0.5, 2.0)
    scale_step: float | None = number(None, above=0)
    flip: float = number(0.5, 0, 1)
    jitter: float = number(0.0, 0, 1)
    workers: int = number(2, 0, 1024)


@dataclass
class OptimConfig:
    """The optimizer and its schedule: lr · (1 − step/steps)^poly_power.

    Args:
        name: sgd, adamw, lamb, adafactor, muon or another of timm
        steps: optimizer steps of the run
        batch_size: images per step, over all processes and accumulated passes
        accumulate: passes that make one step, each with its share; auto for as few as fit
        memory_gib: GiB that auto may fill; null for what is free
        lr: the base learning rate
        poly_power: exponent of the poly schedule; 0 keeps the learning rate constant
        plateau_patience: validations without a better mIoU until lr falls, thrice; null for poly
        warmup: steps over which the learning rate rises from a tenth
        momentum: of optimizers that have it, such as sgd and muon
        betas: of optimizers that have two, such as adamw and lamb
        weight_decay: of convolution weights; nothing else decays
        bias_lr_mult: learning rate of biases, as a multiple of lr
        head_lr_mult: learning rate of everything but the backbone, as a multiple of lr
        clip: largest norm of the gradient; null for no limit
        ema_decay: of a moving average of the weights, which is validated and saved; null for none
    """

    name: str = "sgd"
    steps: int = number(30_000, 1)
    batch_size: int = number(16, 1, 65_536)
    accumulate: Literal["auto"] | int = number(1, 1)
    memory_gib: float | None = number(None, above=0)
    lr: float = number(9e-3, above=0)
    poly_power: float = number(0.9, 0)
    plateau_patience: int | None = number(None, 1)
    warmup: int = number(0, 0)
    momentum: float = number(0.9, 0, 1)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = number(1e-4, 0)
    bias_lr_mult: float = number(2.0, above=0, most=1000)
    head_lr_mult: float = number(1.0, above=0, most=1000)
    clip: float | None = number(None, above=0)
    ema_decay: float | None = number(None, 0, below=1)

    @property
    def passes(self) -> int:
        """Passes of a step, where a run has settled them."""
        if self.accumulate == "auto":
            raise UserError("optim.accumulate auto is for `hemnet train`: give a number here")
        return self.accumulate


@dataclass
class LossConfig:
    """What is minimised, over the pixels that are not void.

    Args:
        terms: weights of cross_entropy, focal, dice and lovasz, which are added
        focal_gamma: of focal: how little well classified pixels count
        auxiliary: weight of the auxiliary head's loss; 0 for no such head
        ohem: share of each image's pixels, the hardest, that count; null for all
        class_weights: one number per class; auto to find them in the data; null for equal ones
        stride: compute the loss on every n-th pixel of each row and column; cheaper
        mean_over: valid pixels, or all pixels, where void counts as a loss of 0
    """

    terms: dict[str, float] = field(default_factory=lambda: {"cross_entropy": 1.0})
    focal_gamma: float = number(2.0, 0, 20)
    auxiliary: float = number(0.0, 0)
    ohem: float | None = number(None, above=0, most=1)
    class_weights: Literal["auto"] | list[float] | None = None
    stride: int = number(1, 1)
    mean_over: Literal["valid", "all"] = "valid"


@dataclass
class ValidationConfig(InferenceOptions):
    """How the network is judged during training.

    Args:
        every: steps between two validations; the last step is always validated
        keep: which model the run folder offers: best on the validation set, or last
    """

    every: int = number(1000, 1)
    keep: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        """Nothing is refused: `check_config` reports all problems of a configuration at once."""


@dataclass
class RunConfig:
    """How the run goes about it.

    Args:
        seed: of weights, images and dropout
        device: auto, cpu, cuda or mps
        precision: float32, or bf16 or fp16 for the forward and backward passes
        channels_last: memory layout of images and weights, faster on most devices
        compile: let torch.compile make the network faster after a slow start
        log_every: steps between two lines of the log
        live_report: rewrite report.html after every validation, to look at while it trains
        health_every: steps between two looks at the health of the attention unit's bases
        checkpoint_every: steps between two checkpoints
        tensorboard: write TensorBoard's events into the run folder
        wandb: project of Weights & Biases to log to; null for none
        timeout: seconds that a process waits for the others, which may be gone
    """

    seed: int = number(0, 0, 2**63 - 1)
    device: str = "auto"
    precision: Precision = "float32"
    channels_last: bool = True
    compile: bool = False
    log_every: int = number(20, 1)
    live_report: bool = True
    health_every: int = number(200, 1)
    checkpoint_every: int = number(500, 1)
    tensorboard: bool = True
    wandb: str | None = None
    timeout: float = number(600.0, 1, 1e6)


@dataclass
class TrainConfig:
    """A complete training run."""

    model: NetworkConfig = field(default_factory=NetworkConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    run: RunConfig = field(default_factory=RunConfig)


# Old name → name of now: both are read, wherever a setting is given.
RENAMED = {
    "model.start": "model.init_from",
    "data.partial": "data.skip_missing",
    "optim.memory": "optim.memory_gib",
    "optim.rate": "optim.lr",
    "optim.power": "optim.poly_power",
    "optim.plateau": "optim.plateau_patience",
    "optim.bias_rate": "optim.bias_lr_mult",
    "optim.head_rate": "optim.head_lr_mult",
    "optim.average": "optim.ema_decay",
    "loss.average": "loss.mean_over",
}

_LARGEST = 2**31 - 1  # of any whole number but the seed: what torch and NumPy count with


def check_config(config: TrainConfig) -> None:
    """Refuse numbers out of range and settings that contradict each other: all at once."""
    # What is of a wrong kind cannot be compared with anything.
    problems = list(_wrong_kinds(config)) or list(_contradictions(config))
    if problems:
        raise UserError(joined(problems))


def joined(problems: Sequence[str]) -> str:
    """One problem as it is, several as a list."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} settings cannot be used:\n  " + "\n  ".join(problems)


def _contradictions(config: TrainConfig) -> Iterator[str]:
    bad = set()  # keys that the checks of several settings leave out
    for section in fields(config):
        part = getattr(config, section.name)
        checked = part.problems() if isinstance(part, InferenceOptions) else out_of_range(part)
        for name, problem in checked:
            bad.add(f"{section.name}.{name}")
            yield f"{section.name}.{name} {problem}"
    if not all(0 <= beta < 1 for beta in config.optim.betas):
        yield f"optim.betas is {list(config.optim.betas)}: expected shares below 1"
    data, optim, loss, run = config.data, config.optim, config.loss, config.run
    if min(data.crop) < 1 or not 0 < data.scale[0] <= data.scale[1]:
        yield (
            f"data.crop is {list(data.crop)} and data.scale {list(data.scale)}: expected height "
            "and width of at least 1, and a smallest and a largest scale above 0"
        )
    if data.scale_step is not None and "data.scale_step" not in bad:
        steps = (data.scale[1] - data.scale[0]) / data.scale_step
        if abs(steps - round(steps)) > 1e-6:
            yield (
                f"data.scale_step is {data.scale_step}, but data.scale {list(data.scale)} is not a "
                "whole number of such steps: such as 0.25 for [0.5, 2.0]"
            )
    if unknown := [name for name in loss.terms if name not in LOSSES]:
        yield f"loss.terms: there is no loss {unknown[0]!r}; choose from {', '.join(LOSSES)}"
    if min(loss.terms.values(), default=0) < 0 or not sum(loss.terms.values()) > 0:
        yield f"loss.terms is {loss.terms}: expected weights from 0, one of them above 0"
    if isinstance(loss.class_weights, list) and not min(loss.class_weights, default=-1) >= 0:
        yield f"loss.class_weights is {loss.class_weights}: expected numbers from 0"
    if "loss.stride" not in bad and any((side - 1) % loss.stride for side in data.crop):
        yield (
            f"loss.stride is {loss.stride}, but data.crop {list(data.crop)} has no whole number of "
            f"such steps: expected sides of a multiple of {loss.stride}, plus 1"
        )
    if data.val_split is None and optim.plateau_patience is not None:
        yield "optim.plateau_patience needs validation, and data.val_split is null"
    parts = optim.accumulate
    whole = not bad & {"optim.batch_size", "optim.accumulate"}
    if isinstance(parts, int) and whole and optim.batch_size % parts:
        yield (
            f"optim.batch_size {optim.batch_size} cannot be split into optim.accumulate "
            f"{optim.accumulate} equal passes"
        )
    if run.device not in ("auto", "cpu", "cuda", "mps"):
        yield f"run.device is {run.device[:80]!r}: expected auto, cpu, cuda or mps"
    if run.device == "cpu" and run.precision == "fp16":
        yield "run.precision fp16 needs a GPU: use float32 or bf16 with run.device cpu"


def _wrong_kinds(config: TrainConfig) -> Iterator[str]:
    """A null where none may be, and numbers that nothing can count with."""
    for section in fields(config):
        part = getattr(config, section.name)
        kinds = get_type_hints(type(part))
        for name, value in vars(part).items():
            key = f"{section.name}.{name}"
            if value is None and type(None) not in get_args(kinds[name]):
                kind = getattr(kinds[name], "__name__", None) or kinds[name]
                yield f"{key} is null: expected {kind}. Leave it out for its default"
            for found in _numbers(value):
                limit = 1e30 if isinstance(found, float) else _LARGEST
                if key != "run.seed" and not abs(found) <= limit:
                    yield f"{key} is {shortened(found)}: expected a number up to {limit:g}"


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping):
        for item in (*value.keys(), *value.values()):
            yield from _numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)


def get(config: TrainConfig, key: str) -> Any:
    """The value of a setting by its dotted name."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value
