"""Backbones: strides that are what was asked, multi-grid, v1 strides, torchvision's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.errors import UserError
from hemnet.nn.backbone import Backbone
from hemnet.nn.backbone_weights import load_weights
from support.backbones import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stride_is_the_one_asked_for(family: str) -> None:
    name, strides = FAMILIES[family]
    for stride in strides:
        backbone = Backbone(name, stride).eval()
        assert backbone.strides[-1] == stride
        for h, w in ((33, 47), (1, 1), (64, 97)):
            with torch.no_grad():
                features = backbone(torch.zeros(1, 3, h, w))
            assert [f.shape[1] for f in features] == backbone.channels
            for feature, s in zip(features, backbone.strides, strict=True):
                least = tuple(-(-side // s) for side in (h, w))  # every pixel has a feature near
                most = tuple(max(1, -(-(side - 1) // stride)) * stride // s + 2 for side in (h, w))
                for low, found, high in zip(least, feature.shape[-2:], most, strict=True):
                    assert low <= found <= high


@pytest.mark.parametrize(
    ("name", "stride", "message"),
    [
        ("swin_tiny_patch4_window7_224", 8, "cannot do output_stride 8: it does 32"),
        ("test_vit", 32, "cannot do output_stride 32: it does 16"),
        ("densenet121", 16, "cannot do output_stride 16: it does 32"),
        ("hiera_tiny_224", 32, "does not take images of any size"),
        ("coat_tiny", 32, "cannot give feature maps"),
        ("nothing_at_all", 32, "timm has no backbone"),
    ],
)
def test_what_a_backbone_cannot_do_is_said(name: str, stride: int, message: str) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=message):
        Backbone(name, stride)


@pytest.mark.parametrize(
    ("stride", "dilations"), [(8, (2, 8, 16)), (16, (1, 4, 8)), (32, (1, 2, 4))]
)
def test_multi_grid_multiplies_the_last_stages_dilations(
    stride: int, dilations: tuple[int, ...]
) -> None:
    with torch.device("meta"):
        paper, plain = Backbone("resnet50s", stride), Backbone("resnet50s", stride, None)
    assert paper.multi_grid == (1, 2, 4)
    assert tuple(block.conv2.dilation[0] for block in paper.network.layer4) == dilations
    last = {8: 4, 16: 2, 32: 1}[stride]
    assert [block.conv2.dilation[0] for block in plain.network.layer4][1:] == [last, last]
    with torch.device("meta"):
        assert Backbone("resnet50", stride).multi_grid is None
        assert Backbone("resnet18", stride, (1, 2)).multi_grid == (1, 2)


@pytest.mark.parametrize("grid", [(1, 2), (0, 1, 2), (1, 2, 2.5)])
def test_a_multi_grid_that_does_not_fit_is_refused(grid: tuple[int, ...]) -> None:
    with torch.device("meta"), pytest.raises(UserError, match="must be 3 positive whole numbers"):
        Backbone("resnet50", 8, grid)
    with torch.device("meta"), pytest.raises(UserError, match="multi_grid needs a ResNet"):
        Backbone("test_convnext", 8, (1, 2, 4))


def resnet_v1(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """ResNet-50 of the first paper, stride in the first convolution, from its state dict."""

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def norm(x: Tensor, name: str) -> Tensor:
        rest = [state[f"{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *rest)

    x = F.max_pool2d(norm(conv(x, "conv1", 2), "bn1").relu(), 3, 2, 1)
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for i in range(blocks):
            at, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            y = norm(conv(x, f"{at}.conv1", stride), f"{at}.bn1").relu()
            y = norm(conv(y, f"{at}.conv2"), f"{at}.bn2").relu()
            y = norm(conv(y, f"{at}.conv3"), f"{at}.bn3")
            if i == 0:
                x = norm(conv(x, f"{at}.downsample.0", stride), f"{at}.downsample.1")
            x = (x + y).relu()
    return x


def lively(model: nn.Module) -> nn.Module:
    """Batch norms with statistics that a mistake would show in."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
    return model.eval()


@pytest.fixture(scope="module")
def resnet50_state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return lively(torchvision.models.resnet50()).state_dict()


def test_a_v1_resnet_file_is_used_exactly(
    resnet50_state: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "v1.safetensors"
    save_file(resnet50_state, path)
    x = torch.randn(1, 3, 65, 97)
    expected = resnet_v1(resnet50_state, x)
    for v1 in (True, False):
        backbone = Backbone("resnet50", 32, resnet_v1=v1).eval()
        load_weights(backbone.network, path)
        with torch.no_grad():
            same = torch.allclose(backbone(x)[-1], expected, rtol=1e-4, atol=1e-4)
        assert same == v1


def test_v1_strides_keep_the_output_stride() -> None:
    with torch.device("meta"):
        for stride in (8, 16, 32):
            backbone = Backbone("resnet50", stride, resnet_v1=True).eval()
            assert backbone(torch.zeros(1, 3, 65, 65))[-1].shape[-1] == 64 // stride + 1


PATCHES = ("convnext", "swin", "vit")
TORCHVISION: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "resnet": (torchvision.models.resnet18, "resnet18", 32),
    "mobilenet_v2": (torchvision.models.mobilenet_v2, "mobilenetv2_100", 32),
    "mobilenet_v3": (torchvision.models.mobilenet_v3_small, "mobilenetv3_small_100", 32),
    "efficientnet": (torchvision.models.efficientnet_b0, "efficientnet_b0", 32),
    "convnext": (torchvision.models.convnext_tiny, "convnext_tiny", 32),
}


@pytest.mark.parametrize("family", TORCHVISION)
def test_torchvisions_names_give_torchvisions_features(family: str, tmp_path: Path) -> None:
    make, name, stride = TORCHVISION[family]
    theirs = lively(make())
    save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    backbone = Backbone(name, stride).eval()
    report = load_weights(backbone.network, tmp_path / "w.safetensors")
    assert not report.missing
    assert report.unused
    eps = {m.eps for m in theirs.modules() if isinstance(m, nn.BatchNorm2d)}
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = next(iter(eps))  # a constant of the network, not of its weights
    seen: list[Tensor] = []
    if family == "resnet":
        layer = theirs.layer4
    else:  # the last layer with the shape of the backbone's last feature
        layer = [m for m in theirs.features if _width(m) == backbone.channels[-1]][-1]
    layer.register_forward_hook(lambda _m, _i, out: seen.append(out))
    side = 64 if family in PATCHES else 65  # sizes that need no padding
    x = torch.randn(1, 3, side, side)
    with torch.no_grad():
        theirs(x)
        ours = backbone(x)[-1]
    assert torch.allclose(ours, seen[0], rtol=1e-3, atol=1e-4)


def _width(module: nn.Module) -> int:
    widths = [m.out_channels for m in module.modules() if isinstance(m, nn.Conv2d)]
    return widths[-1] if widths else 0
