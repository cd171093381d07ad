"""Scales, flips, windows and iterations of evaluation."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import hemnet
from hemnet.errors import UserError
from hemnet.inference.options import InferenceOptions
from hemnet.inference.probabilities import (
    em_iterations,
    predict_classes,
    predict_probabilities,
    window_starts,
)


class Pointwise(nn.Module):
    """Sees single pixels, so that windows and flips cannot change what it says; counts sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(tuple(images.shape[-2:]))
        return self.layer(images)


class Leaning(nn.Module):
    """Says class 0 on the left half, class 1 on the right, whatever it sees."""

    def forward(self, images: Tensor) -> Tensor:
        ramp = torch.linspace(-4, 4, images.shape[-1]).expand_as(images[:, 0])
        return torch.stack((-ramp, ramp), 1)


@pytest.mark.parametrize("size", [(40, 56), (16, 16), (7, 90), (1, 1)])
@pytest.mark.parametrize("overlap", [0.0, 1 / 3, 0.9])
def test_windows_of_a_pointwise_model_change_nothing(size: tuple[int, int], overlap: float) -> None:
    model, images = Pointwise(), torch.randn(2, 3, *size)
    options = InferenceOptions(window=(16, 24), overlap=overlap, flip=True)
    expected = model(images).softmax(1)
    torch.testing.assert_close(predict_probabilities(model, images, options), expected)
    assert all(h <= 16 and w <= 24 for h, w in model.seen[1:])


@given(st.integers(1, 300), st.integers(1, 100), st.floats(0, 0.95))
def test_windows_cover_everything_and_overlap(length: int, window: int, overlap: float) -> None:
    window = min(window, length)
    starts = window_starts(length, window, overlap)
    assert starts[0] == 0
    assert starts[-1] == length - window
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert all(0 < gap <= max(1, window * (1 - overlap) + 1) for gap in gaps)
    assert all(gap <= window for gap in gaps)  # no pixel between two windows


def test_a_window_counts_most_in_its_middle() -> None:
    """Two windows disagree where they overlap; the nearer to its middle wins."""
    options = InferenceOptions(window=8, overlap=0.5)
    found = predict_classes(Leaning(), torch.zeros(1, 3, 8, 12), options)[0, 0]
    assert found.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1]


def test_flip_averages_probabilities_of_the_mirrored_image() -> None:
    images = torch.zeros(1, 3, 4, 10)
    found = predict_probabilities(Leaning(), images, InferenceOptions(flip=True))
    torch.testing.assert_close(found, torch.full_like(found, 0.5))


def test_scales_are_averaged_as_probabilities() -> None:
    model, images = Pointwise(), torch.randn(1, 3, 20, 30)
    found = predict_probabilities(model, images, InferenceOptions(scales=(0.5, 1.0)))
    assert model.seen == [(10, 15), (20, 30)]
    small = F.interpolate(images, (10, 15), mode="bilinear", antialias=True)
    half = F.interpolate(model(small).softmax(1), (20, 30), mode="bilinear")
    torch.testing.assert_close(found, (half + model(images).softmax(1)) / 2)
    torch.testing.assert_close(found.sum(1), torch.ones(1, 20, 30))


def test_a_tiny_image_at_a_tiny_scale_keeps_a_pixel() -> None:
    model = Pointwise()
    found = predict_classes(model, torch.randn(1, 3, 2, 3), InferenceOptions(scales=(0.1,)))
    assert model.seen == [(1, 1)]
    assert found.shape == (1, 2, 3)


def test_plain_look_is_the_argmax() -> None:
    model, images = Pointwise(), torch.randn(2, 3, 9, 11)
    assert torch.equal(predict_classes(model, images, InferenceOptions()), model(images).argmax(1))


def test_iterations_of_the_unit() -> None:
    model = hemnet.create_model(
        "hemnet", 3, "test_resnet", 16, channels=8, bases=4, eval_iterations=2, zero_init=False
    ).eval()
    images = torch.randn(1, 3, 32, 32)
    before = model(images)
    with em_iterations(model, 7):
        assert model.head.attention.eval_iterations == 7
        assert not torch.equal(model(images), before)
    with em_iterations(model, None):
        assert torch.equal(model(images), before)
    assert model.head.attention.eval_iterations == 2
    with pytest.raises(RuntimeError), em_iterations(model, 7):
        raise RuntimeError
    assert model.head.attention.eval_iterations == 2


def test_iterations_of_a_model_without_any() -> None:
    with pytest.raises(UserError, match="no EM unit"), em_iterations(Pointwise(), 3):
        pass


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scales", ()), ("scales", (0.0,)), ("scales", (1.0, -1.0)), ("window", 0),
        ("window", (4, 0)), ("overlap", 1.0), ("overlap", -0.1), ("iterations", 0),
        ("batch_size", 0), ("window", (1, 2, 3)),
    ],
)  # fmt: skip
def test_options_refuse(field: str, value: object) -> None:
    with pytest.raises(UserError, match=field):
        replace(InferenceOptions(), **{field: value})  # type: ignore[arg-type]
