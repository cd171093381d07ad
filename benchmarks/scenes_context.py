"""Do `scenes` need global context? One small network, and three ways to look further.

    python benchmarks/scenes_context.py --json benchmarks/results/scenes_context.json

All variants share the backbone (receptive field 23 pixels) and the classifier, and train on the
same batches. `local` adds nothing, `pooling` a global average broadcast to every pixel,
`attention` one self-attention layer, `highway EM` the unit of this package with 16 bases. "State"
is, among pixels of things whose colour was found, the share whose lit/unlit is right: 50% is
guessing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn import functional as F

from common import PixelLoss, arguments, parse, save, show
from hemnet.data import Augmentation, Scenes, evaluation_batches, normalise, training_batches
from hemnet.data.contact_sheet import colour_labels
from hemnet.data.scenes import FIRST_THING, SCENES
from hemnet.inference.metrics import class_iou, confusion_matrix
from hemnet.nn.attention import HighwayEMAttention
from hemnet.nn.geometry import upsample
from hemnet.training.accelerator import computing
from hemnet.training.config import RunConfig, TrainConfig
from hemnet.training.step import TrainingStep

CLASSES = len(SCENES.classes)


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


class Pooling(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, channels, 1)
        self.norm = nn.BatchNorm1d(channels)  # a lamp is 1% of the pixels: make its mean visible
        self.outer = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.norm(F.relu(self.inner(x)).mean((2, 3)))  # B,C
        return F.relu(self.outer(torch.cat([x, mean[:, :, None, None].expand_as(x)], 1)))


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, 3 * channels, 1)
        self.outer = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(x).flatten(2).transpose(1, 2).chunk(3, dim=2)  # B,N,C
        seen = F.scaled_dot_product_attention(query, key, value)
        return F.relu(x + self.outer(seen.transpose(1, 2).reshape(x.shape)))


VARIANTS = {
    "local": lambda channels: nn.Identity(),
    "pooling": Pooling,
    "attention": Attention,
    "highway EM": lambda channels: HighwayEMAttention(
        channels, bases=16, variance="auto", zero_init=False
    ),
}


class Network(nn.Module):
    def __init__(self, variant: str, channels: int = 48) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(3, 24, 2),
            convolution(24, channels, 2),
            convolution(channels, channels),
            convolution(channels, channels),
        )
        self.context = VARIANTS[variant](channels)
        self.head = nn.Sequential(
            nn.Conv2d(channels, channels, 1), nn.ReLU(), nn.Conv2d(channels, CLASSES, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(self.context(self.body(images)))
        return upsample(logits, images.shape[-2:], 4)


def train(variant: str, steps: int, size: int, seed: int, batch_size: int = 16) -> nn.Module:
    torch.manual_seed(seed)
    network = Network(variant)
    groups = [{"params": list(network.parameters()), "multiple": 1.0}]
    optimizer = torch.optim.AdamW(groups, 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    scenes = Scenes("train", size=size, length=steps * batch_size)
    augmentation = Augmentation(crop=(size, size), scale=(1.0, 1.0))
    batches = training_batches(scenes, augmentation, batch_size=batch_size, seed=seed)
    config = TrainConfig(run=RunConfig(device="cpu", seed=seed))
    loss = PixelLoss()
    with computing(config.run) as accelerator:
        change = TrainingStep(network, loss, optimizer, config, accelerator)
        for step, batch in zip(range(steps), batches, strict=False):
            change.backward(step, [batch], float(loss.total(batch.masks)))
            change.update(schedule.get_last_lr()[0])
            schedule.step()
    return network.eval()


@torch.no_grad()
def evaluate(network: nn.Module, size: int, length: int) -> dict[str, Any]:
    confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    for batch in evaluation_batches(Scenes("val", size=size, length=length), batch_size=20):
        confusion += confusion_matrix(batch.masks, network(batch.images).argmax(1), CLASSES)
    iou = class_iou(confusion)
    things = confusion[FIRST_THING:, FIRST_THING:]
    pairs = things.view(3, 2, 3, 2)  # colour, state, predicted colour, predicted state
    same_colour = torch.stack([pairs[c, :, c] for c in range(3)]).sum(0)  # state, predicted state
    return {
        "iou": dict(zip(SCENES.classes, iou.tolist(), strict=True)),
        "local_miou": iou[:FIRST_THING].mean().item(),
        "context_miou": iou[FIRST_THING:].mean().item(),
        "state_accuracy": (100 * same_colour.diag().sum() / same_colour.sum().clamp(min=1)).item(),
    }


@torch.no_grad()
def draw(networks: dict[str, nn.Module], size: int, path: Path, count: int = 5) -> None:
    """Rows: image, labels, then what each network sees in it."""
    scenes = Scenes("val", size=size)
    names = ["image", "labels", *networks]
    tile, gap, margin = 2 * size, 6, 84
    font = ImageFont.load_default(size=14)
    sheet = Image.new(
        "RGB", (margin + count * (tile + gap), len(names) * (tile + gap)), (255, 255, 255)
    )
    pen = ImageDraw.Draw(sheet)
    for column in range(count):
        image, mask = scenes.read(column)
        rows = [image.permute(1, 2, 0).numpy(), colour_labels(mask, SCENES.palette)]
        for network in networks.values():
            found = network(normalise(image[None])).argmax(1)[0]
            rows.append(colour_labels(found, SCENES.palette))
        for row, pixels in enumerate(rows):
            picture = Image.fromarray(pixels).resize((tile, tile), Image.Resampling.NEAREST)
            sheet.paste(picture, (margin + column * (tile + gap), row * (tile + gap)))
    for row, name in enumerate(names):
        pen.text((4, row * (tile + gap) + tile // 2 - 8), name, fill=(40, 40, 46), font=font)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(256).save(path, optimize=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--val", type=int, default=200, help="number of validation scenes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--figure", type=Path, help="draw what the networks see, as a PNG")
    args = parse(parser)
    results: dict[str, dict[str, Any]] = {}
    networks: dict[str, nn.Module] = {}
    for variant in args.variants:
        start = time.perf_counter()
        network = networks[variant] = train(variant, args.steps, args.size, args.seed)
        found = evaluate(network, args.size, args.val)
        count = sum(p.numel() for p in network.parameters())
        results[variant] = found | {"parameters": count, "seconds": time.perf_counter() - start}
    show(
        f"scenes of {args.size}×{args.size}, {args.steps} steps",
        ("variant", "parameters", "local IoU", "context IoU", "state", "seconds"),
        [
            (name, f"{row['parameters']:,}",
             *(f"{row[key]:.1f}%" for key in ("local_miou", "context_miou", "state_accuracy")),
             f"{row['seconds']:.0f}")
            for name, row in results.items()
        ],
    )  # fmt: skip
    if args.figure:
        draw(networks, args.size, args.figure)
    settings = {"steps": args.steps, "size": args.size, "val": args.val, "seed": args.seed}
    save(args.json, {"settings": settings, "variants": results})


if __name__ == "__main__":
    main()
