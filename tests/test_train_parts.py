"""The parts of training: parameter groups, schedule, loss, freezing, synchronised norms."""

import math

import pytest
import torch
from timm.layers.norm_act import SyncBatchNormAct
from torch import nn
from torch.nn import functional as F

import hemnet
from hemnet.data import VOID
from hemnet.errors import UserError
from hemnet.training.config import LossConfig, OptimConfig
from hemnet.training.loss import SegmentationLoss
from hemnet.training.optim import make_optimizer, parameter_groups, rate_at, set_rate
from hemnet.training.setup import (
    freeze_norm,
    freeze_stages,
    set_norm_momentum,
    start_from,
    synchronise_norms,
)


def small(backbone: str = "test_resnet", **options: object) -> hemnet.Segmenter:
    options = {"bases": 8, "gain": 0.3} | options
    return hemnet.create_model("hemnet", 5, backbone, 16, 16, **options)


def test_only_convolution_weights_decay_and_biases_have_twice_the_rate() -> None:
    model = small()
    kinds = {}
    for group in parameter_groups(model, OptimConfig(rate=0.01, weight_decay=1e-4, bias_rate=2)):
        for parameter in group["params"]:
            kinds[id(parameter)] = (group["weight_decay"], group["multiple"])
    assert len(kinds) == len(list(model.parameters()))
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            expected = (0.0, 1.0)
            if name == "bias":
                expected = (0.0, 2.0)
            elif isinstance(module, nn.Conv2d):
                expected = (1e-4, 1.0)
            assert kinds[id(parameter)] == expected, (type(module), name)


def test_head_rate_multiplies_everything_but_the_backbone() -> None:
    optimizer = make_optimizer(small(), OptimConfig(head_rate=10))
    set_rate(optimizer, 0.5)
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates["backbone weights"] == 0.5
    assert rates["backbone bias"] == 1.0
    assert rates["head weights"] == 5.0
    assert rates["head bias"] == 10.0


def test_poly_schedule_with_warm_up() -> None:
    config = OptimConfig(steps=100, rate=1.0, power=0.9, warmup=10)
    assert rate_at(0, config) == pytest.approx(0.1)
    assert rate_at(5, config) == pytest.approx(0.55 * 0.95**0.9)
    assert rate_at(50, config) == pytest.approx(0.5**0.9)
    assert rate_at(99, config) == pytest.approx(0.01**0.9)
    assert rate_at(99, OptimConfig(steps=100, rate=1.0, power=0)) == 1.0


def masks_with_void() -> torch.Tensor:
    masks = torch.randint(0, 5, (4, 6, 7))
    masks[0, :4] = VOID
    masks[1] = VOID
    return masks


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 0.0, 3.0]])
def test_loss_is_torchs_mean_over_known_pixels(weights: list[float] | None) -> None:
    logits, masks = torch.randn(4, 5, 6, 7), masks_with_void()
    loss = SegmentationLoss(LossConfig(class_weights=weights), 5)
    given = None if weights is None else torch.tensor(weights)
    expected = F.cross_entropy(logits, masks, given, ignore_index=VOID)
    torch.testing.assert_close(loss(logits, masks) / loss.total(masks), expected, check_dtype=False)


@pytest.mark.parametrize("config", [LossConfig(), LossConfig(ohem=0.3)])
def test_parts_of_a_batch_add_up_to_the_whole(config: LossConfig) -> None:
    logits, masks = torch.randn(4, 5, 6, 7), masks_with_void()
    loss = SegmentationLoss(config, 5)
    whole = loss(logits, masks) / loss.total(masks)
    total = loss.total(masks[:1]) + loss.total(masks[1:])
    parts = (loss(logits[:1], masks[:1]) + loss(logits[1:], masks[1:])) / total
    torch.testing.assert_close(whole, parts)


def test_ohem_keeps_the_hardest_pixels() -> None:
    logits, masks = torch.randn(1, 5, 4, 5), torch.randint(0, 5, (1, 4, 5))
    losses = F.cross_entropy(logits, masks, reduction="none").flatten().sort(descending=True)
    loss = SegmentationLoss(LossConfig(ohem=0.25), 5)
    assert float(loss.total(masks)) == 5
    torch.testing.assert_close(loss(logits, masks), losses.values[:5].sum())


def test_an_image_without_labels_gives_no_gradient() -> None:
    masks = torch.full((1, 4, 4), VOID)
    for config in (LossConfig(), LossConfig(ohem=0.5)):
        logits = torch.randn(1, 5, 4, 4, requires_grad=True)
        loss = SegmentationLoss(config, 5)
        loss(logits, masks).backward()
        assert float(loss.total(masks)) == 0
        assert not logits.grad.any()


def test_auxiliary_loss() -> None:
    model = hemnet.create_model("fcn", 5, "test_resnet", 16, auxiliary=True).eval()
    images, masks = torch.randn(2, 3, 32, 32), torch.randint(0, 5, (2, 32, 32))
    first, second = model(images, auxiliary=True)
    loss = SegmentationLoss(LossConfig(auxiliary=0.4), 5)
    expected = loss(first, masks) + 0.4 * loss(second, masks)
    torch.testing.assert_close(loss.of(model, images, masks), expected)


def test_a_strided_loss_is_that_of_every_so_many_th_pixel() -> None:
    model = hemnet.create_model("fcn", 5, "test_resnet", 16, auxiliary=True).eval()
    images, masks = torch.randn(2, 3, 33, 49), torch.randint(0, 5, (2, 33, 49))
    masks[0, :9] = VOID
    loss = SegmentationLoss(LossConfig(auxiliary=0.4, stride=4), 5)
    whole = SegmentationLoss(LossConfig(auxiliary=0.4), 5)
    few = masks[:, ::4, ::4]
    first, second = (logits[..., ::4, ::4] for logits in model(images, auxiliary=True))
    expected = whole(first, few) + 0.4 * whole(second, few)
    torch.testing.assert_close(loss.of(model, images, masks), expected)
    assert loss.total(masks) == (few != VOID).sum()
    assert model(images, stride=4).shape == (2, 5, 9, 13)


def test_class_weights_must_match_the_classes() -> None:
    with pytest.raises(UserError, match="has 2 numbers, but the data has 5"):
        SegmentationLoss(LossConfig(class_weights=[1.0, 1.0]), 5)


def test_frozen_stages_stay_and_the_rest_trains() -> None:
    model = small("resnet18").train()
    freeze_stages(model, 2)  # stem and layer1
    frozen = {n.split(".")[2] for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"conv1", "bn1", "layer1"}
    assert not model.backbone.network.bn1.training
    assert model.backbone.network.layer2[0].bn1.training
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = make_optimizer(model, OptimConfig(rate=0.1))
    set_rate(optimizer, 0.1)
    model(torch.randn(2, 3, 64, 64)).square().mean().backward()
    optimizer.step()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert not any((".bn1." in k and "layer" not in k) or "layer1" in k for k in changed)
    assert "backbone.network.layer2.0.conv1.weight" in changed
    with pytest.raises(UserError, match="has 5 stages"):
        freeze_stages(model, 9)


def test_frozen_norms_do_not_move() -> None:
    model = small().train()
    freeze_norm(model)
    before = {k: v.clone() for k, v in model.state_dict().items() if "running" in k}
    model(torch.randn(2, 3, 32, 32))
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(p.requires_grad for m in norms for p in m.parameters())


@pytest.mark.parametrize("backbone", ["test_resnet", "tf_efficientnet_lite0"])
def test_synchronised_norms_by_type(backbone: str) -> None:
    model = small(backbone).train()
    freeze_stages(model, 1)
    keys, modes = list(model.state_dict()), [m.training for m in model.modules()]
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    images = torch.randn(1, 3, 32, 32)
    expected = model.eval()(images)
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    converted = synchronise_norms(model)
    found = [m for m in converted.modules() if isinstance(m, nn.SyncBatchNorm)]
    assert len(found) == norms
    assert not any(isinstance(m, nn.BatchNorm2d) for m in converted.modules())
    if backbone == "tf_efficientnet_lite0":  # whose norms contain their activations
        assert any(isinstance(m, SyncBatchNormAct) for m in found)
    assert list(converted.state_dict()) == keys
    assert [m.training for m in converted.modules()] == modes
    torch.testing.assert_close(converted.eval()(images), expected)


def test_start_from_a_model_with_other_classes(tmp_path, caplog) -> None:
    first = small()
    first.save_pretrained(tmp_path / "run" / "model")
    second = hemnet.create_model("hemnet", 7, "test_resnet", 16, 16, bases=8)
    start_from(second, str(tmp_path / "run"))
    assert torch.equal(second.head.attention.bases.value, first.head.attention.bases.value)
    assert "head.classifier.1.weight" in caplog.text
    other = hemnet.create_model("hemnet", 5, "resnet18", 16, 16, bases=8)
    with pytest.raises(UserError, match="does not fit this resnet18"):
        start_from(other, str(tmp_path / "run"))


def test_start_from_a_model_whose_gain_is_learned_at_another_rate(tmp_path) -> None:
    """What the unit adds is taken over, not the number that stands for it."""
    first = small(gain=0.4, gain_rate=1)
    first.save_pretrained(tmp_path)
    second = small(gain_rate=8)
    start_from(second, str(tmp_path))
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(second.eval()(images), first.eval()(images))


@pytest.mark.parametrize("backbone", ["test_resnet", "tf_efficientnet_lite0"])
def test_norm_momentum_reaches_every_norm_and_outlives_synchronisation(backbone: str) -> None:
    model = small(backbone).train()
    set_norm_momentum(model, 3e-4)
    model = synchronise_norms(model)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(norm.momentum == 3e-4 for norm in norms)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 0.0, 3.0]])
@pytest.mark.parametrize("ohem", [None, 0.3, 0.9])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_average_over_all_pixels_counts_void_as_zero(
    weights: list[float] | None, ohem: float | None, stride: int
) -> None:
    masks = masks_with_void()
    few = masks[:, ::stride, ::stride]
    logits = torch.randn(4, 5, *few.shape[1:])
    config = LossConfig(class_weights=weights, ohem=ohem, stride=stride, average="all")
    loss = SegmentationLoss(config, 5)
    given = None if weights is None else torch.tensor(weights)
    losses = F.cross_entropy(logits, few, given, ignore_index=VOID, reduction="none").flatten(1)
    count = losses.shape[1] if ohem is None else math.ceil(ohem * losses.shape[1])
    expected = losses.sort(1, descending=True).values[:, :count].mean()
    found = loss(logits, masks) / loss.total(masks)
    torch.testing.assert_close(found, expected, check_dtype=False)
    total = loss.total(masks[:1]) + loss.total(masks[1:])
    parts = (loss(logits[:1], masks[:1]) + loss(logits[1:], masks[1:])) / total
    torch.testing.assert_close(parts, found)
