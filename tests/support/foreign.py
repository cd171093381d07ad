"""Checkpoints as other projects write them, randomly filled, and what their networks compute.

The networks are written from the papers as functions of a state dict with the other project's
names; nothing of hemnet is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]
BLOCKS = (3, 4, 6, 3)
EPS = 1e-5


class Maker:
    """Fills a state dict with layers of plausible random weights, in half precision."""

    def __init__(self, seed: int = 0) -> None:
        self.state: State = {}
        self.random = torch.Generator().manual_seed(seed)

    def conv(self, name: str, out: int, inputs: int, kernel: int = 1, bias: bool = False) -> None:
        shape = (out, inputs, kernel, kernel)
        scale = (2 / (inputs * kernel**2)) ** 0.5
        self.state[f"{name}.weight"] = (torch.randn(shape, generator=self.random) * scale).half()
        if bias:
            self.state[f"{name}.bias"] = torch.randn(out, generator=self.random).half() * 0.1

    def norm(self, name: str, channels: int, size: float = 1.0) -> None:
        for leaf, low, high in (
            ("weight", 0.5 * size, 1.5 * size),
            ("bias", -0.3, 0.3),
            ("running_mean", -0.3, 0.3),
            ("running_var", 0.5, 1.5),
        ):
            values = torch.rand(channels, generator=self.random) * (high - low) + low
            self.state[f"{name}.{leaf}"] = values.half()
        self.state[f"{name}.num_batches_tracked"] = torch.tensor(1234)

    def block(self, name: str, out: int, inputs: int, kernel: int = 1) -> None:
        """Convolution and batch norm as mmcv calls them."""
        self.conv(f"{name}.conv", out, inputs, kernel)
        self.norm(f"{name}.bn", out)

    def stages(self, names: Sequence[str], inputs: int, shortcut: int = 0) -> None:
        for stage, (name, count) in enumerate(zip(names, BLOCKS, strict=True)):
            width = 64 * 2**stage
            for i in range(count):
                part = f"{name}.{i}"
                shapes = ((width, inputs, 1), (width, width, 3), (4 * width, width, 1))
                for number, shape in enumerate(shapes, 1):
                    self.conv(f"{part}.conv{number}", *shape)
                    self.norm(f"{part}.bn{number}", shape[0], 0.3 if number == 3 else 1.0)
                if i == 0:
                    self.conv(f"{part}.downsample.{shortcut}", 4 * width, inputs)
                    self.norm(f"{part}.downsample.{shortcut + 1}", 4 * width)
                inputs = 4 * width


def conv(s: State, name: str, x: Tensor, **how: Any) -> Tensor:
    return F.conv2d(x, s[f"{name}.weight"], s.get(f"{name}.bias"), **how)


def norm(s: State, name: str, x: Tensor, eps: float = EPS) -> Tensor:
    leaves = (s[f"{name}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, *leaves, eps=eps)


def block(s: State, name: str, x: Tensor, activation: bool = True, eps: float = EPS) -> Tensor:
    """mmcv's convolution, batch norm, ReLU; of odd kernels that keep the size."""
    padding = s[f"{name}.conv.weight"].shape[-1] // 2
    x = norm(s, f"{name}.bn", conv(s, f"{name}.conv", x, padding=padding), eps)
    return F.relu(x) if activation else x


def deep_stem(
    s: State, names: Sequence[str], norms: Sequence[str], x: Tensor, eps: float
) -> Tensor:
    for i, (name, after) in enumerate(zip(names, norms, strict=True)):
        x = F.relu(norm(s, after, conv(s, name, x, stride=1 if i else 2, padding=1), eps))
    return F.max_pool2d(x, 3, 2, 1)


def stages(
    s: State,
    names: Sequence[str],
    x: Tensor,
    strides: Sequence[int] = (1, 2, 1, 1),
    dilations: Sequence[Sequence[int]] = ((1,) * 3, (1,) * 4, (1, 2, 2, 2, 2, 2), (2, 4, 4)),
    first_strides: bool = False,
    eps: float = EPS,
) -> list[Tensor]:
    """Bottlenecks with the stride in the 3×3 convolution, or in the first one."""
    found = []
    for name, count, step, rates in zip(names, BLOCKS, strides, dilations, strict=True):
        for i in range(count):
            part, stride = f"{name}.{i}", 1 if i else step
            one, three = (stride, 1) if first_strides else (1, stride)
            y = F.relu(norm(s, f"{part}.bn1", conv(s, f"{part}.conv1", x, stride=one), eps))
            y = conv(s, f"{part}.conv2", y, stride=three, padding=rates[i], dilation=rates[i])
            y = F.relu(norm(s, f"{part}.bn2", y, eps))
            y = norm(s, f"{part}.bn3", conv(s, f"{part}.conv3", y), eps)
            if i == 0:
                x = conv(s, f"{part}.downsample.0", x, stride=stride)
                x = norm(s, f"{part}.downsample.1", x, eps)
            x = F.relu(x + y)
        found.append(x)
    return found


def em(x: Tensor, bases: Tensor, iterations: int) -> Tensor:
    """x B,C,H,W rebuilt from bases 1,C,K after EMANet's iterations."""
    flat, mu = x.flatten(2), bases.expand(len(x), -1, -1)
    for _ in range(iterations):
        z = torch.softmax(flat.mT @ mu, 2)  # B,N,K
        mu = flat @ (z / z.sum(1, keepdim=True))
        mu = F.normalize(mu, dim=1)
    return (mu @ z.mT).view_as(x)


def emanet_checkpoint(width: int = 24, bases: int = 6, mixed: int = 256, classes: int = 5) -> State:
    """EMANet's own names, for a ResNet-50."""
    make = Maker(1)
    for i, shape in (("0", (64, 3)), ("3", (64, 64)), ("6", (128, 64))):
        make.conv(f"extractor.0.{i}", *shape, 3)
    make.norm("extractor.0.1", 64)
    make.norm("extractor.0.4", 64)
    make.norm("extractor.1", 128)
    make.stages([f"extractor.{i}" for i in range(4, 8)], 128)
    make.block("fc0", width, 2048, 3)
    make.state["emau.mu"] = F.normalize(torch.randn(1, width, bases, generator=make.random), dim=1)
    make.conv("emau.conv1", width, width, bias=True)
    make.conv("emau.conv2.0", width, width)
    make.norm("emau.conv2.1", width)
    make.block("fc1.0", mixed, width, 3)
    make.conv("fc2", classes, mixed, bias=True)
    return make.state


def emanet(s: State, images: Tensor, iterations: int = 3) -> Tensor:
    """Stride 8, multi-grid 1, 2, 4, logits up-sampled with align_corners."""
    x = deep_stem(
        s,
        [f"extractor.0.{i}" for i in (0, 3, 6)],
        ["extractor.0.1", "extractor.0.4", "extractor.1"],
        images,
        EPS,
    )
    dilations = ((1,) * 3, (1,) * 4, (1, 2, 2, 2, 2, 2), (2, 8, 16))
    x = stages(s, [f"extractor.{i}" for i in range(4, 8)], x, dilations=dilations)[-1]
    x = block(s, "fc0", x)
    y = F.relu(em(conv(s, "emau.conv1", x), s["emau.mu"], iterations))
    x = F.relu(x + norm(s, "emau.conv2.1", conv(s, "emau.conv2.0", y)))
    x = conv(s, "fc2", block(s, "fc1.0", x))
    return F.interpolate(x, images.shape[-2:], mode="bilinear", align_corners=True)


def mmseg_backbone(kind: str = "v1c") -> State:
    """A ResNet-50: v1c, v1d or one with the plain stem (v1)."""
    make = Maker(2)
    if kind == "v1":
        make.conv("backbone.conv1", 64, 3, 7)
        make.norm("backbone.bn1", 64)
    else:
        for i, shape in ((0, (32, 3)), (3, (32, 32)), (6, (64, 32))):
            make.conv(f"backbone.stem.{i}", *shape, 3)
            make.norm(f"backbone.stem.{i + 1}", shape[0])
    make.stages([f"backbone.layer{i}" for i in range(1, 5)], 64, int(kind == "v1d"))
    return make.state


def mmseg_head(kind: str, width: int = 24, classes: int = 5, concatenate: bool = True) -> State:
    make = Maker(3)
    head = "decode_head"
    mixed = 12 if kind == "ema" else width
    if kind == "ema":
        make.block(f"{head}.ema_in_conv", width, 2048, 3)
        make.conv(f"{head}.ema_mid_conv.conv", width, width, bias=True)
        bases = torch.randn(1, width, 6, generator=make.random)
        make.state[f"{head}.ema_module.bases"] = F.normalize(bases, dim=1)
        make.block(f"{head}.ema_out_conv", width, width)
        make.block(f"{head}.bottleneck", mixed, width, 3)
    elif kind in ("nl", "fcn"):
        make.block(f"{head}.convs.0", width, 2048, 3)
        make.block(f"{head}.convs.1", width, width, 3)
    elif kind == "psp":
        for i in range(4):
            make.block(f"{head}.psp_modules.{i}.1", 512, 2048)
        make.block(f"{head}.bottleneck", width, 4096, 3)
    elif kind == "da":
        for branch in ("pam", "cam"):
            make.block(f"{head}.{branch}_in_conv", width, 2048, 3)
            make.block(f"{head}.{branch}_out_conv", width, width, 3)
            make.state[f"{head}.{branch}.gamma.scale"] = torch.tensor(0.7)
            make.conv(f"{head}.{branch}_conv_seg", classes, width, bias=True)
        for part, out in (("query", width // 8), ("key", width // 8), ("value", width)):
            make.conv(f"{head}.pam.{part}_project", out, width, bias=True)
    if kind == "nl":
        for part in ("g", "theta", "phi"):
            make.conv(f"{head}.nl_block.{part}.conv", width // 2, width, bias=True)
        make.block(f"{head}.nl_block.conv_out", width, width // 2)
    if kind in ("ema", "nl", "fcn") and concatenate:
        make.block(f"{head}.conv_cat", mixed, 2048 + mixed, 3)
    make.conv(f"{head}.conv_seg", classes, mixed, bias=True)
    make.block("auxiliary_head.convs.0", 256, 1024, 3)
    make.conv("auxiliary_head.conv_seg", classes, 256, bias=True)
    return make.state


def mmseg_features(s: State, images: Tensor, eps: float = EPS, **how: Any) -> list[Tensor]:
    if "backbone.stem.0.weight" in s:
        names = [f"backbone.stem.{i}" for i in (0, 3, 6)]
        norms = [f"backbone.stem.{i}" for i in (1, 4, 7)]
        x = deep_stem(s, names, norms, images, eps)
    else:
        x = conv(s, "backbone.conv1", images, stride=2, padding=3)
        x = F.max_pool2d(F.relu(norm(s, "backbone.bn1", x, eps)), 3, 2, 1)
    return stages(s, [f"backbone.layer{i}" for i in range(1, 5)], x, eps=eps, **how)


def _ema(s: State, x: Tensor, corners: bool, eps: float) -> Tensor:
    y = block(s, "decode_head.ema_in_conv", x, eps=eps)
    z = conv(s, "decode_head.ema_mid_conv.conv", y)
    z = F.relu(em(z, s["decode_head.ema_module.bases"], 3))
    y = F.relu(y + block(s, "decode_head.ema_out_conv", z, False, eps))
    return block(s, "decode_head.bottleneck", y, eps=eps)


def _non_local(s: State, x: Tensor, corners: bool, eps: float) -> Tensor:
    x = block(s, "decode_head.convs.0", x, eps=eps)
    name = "decode_head.nl_block"
    g, theta, phi = (conv(s, f"{name}.{p}.conv", x).flatten(2) for p in ("g", "theta", "phi"))
    weights = torch.softmax(theta.mT @ phi / theta.shape[1] ** 0.5, -1)  # B,N,N
    y = (weights @ g.mT).mT.unflatten(2, x.shape[2:])
    x = x + block(s, f"{name}.conv_out", y, False, eps)
    return block(s, "decode_head.convs.1", x, eps=eps)


def _pyramid(s: State, x: Tensor, corners: bool, eps: float) -> Tensor:
    parts = [x]
    for i, size in enumerate((1, 2, 3, 6)):
        y = block(s, f"decode_head.psp_modules.{i}.1", F.adaptive_avg_pool2d(x, size), eps=eps)
        parts.append(F.interpolate(y, x.shape[2:], mode="bilinear", align_corners=corners))
    return block(s, "decode_head.bottleneck", torch.cat(parts, 1), eps=eps)


def _dual(s: State, x: Tensor, corners: bool, eps: float) -> Tensor:
    p = block(s, "decode_head.pam_in_conv", x, eps=eps)
    q, k, v = (
        conv(s, f"decode_head.pam.{n}_project", p).flatten(2) for n in ("query", "key", "value")
    )
    y = (v @ torch.softmax(q.mT @ k, -1).mT).view_as(p)
    p = block(s, "decode_head.pam_out_conv", s["decode_head.pam.gamma.scale"] * y + p, eps=eps)
    c = block(s, "decode_head.cam_in_conv", x, eps=eps)
    flat = c.flatten(2)
    energy = flat @ flat.mT
    energy = energy.max(-1, keepdim=True).values - energy
    y = (torch.softmax(energy, -1) @ flat).view_as(c)
    c = block(s, "decode_head.cam_out_conv", s["decode_head.cam.gamma.scale"] * y + c, eps=eps)
    return p + c


def _plain(s: State, x: Tensor, corners: bool, eps: float) -> Tensor:
    return block(s, "decode_head.convs.1", block(s, "decode_head.convs.0", x, eps=eps), eps=eps)


HEADS: dict[str, Callable[[State, Tensor, bool, float], Tensor]] = {
    "ema": _ema,
    "nl": _non_local,
    "psp": _pyramid,
    "da": _dual,
    "fcn": _plain,
}


def mmseg(
    s: State, images: Tensor, kind: str, corners: bool, eps: float = EPS, **how: Any
) -> tuple[Tensor, Tensor]:
    """Logits at the images' size, and those of the auxiliary head."""
    features = mmseg_features(s, images, eps, **how)
    x = HEADS[kind](s, features[-1], corners, eps)
    if "decode_head.conv_cat.conv.weight" in s:
        x = block(s, "decode_head.conv_cat", torch.cat([features[-1], x], 1), eps=eps)
    x = conv(s, "decode_head.conv_seg", x)
    second = block(s, "auxiliary_head.convs.0", features[-2], eps=eps)
    found = (x, conv(s, "auxiliary_head.conv_seg", second))
    size = images.shape[-2:]
    one, two = (F.interpolate(y, size, mode="bilinear", align_corners=corners) for y in found)
    return one, two


def settings(corners: bool = False, backbone: str = "", head: str = "", rest: str = "") -> str:
    """The text of a configuration as mmsegmentation saves it."""
    return f"""
norm_cfg = dict(type='SyncBN', requires_grad=True)
{rest}
model = dict(
    type='EncoderDecoder',
    pretrained='open-mmlab://resnet50_v1c',
    backbone=dict(
        type='ResNetV1c', depth=50, num_stages=4, out_indices=(0, 1, 2, 3), style='pytorch',
        **{{}}, {backbone or "dilations=(1, 1, 2, 4), strides=(1, 2, 1, 1),"}
        norm_cfg=norm_cfg, norm_eval=False, contract_dilation=True),
    decode_head=dict(
        type='Head', in_channels=2048, in_index=3, num_classes=5, {head}
        norm_cfg=dict(type='SyncBN', requires_grad=True), align_corners={corners},
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    test_cfg=dict(mode='whole'))
log_config = dict(interval=50, hooks=[dict(type='TextLoggerHook', by_epoch=False)])
checkpoint_config = make_something(1, 2)
work_dir = './work_dirs/' + 'run'
"""
