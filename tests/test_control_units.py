"""The units that benchmarks set beside EM do what they are named for."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hemnet

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from control_units import AttentionPooling, ContextUnit, GridMeans


def contexts(unit: ContextUnit, x: Tensor, mask: Tensor | None = None) -> Tensor:
    inside = torch.ones_like(x[:, :1]) if mask is None else mask[:, None].float()
    return unit.context(unit.conv_in(x), inside)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 6, 16, 24)


@pytest.mark.parametrize("kind", [AttentionPooling, GridMeans])
def test_start_as_the_identity_with_the_parameters_of_the_unit(
    kind: type[ContextUnit], x: Tensor
) -> None:
    unit = kind(6)
    torch.testing.assert_close(unit(x), x.relu())
    mine = sum(p.numel() for p in unit.parameters())
    query = 6 if kind is AttentionPooling else 0
    assert mine - query == sum(p.numel() for p in hemnet.HighwayEMAttention(6).parameters())


def test_attention_pooling_weighs_positions_inside_only(x: Tensor) -> None:
    unit = AttentionPooling(6)
    found = contexts(unit, x)
    assert (found == found[..., :1, :1]).all()
    features = unit.conv_in(x).flatten(2)
    weights = (unit.query @ features).softmax(-1)
    torch.testing.assert_close(found[..., 0, 0], torch.einsum("bn,bcn->bc", weights, features))
    mask = torch.zeros(2, 16, 24, dtype=torch.bool)
    mask[:, 3, 5] = True
    torch.testing.assert_close(contexts(unit, x, mask)[..., 0, 0], unit.conv_in(x)[..., 3, 5])


def test_a_cell_of_the_grid_has_its_own_mean(x: Tensor) -> None:
    unit = GridMeans(6)
    found, features = contexts(unit, x), unit.conv_in(x)
    for rows, columns in ((slice(0, 2), slice(0, 3)), (slice(14, 16), slice(21, 24))):
        mean = features[..., rows, columns].mean((2, 3), keepdim=True)
        torch.testing.assert_close(found[..., rows, columns], mean.expand(2, 6, 2, 3))
    mask = torch.ones(2, 16, 24, dtype=torch.bool)
    mask[:, 1, :3] = False
    mean = features[..., 0, :3].mean(-1)
    torch.testing.assert_close(contexts(unit, x, mask)[..., 0, 0], mean)
