"""mIoU and its kin against cases worked out by hand and against torchmetrics."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from hemnet.data import VOID
from hemnet.inference.metrics import (
    Evaluation,
    ImageScore,
    class_iou,
    confusion_matrix,
    subset_miou,
)

NAMES = ("sky", "road", "tree", "car")


def test_a_case_by_hand() -> None:
    labels = torch.tensor([[0, 0, 1], [1, 2, VOID]])
    found = torch.tensor([[0, 1, 1], [1, 0, 2]])
    matrix = confusion_matrix(labels, found, 4)
    expected = torch.zeros(4, 4, dtype=torch.int64)
    expected[0, 0] = expected[0, 1] = expected[2, 0] = 1
    expected[1, 1] = 2
    assert matrix.dtype == torch.int64
    assert torch.equal(matrix, expected)
    result = Evaluation(matrix, NAMES)
    # sky: 1 right of {1 missed, 1 false}; road: 2 of {1 false}; tree: 0 of 1; car: nowhere.
    assert result.iou == {
        "sky": pytest.approx(100 / 3),
        "road": pytest.approx(200 / 3),
        "tree": 0.0,
        "car": None,
    }
    assert result.miou == pytest.approx(100 / 3)
    assert result.pixel_accuracy == pytest.approx(60.0)
    assert subset_miou(result, [0, 1]) == pytest.approx(50.0)


def test_a_class_only_predicted_counts_as_zero() -> None:
    matrix = confusion_matrix(torch.zeros(4).long(), torch.tensor([0, 0, 0, 3]), 4)
    assert Evaluation(matrix, NAMES).miou == pytest.approx((75 + 0) / 2)


def test_perfect_and_hopeless() -> None:
    labels = torch.arange(4).repeat(3)
    assert Evaluation(confusion_matrix(labels, labels, 4), NAMES).miou == 100
    assert Evaluation(confusion_matrix(labels, labels.roll(1), 4), NAMES).miou == 0


def test_a_sum_of_matrices_is_not_a_mean_of_scores() -> None:
    """One image with 10 pixels right and one with 1 wrong: 10 of 11, not the mean of 100 and 0."""
    right = confusion_matrix(torch.zeros(10).long(), torch.zeros(10).long(), 2)
    wrong = confusion_matrix(torch.zeros(1).long(), torch.ones(1).long(), 2)
    assert class_iou(right + wrong)[0] == pytest.approx(100 * 10 / 11)


@given(
    st.integers(2, 9),
    st.integers(1, 60),
    st.integers(0, 2**31),
    st.floats(0, 1),
)
def test_equals_torchmetrics(classes: int, pixels: int, seed: int, void: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (pixels,), generator=generator)
    found = torch.randint(0, classes, (pixels,), generator=generator)
    labels[1:][torch.rand(pixels - 1, generator=generator) < void] = VOID  # one stays
    result = Evaluation(confusion_matrix(labels, found, classes), tuple(map(str, range(classes))))
    # Not torchmetrics.segmentation.MeanIoU, which averages over images.
    reference = MulticlassJaccardIndex(
        classes, average="none", ignore_index=VOID, zero_division=math.nan
    )
    expected = 100 * reference(found, labels)
    mine = torch.tensor([math.nan if v is None else v for v in result.iou.values()])
    torch.testing.assert_close(mine, expected, equal_nan=True)
    assert result.miou == pytest.approx(float(expected.nanmean()), abs=1e-4)
    micro = MulticlassAccuracy(classes, average="micro", ignore_index=VOID)
    assert result.pixel_accuracy == pytest.approx(100 * float(micro(found, labels)), abs=1e-4)


def test_json_holds_what_was_promised() -> None:
    matrix = torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    content = json.loads(json.dumps(Evaluation(matrix, NAMES[:3]).to_json()))
    assert content["confusion"] == matrix.tolist()
    assert content["iou"] == {"sky": 75.0, "road": 80.0, "tree": None}
    assert content["miou"] == pytest.approx(77.5)
    assert content["pixel_accuracy"] == 87.5


def test_images_from_worst_to_best() -> None:
    scores = (ImageScore("b", 50.0), ImageScore("void", math.nan), ImageScore("a", 10.0))
    ranked = Evaluation(torch.eye(2).long(), NAMES[:2], scores).ranked()
    assert [image.id for image in ranked] == ["a", "b"]


@pytest.mark.parametrize(
    ("labels", "found", "message"),
    [
        ([0, 4], [0, 0], "label lies outside 0 … 3"),
        ([0, 1], [0, 9], "prediction lies outside 0 … 3"),
        ([0, 1], [0], "expected the same"),
    ],
)
def test_refuses(labels: list[int], found: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        confusion_matrix(torch.tensor(labels), torch.tensor(found), 4)
