"""Bases from the image itself: far apart, of every cluster, independent of company."""

import pytest
import torch
from torch import Tensor

from hemnet.nn.initial_bases import farthest_points, spread_positions


def clusters(
    images: int, count: int, positions: int = 500, channels: int = 8
) -> tuple[Tensor, Tensor]:
    """Features in tight clusters of very different sizes, and which cluster each belongs to."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(images, count, channels, generator=generator)
    which = (count * torch.rand(images, positions, generator=generator) ** 3).long()
    which[:, :count] = torch.arange(count)
    noise = 0.01 * torch.randn(images, positions, channels, generator=generator)
    return centres.gather(1, which[..., None].expand(-1, -1, channels)) + noise, which


def test_every_cluster_is_met() -> None:
    x, which = clusters(4, 12, positions=250)
    points = farthest_points(x, 12)
    for features, labels, chosen in zip(x, which, points, strict=True):
        nearest = torch.cdist(chosen, features).argmin(1)
        assert len(labels[nearest].unique()) == 12


def test_points_are_positions_of_their_own_image_whatever_the_batch() -> None:
    x, _ = clusters(3, 5)
    points = farthest_points(x, 7)
    assert bool((points.unsqueeze(2) == x.unsqueeze(1)).all(-1).any(-1).all())
    for image, alone in zip(x, points, strict=True):
        assert torch.equal(farthest_points(image[None], 7)[0], alone)


def test_what_does_not_count_is_not_chosen() -> None:
    x, _ = clusters(2, 4, positions=200)
    outside = 100 * torch.ones(2, 50, 8)
    weights = torch.cat((torch.ones(2, 200), torch.zeros(2, 50)), 1)
    points = farthest_points(torch.cat((x, outside), 1), 16, weights)
    assert float(points.max()) < 50
    shared = farthest_points(torch.cat((x, outside), 1), 16, weights[:1])
    assert torch.equal(points, shared)


@pytest.mark.parametrize("positions", [1, 3, 16, 300])
def test_fewer_positions_than_points_and_flat_images(positions: int) -> None:
    x = torch.randn(2, positions, 4)
    points = farthest_points(x, 16)
    assert points.shape == (2, 16, 4)
    if positions <= 16:  # all of them are there
        assert bool((points.unsqueeze(2) == x.unsqueeze(1)).all(-1).any(1).all())
    flat = farthest_points(torch.ones(1, positions, 4), 5)
    assert torch.equal(flat, torch.ones(1, 5, 4))


def test_the_chosen_features_are_constants() -> None:
    assert not farthest_points(torch.randn(1, 30, 4, requires_grad=True), 6).requires_grad


def test_features_behind_a_map_are_chosen_by_what_the_map_gives() -> None:
    x, _ = clusters(2, 6)
    weight, bias = torch.randn(5, x.shape[2]), torch.randn(5)
    points = farthest_points(x, 6, linear=(weight, bias))
    torch.testing.assert_close(points, farthest_points(x @ weight.T + bias, 6))


def test_half_precision_is_chosen_in_float32() -> None:
    x, _ = clusters(2, 6)
    assert torch.equal(farthest_points(x.half(), 6), farthest_points(x.half().float(), 6))


@pytest.mark.parametrize("positions", [5, 256, 300, 64 * 64, 512 * 512])
def test_spread_positions(positions: int) -> None:
    chosen = spread_positions(positions, 256, torch.device("cpu"))
    assert len(chosen) == min(256, positions)
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < positions
    assert bool((chosen.diff() >= 0).all())
    if positions <= 256:
        assert len(chosen.unique()) == positions
    else:
        assert len(chosen.unique()) == 256
    if positions == 512 * 512:  # every row, and no column more than others
        assert len((chosen // 512).unique()) == 256
        assert int((chosen % 512 * 8 // 512).bincount(minlength=8).min()) >= 28


@pytest.mark.parametrize("seed", range(4))
def test_beyond_the_distinct_positions_rounding_does_not_decide(seed: int) -> None:
    """An exported file has to choose the same ones: a basis that is there twice counts twice."""
    x = torch.randn(2, 25, 16, generator=torch.Generator().manual_seed(seed)) * 5
    torch.testing.assert_close(farthest_points(x, 64), farthest_points(x.double(), 64).float())
