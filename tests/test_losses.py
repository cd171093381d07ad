"""Losses: what they are, that batches may be split, and that they train."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import hemnet
from hemnet.data.class_frequency import ClassFrequency, balanced_weights
from hemnet.data.labels import VOID
from hemnet.errors import UserError
from hemnet.training.config import LOSSES, LossConfig, check_config
from hemnet.training.config_parser import read_config
from hemnet.training.loss import PIXELS, SegmentationLoss
from hemnet.training.region_losses import REGIONS, dice, lovasz

TERMS = [
    {"dice": 1.0},
    {"lovasz": 1.0},
    {"focal": 1.0},
    {"cross_entropy": 0.7, "dice": 1.5},
    {"focal": 1.0, "lovasz": 0.5},
]


def batch(classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(3, classes, 7, 9)
    masks = torch.randint(0, classes, (3, 7, 9))
    masks[0, :3] = VOID
    masks[1, :, :4] = 2
    return logits, masks


def test_every_named_loss_is_there() -> None:
    assert {*LOSSES} == {*PIXELS, *REGIONS}


def test_dice_and_lovasz_are_their_definitions() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    right = F.one_hot(labels, 4).T.double()
    for loss in (dice, lovasz):
        assert float(loss(right, labels)) == pytest.approx(0)
    # Hard predictions: Dice from its counts, and Lovász is the mean of 1 − IoU.
    guess = F.one_hot(torch.tensor([0, 0, 1, 1, 2, 2]), 4).T.double()
    assert float(dice(guess, labels)) == pytest.approx(1 - (4 / 5 + 2 / 4 + 2 / 3) / 3)
    assert float(lovasz(guess, labels)) == pytest.approx(1 - (2 / 3 + 1 / 3 + 1 / 2) / 3)
    weights = torch.tensor([1.0, 3.0, 0.0, 9.0], dtype=torch.double)
    assert float(dice(guess, labels, weights)) == pytest.approx((1 / 5 + 3 * 2 / 4) / 4)


@pytest.mark.parametrize("loss", [dice, lovasz])
def test_gradients_of_regions(loss: object) -> None:
    labels = torch.tensor([0, 1, 1, 2, 0, 2, 2])
    logits = torch.randn(3, 7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: loss(x.softmax(0), labels), logits)


def test_focal_is_its_definition_and_without_gamma_cross_entropy() -> None:
    logits, masks = batch()
    weights = [1.0, 2.0, 0.5, 3.0]
    plain = SegmentationLoss(LossConfig(class_weights=weights), 4)
    same = SegmentationLoss(
        LossConfig(terms={"focal": 1.0}, focal_gamma=0.0, class_weights=weights), 4
    )
    torch.testing.assert_close(same(logits, masks), plain(logits, masks))
    focal = SegmentationLoss(LossConfig(terms={"focal": 1.0}, focal_gamma=2.0), 4)
    known = masks != VOID
    p = logits.softmax(1).gather(1, torch.where(known, masks, 0)[:, None])[:, 0][known]
    torch.testing.assert_close(focal(logits, masks), ((1 - p) ** 2 * -p.log()).sum())


def test_focal_has_a_finite_gradient_where_the_network_is_sure() -> None:
    logits = torch.tensor([[[[200.0]], [[0.0]]]], requires_grad=True)
    loss = SegmentationLoss(LossConfig(terms={"focal": 1.0}, focal_gamma=0.5), 2)
    loss(logits, torch.zeros(1, 1, 1, dtype=torch.long)).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("extra", [{}, {"ohem": 0.5}, {"mean_over": "all"}, {"weights": True}])
def test_parts_of_a_batch_add_up_to_the_whole(terms: dict, extra: dict) -> None:
    extra = dict(extra)
    weights = [1.0, 2.0, 0.5, 3.0] if extra.pop("weights", False) else None
    loss = SegmentationLoss(LossConfig(terms=terms, class_weights=weights, **extra), 4)
    logits, masks = batch()
    whole = loss(logits, masks) / loss.total(masks)
    total = loss.total(masks[:1]) + loss.total(masks[1:])
    parts = (loss(logits[:1], masks[:1]) + loss(logits[1:], masks[1:])) / total
    torch.testing.assert_close(whole, parts)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_an_image_without_labels_gives_no_gradient(terms: dict) -> None:
    loss = SegmentationLoss(LossConfig(terms=terms), 4)
    logits = torch.randn(1, 4, 5, 5, requires_grad=True)
    loss(logits, torch.full((1, 5, 5), VOID)).backward()
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_learns_a_thin_class(name: str) -> None:
    """2% of the pixels: the logits of a linear layer are driven to the labels by every loss."""
    rng = torch.Generator().manual_seed(0)
    masks = (torch.rand(4, 16, 16, generator=rng) < 0.02).long()
    inputs = masks[:, None] * 2.0 - 1 + 0.3 * torch.randn(4, 1, 16, 16, generator=rng)
    layer = torch.nn.Conv2d(1, 2, 1)
    loss = SegmentationLoss(LossConfig(terms={name: 1.0}), 2)
    optimizer = torch.optim.Adam(layer.parameters(), 0.1)
    for _ in range(80):
        optimizer.zero_grad()
        (loss(layer(inputs), masks) / loss.total(masks)).backward()
        optimizer.step()
    found = layer(inputs).argmax(1)
    iou = float(((found == 1) & (masks == 1)).sum() / ((found == 1) | (masks == 1)).sum())
    assert iou > 0.9


def test_terms_from_file_and_flags(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text("loss: {terms: {dice: 1}}\n")
    assert read_config(tmp_path / "a.yaml").loss.terms == {"dice": 1.0}
    assert read_config().loss.terms == {"cross_entropy": 1.0}
    found = read_config(tmp_path / "a.yaml", ["--loss.terms.lovasz", "0.5"]).loss.terms
    assert found == {"dice": 1.0, "lovasz": 0.5}
    flags = ["--loss.terms", "{cross_entropy: 1, dice: 0.5}"]
    assert read_config(None, flags).loss.terms == {"cross_entropy": 1.0, "dice": 0.5}
    for bad, said in (
        ({"dise": 1.0}, "no loss 'dise'; choose from cross_entropy, focal, dice, lovasz"),
        ({"dice": -1.0}, "weights from 0"),
        ({"dice": 0.0}, "one of them above 0"),
        ({}, "one of them above 0"),
    ):
        config = read_config()
        config.loss.terms = bad
        with pytest.raises(UserError, match=said):
            check_config(config)


def test_balanced_weights_grow_as_classes_get_rare() -> None:
    found = ClassFrequency(np.array([9800, 180, 20, 0]), 0, 1, (100,), (100,))
    weights = balanced_weights(found)
    assert weights[0] < weights[1] < weights[2] == weights[3]
    assert weights[2] / weights[0] == pytest.approx(10, rel=1e-3)
    assert weights[1] / weights[0] == pytest.approx(math.sqrt(9800 / 180), rel=1e-3)
    assert float(np.dot(weights, found.shares)) == pytest.approx(1, abs=1e-3)


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
def test_parts_of_a_batch_add_up_to_the_whole_with_hard_examples(config: LossConfig) -> None:
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


def test_an_image_without_labels_counts_nothing_with_hard_examples() -> None:
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


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 0.0, 3.0]])
@pytest.mark.parametrize("ohem", [None, 0.3, 0.9])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_average_over_all_pixels_counts_void_as_zero(
    weights: list[float] | None, ohem: float | None, stride: int
) -> None:
    masks = masks_with_void()
    few = masks[:, ::stride, ::stride]
    logits = torch.randn(4, 5, *few.shape[1:])
    config = LossConfig(class_weights=weights, ohem=ohem, stride=stride, mean_over="all")
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
