"""Logits lie on the pixels that their features are centred on: every family, stride and size."""

from __future__ import annotations

from functools import cache

import pytest
import timm
import torch
from torch import Tensor, nn

import hemnet
from hemnet.models.registry import head_options
from hemnet.nn.backbone import Backbone
from hemnet.nn.geometry import Placement, downsample, symmetric_padding, upsample

# How far a feature's centre may lie from the assumed one, in strides. Between the 2×2 average of
# a shortcut and the 3×3 convolution beside it, and among the four patches that Swin merges, the
# weights decide where the middle is; HRNet enlarges its branches by repeating pixels, so that the
# centre of what it joins depends on the place.
FAMILIES: dict[str, tuple[str, tuple[int, ...], float]] = {
    "ResNet": ("resnet18", (8, 16, 32), 0.01),
    "ResNet-D": ("resnet10t", (8, 16, 32), 0.35),
    "ResNet with deep stem": ("resnet50s", (8, 16, 32), 0.01),
    "ResNet with blur pooling": ("resnetblur18", (8, 16, 32), 0.01),
    "ConvNeXt": ("test_convnext", (8, 16, 32), 0.01),
    "EfficientNet": ("test_efficientnet", (8, 16, 32), 0.01),
    "EfficientNet-Lite, TensorFlow": ("tf_efficientnet_lite0", (8, 16, 32), 0.01),
    "MobileNetV2": ("mobilenetv2_035", (8, 16, 32), 0.01),
    "MobileNetV3": ("mobilenetv3_small_050", (8, 16, 32), 0.01),
    "MobileNetV3, TensorFlow": ("tf_mobilenetv3_small_minimal_100", (8, 16, 32), 0.01),
    "RegNet": ("regnetx_002", (8, 16, 32), 0.01),
    "HRNet": ("hrnet_w18_small", (8, 16), 1.0),
    "ViT": ("test_vit", (16,), 0.01),
    "DenseNet": ("densenet121", (32,), 0.01),
}
CASES = [(family, stride) for family, (_, strides, _) in FAMILIES.items() for stride in strides]


@cache
def centred(name: str, stride: int) -> Backbone:
    """A backbone in which only the structure moves anything: each kernel is its middle.

    What remains of an odd kernel is its centre, of an even one the mean of its cells; maxima
    become means, and what looks at the whole image (squeeze and excitation, attention) is shut.
    Then ∂feature/∂image lies where padding, strides and dilations put the feature, and no border
    is near.
    """
    torch.manual_seed(0)
    backbone = Backbone(name, stride).eval()
    for module in list(backbone.modules()):
        for key, child in list(module.named_children()):
            if isinstance(child, nn.MaxPool2d):
                pool = nn.AvgPool2d(child.kernel_size, child.stride, child.padding, child.ceil_mode)
                setattr(module, key, pool)
    for key, module in backbone.named_modules():
        if isinstance(module, nn.Conv2d):
            out, inward, high, wide = module.weight.shape
            weight = torch.zeros_like(module.weight)
            each = (0.5 + torch.rand(out, inward, 1, 1)) / inward
            if high % 2:
                weight[:, :, high // 2 : high // 2 + 1, wide // 2 : wide // 2 + 1] = each
            else:
                weight[:] = each / (high * wide)
            shut = ".se." in f".{key}." or "squeeze" in key
            module.weight.data = 0 * weight if shut else weight
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
        elif key.endswith("attn.proj"):
            nn.init.zeros_(module.weight)
    return backbone.requires_grad_(False)


def centre_of(backbone: Backbone, size: tuple[int, int], place: tuple[int, int]) -> Tensor:
    """Row and column of the centre of mass of |∂feature/∂image| at a place."""
    generator = torch.Generator().manual_seed(3)
    image = 1e-6 * (1 + torch.rand(1, 3, *size, generator=generator))
    if "vit" in backbone.name or "convnext" in backbone.name:
        image = 1e6 * image  # far above what a layer norm adds to its variance
    image.requires_grad_()
    feature = backbone(image)[-1][0, :, place[0], place[1]]
    direction = torch.linspace(0.5, 1.5, len(feature))
    (gradient,) = torch.autograd.grad((feature * direction).sum(), image)
    mass = gradient[0].double().square().sum(0)
    assert mass.sum() > 0
    mass = mass / mass.sum()
    rows, columns = (torch.arange(n, dtype=torch.float64) for n in size)
    return torch.stack(((mass.sum(1) * rows).sum(), (mass.sum(0) * columns).sum()))


@pytest.mark.parametrize(("family", "stride"), CASES)
def test_features_are_centred_where_their_stride_and_offset_say(family: str, stride: int) -> None:
    name, _, slack = FAMILIES[family]
    backbone = centred(name, stride)
    offset = backbone.offsets[-1]
    step = max(1, stride // 16)
    cells = {8: 14, 16: 8, 32: 5}[stride]  # dilated kernels reach several cells
    row, column = cells // 2, cells // 2 + 1
    found = []
    for a in range(16):  # a row of each size and a column of each
        size = cells * stride + 1 + a * step, (cells + 2) * stride - a * step
        found.append(centre_of(backbone, size, (row, column)))
    centres = torch.stack(found)
    expected = torch.tensor([row * stride + offset, column * stride + offset])
    assert float((centres - expected).abs().max()) <= slack * stride + 0.5
    assert float((centres - centres[0]).abs().max()) < 0.5


@cache
def segmenter(name: str, stride: int) -> hemnet.Segmenter:
    return hemnet.create_model("fcn", 2, backbone=name, output_stride=stride, weights=None).eval()


@pytest.mark.parametrize(("family", "stride"), CASES)
def test_a_ramp_of_pixel_coordinates_comes_back_as_pixel_coordinates(
    family: str, stride: int
) -> None:
    model = segmenter(FAMILIES[family][0], stride)
    offset = model.backbone.offsets[-1]
    step = max(1, stride // 16)
    for a in range(0, 16):
        height, width = 2 * stride + 1 + a * step, 3 * stride + stride - a * step
        with torch.no_grad():
            h, w = model.backbone(torch.zeros(1, 3, height, width))[-1].shape[-2:]
        rows, columns = (torch.arange(n) * stride + offset for n in (h, w))
        ramps = torch.stack((rows[:, None].expand(h, w), columns.expand(h, w)))[None]
        for every in (1, 2, stride):
            large = model.upsample(ramps, (height, width), every)[0]
            at = [torch.arange(0, n, every).float() for n in (height, width)]
            wanted = [
                p.clamp(min=float(ends[0]), max=float(ends[-1]))
                for p, ends in zip(at, (rows, columns), strict=True)
            ]
            assert float((large[0] - wanted[0][:, None]).abs().max()) <= 0.5
            assert float((large[1] - wanted[1]).abs().max()) <= 0.5
        if offset == 0 and family != "HRNet":  # no pixel lies beyond the last feature
            assert rows[-1] >= height - 1
            assert columns[-1] >= width - 1


@pytest.mark.parametrize("every", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("name", ["resnet18", "resnet10t", "test_vit", "test_convnext"])
def test_every_nth_pixel_is_every_nth_of_all(name: str, every: int) -> None:
    model = segmenter(name, 16)
    x = torch.randn(1, 3, 45, 60)
    with torch.no_grad():
        torch.testing.assert_close(model(x, stride=every), model(x)[..., ::every, ::every])


@pytest.mark.parametrize("model", ["hemnet", "emanet", "fcn", "deeplabv3plus", "psanet", "pspnet"])
def test_at_sizes_of_whole_strides_plus_one_nothing_is_padded(model: str) -> None:
    network = hemnet.create_model(model, 3, backbone="resnet10t", output_stride=16, weights=None)
    network = network.eval()
    images = torch.randn(2, 3, 65, 49)
    assert network.backbone.mask(images) is None
    assert network.backbone.mask(images[..., :48]) is not None
    with torch.no_grad():
        features = network.backbone(images)
        plain = list(network.backbone.network(images))
        for ours, theirs in zip(features, plain, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "tf_mobilenetv3_small_minimal_100"])
@pytest.mark.parametrize("stride", [8, 16, 32])
def test_same_padding_is_symmetric_at_these_sizes_to_the_last_bit(name: str, stride: int) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(name, features_only=True, output_stride=stride).eval()
    ours = Backbone(name, stride).eval()
    ours.network.load_state_dict(theirs.state_dict())
    for size in ((65, 97), (129, 33)):
        image = torch.randn(1, 3, *size)
        with torch.no_grad():
            for a, b in zip(theirs(image), ours(image), strict=True):
                assert torch.equal(a, b)


def test_replacing_same_padding_keeps_weights_and_names() -> None:
    network = timm.create_model("tf_efficientnet_lite0", features_only=True)
    names, weight = list(network.state_dict()), network.conv_stem.weight
    symmetric_padding(network)
    assert list(network.state_dict()) == names
    assert network.conv_stem.weight is weight
    assert type(network.conv_stem) is nn.Conv2d


POOLING = [name for name in hemnet.list_models() if name != "fcn"]  # over the image
DECODED = [name for name in hemnet.list_models() if "decoder" in head_options(name)[0]]


@pytest.mark.parametrize(
    ("head", "options"),
    [(h, {}) for h in POOLING] + [(h, {"decoder": 8}) for h in DECODED],
)
def test_what_lies_on_padding_changes_no_logit_on_the_image(
    head: str, options: dict[str, int]
) -> None:
    """The features of padding are replaced by noise; heads of one pixel have no neighbours."""
    torch.manual_seed(1)
    model = hemnet.create_model(
        head, 3, backbone="resnet10t", output_stride=16, weights=None, channels=16, **options
    ).eval()
    for module in model.head.modules():  # without spatial kernels, only pooling can mix
        if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1):
            with torch.no_grad():
                centre = torch.zeros_like(module.weight)
                mid = module.kernel_size[0] // 2
                centre[:, :, mid, mid] = module.weight[:, :, mid, mid]
                module.weight.copy_(centre)
    images = torch.randn(2, 3, 60, 44)
    mask = model.backbone.mask(images)
    assert mask is not None
    with torch.no_grad():
        features = model.backbone(images)
        changed = list(features)
        noise = 3 * torch.randn_like(features[-1])
        changed[-1] = torch.where(mask[:, None], features[-1], noise)
        before, after = model.head(features, mask), model.head(changed, mask)
    level = getattr(model.head, "level", -1)
    rows, columns = mask[0].any(1).sum(), mask[0].any(0).sum()
    if level != -1:  # between the last features of the image and padding, detail is blended
        factor = 16 // model.backbone.strides[level]
        rows, columns = (rows - 1) * factor + 1, (columns - 1) * factor + 1
    elif head == "psanet":  # resized from every second position
        rows, columns = rows - 1, columns - 1
    torch.testing.assert_close(before[..., :rows, :columns], after[..., :rows, :columns])


@pytest.mark.parametrize("stride", [8, 16, 32])
@pytest.mark.parametrize(
    "name", ["resnet18", "resnet10t", "tf_efficientnet_lite0", "test_convnext"]
)
def test_a_decoder_joins_features_of_the_same_pixels(name: str, stride: int) -> None:
    """Both parts are replaced by the pixels that their features are centred on."""
    model = hemnet.create_model(
        "hemnet", 2, backbone=name, output_stride=stride, channels=16, decoder=8
    ).eval()
    head, backbone = model.head, model.backbone
    places = [Placement(s, o) for s, o in zip(backbone.strides, backbone.offsets, strict=True)]

    def ramp(level: int, features: list[Tensor]) -> Tensor:
        high, wide = features[level].shape[-2:]
        rows, columns = (torch.arange(n) * places[level].stride for n in (high, wide))
        both = torch.stack((rows[:, None].expand(high, wide), columns.expand(high, wide)))
        return both[None] + places[level].offset

    seen: list[Tensor] = []
    head.decode.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for size in ((4 * stride + 1, 5 * stride + 1), (3 * stride + 7, 97), (2 * stride, 90)):
        with torch.no_grad():
            features = backbone(torch.zeros(1, 3, *size))
            ours = ramp(-1, features).repeat(1, 128, 1, 1)
            theirs = ramp(head.level, features).repeat(1, 24, 1, 1)
            head.mix.forward = lambda _, value=ours: value
            head.detail.forward = lambda _, value=theirs: value
            logits = head(features)
        joined = seen.pop()
        assert logits.shape[-2:] == features[head.level].shape[-2:]
        first, last = ours[0, :2, 0, 0, None, None], ours[0, :2, -1, -1, None, None]
        wanted = theirs[0, :2].clamp(first, last)  # beyond the last feature there is only that one
        torch.testing.assert_close(joined[0, 256:258], theirs[0, :2])
        torch.testing.assert_close(joined[0, :2], wanted.float(), rtol=0, atol=1e-3)


def test_images_of_different_sizes_in_one_batch_answer_as_alone() -> None:
    """What is padded to the largest takes no part in EM: with a backbone that sees single
    pixels, an image gets the logits that it gets alone."""
    model = hemnet.create_model("hemnet", 3, backbone="resnet18", output_stride=16, weights=None)
    model.eval()
    unit = next(m for m in model.modules() if isinstance(m, hemnet.HighwayEMAttention))
    x = torch.randn(2, unit.channels, 5, 6)
    mask = torch.zeros(2, 5, 6, dtype=torch.bool)
    mask[0, :3, :4], mask[1] = True, True
    with torch.no_grad():
        both = unit(x, mask)
        torch.testing.assert_close(both[:1, :, :3, :4], unit(x[:1, :, :3, :4]))
        torch.testing.assert_close(both[1:], unit(x[1:]))
    images, valid = torch.randn(2, 3, 80, 96), torch.ones(2, 80, 96, dtype=torch.bool)
    valid[0, 48:], valid[0, :, 60:] = False, False
    found = model.backbone.mask(images, valid)
    assert found is not None
    assert found.shape == (2, 6, 7)
    assert found[0].sum() == 3 * 4
    assert found[1].sum() == 5 * 6
    assert model(images, valid=valid).shape == (2, 3, 80, 96)


def test_an_image_that_is_all_padding_gives_finite_logits() -> None:
    model = hemnet.create_model("hemnet", 3, backbone="resnet10t", output_stride=16, weights=None)
    valid = torch.zeros(2, 33, 33, dtype=torch.bool)
    valid[0] = True
    logits = model(torch.randn(2, 3, 33, 33), valid=valid)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("batch", [2, 5])
@pytest.mark.parametrize("size", [(47, 62), (33, 64), (1, 1)])
def test_an_images_logits_do_not_depend_on_its_batch(batch: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = hemnet.create_model("hemnet", 3, backbone="resnet10t", output_stride=8, weights=None)
    images = torch.randn(batch, 3, *size)
    model.eval()
    with torch.no_grad():
        alone = torch.cat([model(image[None]) for image in images])
        torch.testing.assert_close(model(images), alone, atol=1e-5, rtol=1e-4)


def test_thinning_out_keeps_a_ramp_and_enlarging_brings_it_back() -> None:
    ramp = torch.arange(33.0).view(1, 1, 33, 1).expand(1, 1, 33, 17)
    thin = downsample(ramp, 4)
    torch.testing.assert_close(thin[0, 0, 1:-1, 0], torch.arange(4.0, 29.0, 4))
    back = upsample(thin, (33, 17), 4)
    torch.testing.assert_close(back[0, 0, 4:29, 0], torch.arange(4.0, 29.0))


def test_pixels_and_nearest_are_inverse() -> None:
    for placement in (Placement(8, 0.0), Placement(16, 7.5), Placement(4, 5.0)):
        pixels = placement.pixels(5, 1000)
        assert [placement.nearest(int(p), 5) for p in pixels] == list(range(5))
        assert placement.nearest(-3, 5) == 0
        assert placement.nearest(10_000, 5) == 4
        assert placement.pixels(5, 20).max() <= 19
