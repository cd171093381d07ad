"""Losses beside cross-entropy: what they are, that batches may be split, and that they train."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hemnet.data.class_frequency import Survey, balanced_weights
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
@pytest.mark.parametrize("extra", [{}, {"ohem": 0.5}, {"average": "all"}, {"weights": True}])
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
    found = Survey(np.array([9800, 180, 20, 0]), 0, 1, (100,), (100,))
    weights = balanced_weights(found)
    assert weights[0] < weights[1] < weights[2] == weights[3]
    assert weights[2] / weights[0] == pytest.approx(10, rel=1e-3)
    assert weights[1] / weights[0] == pytest.approx(math.sqrt(9800 / 180), rel=1e-3)
    assert float(np.dot(weights, found.shares)) == pytest.approx(1, abs=1e-3)
