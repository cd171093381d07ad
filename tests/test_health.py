"""Collapse and saturation: seen, said once, and avoided by variance="auto"."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import hemnet
from hemnet.inspection.gradient_flow import gradient_flow
from hemnet.nn import attention
from hemnet.nn.health import e_step_share, largest_variance, spread, variance_rebuilt


def unit_on(x: Tensor, **options: object) -> hemnet.HighwayEMAttention:
    """A unit whose first convolution is the identity, so that x are the features it clusters."""
    unit = hemnet.HighwayEMAttention(x.shape[1], bases=16, preset="paper", **options)
    with torch.no_grad():
        unit.conv_in.weight.copy_(torch.eye(x.shape[1])[..., None, None])
        unit.conv_in.bias.zero_()
    return unit


def features(scale: float, batch: int = 2, channels: int = 32) -> Tensor:
    """Eight clusters of positions, so that there is something for the bases to find."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(8, channels, generator=generator)
    which = torch.randint(8, (batch, 24 * 24), generator=generator)
    noise = 0.3 * torch.randn(batch, 24 * 24, channels, generator=generator)
    return scale * (centres[which] + noise).mT.unflatten(2, (24, 24))


def train(unit: hemnet.HighwayEMAttention, x: Tensor, passes: int) -> None:
    with torch.no_grad():
        for _ in range(passes):
            unit(x)


def test_largest_variance_is_the_largest_eigenvalue() -> None:
    x = features(1.0).flatten(2).mT.double()
    centred = x - x.mean(1, keepdim=True)
    covariance = (centred.mT @ centred / x.shape[1]).mean(0)
    expected = float(torch.linalg.eigvalsh(covariance)[-1])
    assert math.isclose(float(largest_variance(x)), expected, rel_tol=0.02)


def test_spread() -> None:
    assert float(spread(torch.ones(5, 3))) == 0
    assert math.isclose(float(spread(torch.eye(4) - 0.25)), 1.0, rel_tol=1e-6)


def test_fixed_variance_collapses_and_says_so_once() -> None:
    x = features(0.3)
    unit = unit_on(x)
    ratio = unit.health(x).ratio
    assert ratio < 1
    with pytest.warns(hemnet.BasesWarning, match="collapsed into one.*auto"):
        train(unit, x, 100)
    health = unit.health()
    assert health.state == "collapsed"
    assert health.spread < 0.05
    assert health.entropy > 0.99 * math.log(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(unit, x, 200)
        unit.eval()


@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0, 10.0])
def test_auto_variance_stays_healthy_at_any_scale(scale: float) -> None:
    x = features(scale)
    unit = unit_on(x, variance="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(unit, x, 200)
    health = unit.health()
    assert health.state == "healthy", str(health)
    assert math.isclose(health.ratio, attention.AUTO_RATIO, rel_tol=0.05)
    assert health.spread > 0.5
    assert health.in_use > 0.4  # eight clusters, sixteen bases


def test_auto_variance_is_a_constant_in_evaluation() -> None:
    x = features(1.0)
    unit = unit_on(x, variance="auto")
    train(unit, x, 3)
    before = float(unit.variance)
    unit.eval()
    unit(10 * x)
    assert float(unit.variance) == before
    assert "principal.value" in unit.state_dict()


def test_saturation_is_seen() -> None:
    x = features(40.0)
    unit = unit_on(x)
    with pytest.warns(hemnet.BasesWarning, match="saturated.*larger variance"):
        train(unit, x, 100)
    assert unit.health().state == "saturated"


def test_nearly_hard_responsibilities_are_not_saturated_while_the_e_step_passes_gradients() -> None:
    # White noise, of the highest rank there is: every position is far from all bases but one.
    x = torch.randn(2, 256, 16, 16, generator=torch.Generator().manual_seed(0))
    unit = hemnet.HighwayEMAttention(256, bases=32)
    train(unit, x, 40)
    health = unit.health(x)
    assert health.entropy < 0.1 * math.log(32)
    assert health.e_step > 0.05
    assert health.state == "healthy"


@pytest.mark.parametrize("kernel", ["dot", "rbf"])
def test_the_e_steps_share_is_that_of_the_gradients_by_path(kernel: str) -> None:
    x = features(1.0).flatten(2).mT
    bases = x[:, :16].contiguous()
    probe = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    flow = gradient_flow(
        x, bases, lambda r: (probe * hemnet.r_step(*r[::-1])).sum(), 1, 0.5, 0.7, kernel
    )
    by_e_step, by_n_step = (float(g.abs().mean()) for g in (flow.e_step, flow.n_step))
    found = e_step_share(x, bases, hemnet.Gaussian(0.7, kernel), 0.5)
    assert math.isclose(found, by_e_step / (by_e_step + by_n_step), rel_tol=1e-4)


@pytest.mark.parametrize("initial_bases", ["image", "running_average"])
@pytest.mark.parametrize(
    "mixture", [hemnet.DiagonalGaussian(), hemnet.VonMisesFisher(10.0)], ids=lambda m: str(m)
)
def test_health_of_other_mixtures(mixture: hemnet.Mixture, initial_bases: str) -> None:
    unit = hemnet.HighwayEMAttention(32, 16, mixture=mixture, initial_bases=initial_bases)
    train(unit, features(1.0), 30)
    health = unit.health()
    assert health.rebuilt > 0.2
    assert 0.01 < health.e_step < 1


def test_leaving_training_is_a_moment_to_look() -> None:
    x = features(0.1)
    unit = unit_on(x, decay=0.5)
    train(unit, x, 60)
    with pytest.warns(hemnet.BasesWarning, match="collapsed"):
        unit.eval()


@pytest.mark.parametrize("looking", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_health_can_be_read_after_and_in_inference(looking: Any) -> None:
    unit = hemnet.HighwayEMAttention(32, 16, step_size=torch.full((3,), 0.5)).eval()
    with torch.inference_mode():
        unit(features(1.0), torch.ones(2, 24, 24))
    with looking():
        assert unit.health().e_step > 0


def test_health_needs_features() -> None:
    unit = hemnet.EMAttention(8)
    with pytest.raises(RuntimeError, match="run a forward pass or give x"):
        unit.health()
    assert unit.health(torch.randn(1, 8, 4, 4)).bases == 64


def test_health_reads_well() -> None:
    unit = unit_on(features(1.0), variance="auto")
    train(unit, features(1.0), 60)
    assert str(unit.health()).startswith("healthy: λ/σ² 2.0")
    assert "variance rebuilt " in str(unit.health())


def test_a_global_mean_is_collapsed_whatever_else_is_read() -> None:
    # Random bases, all in use, spread wide and of maximal entropy: λ/σ² 0.03 as read from a run.
    x = features(0.15)
    unit = unit_on(x)
    unit(x)
    health = unit.health()
    assert health.ratio < 0.05
    assert health.spread > 0.9
    assert health.in_use > 0.5
    assert health.rebuilt < 1e-3
    assert health.state == "collapsed"


def test_variance_rebuilt_is_the_share_of_the_features_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 50, 3, generator=generator)
    each = torch.eye(50).expand(2, 50, 50)  # a basis for every position
    assert math.isclose(variance_rebuilt(x, each, x), 1.0, rel_tol=1e-5)
    assert math.isclose(variance_rebuilt(x, each, 0.5 * x + 7), 0.25, rel_tol=1e-4)
    one = torch.ones(2, 50, 1)
    assert variance_rebuilt(x, one, x.mean(1, keepdim=True)) < 1e-9
    # Positions that do not count, such as padding, change nothing.
    weights = torch.cat((torch.ones(2, 50), torch.zeros(2, 10)), 1)
    padded = torch.cat((x, 100 * torch.ones(2, 10, 3)), 1)
    bases = torch.cat((0.5 * x, padded[:, 50:]), 1)
    assert math.isclose(
        variance_rebuilt(padded, torch.eye(60).expand(2, 60, 60), bases, weights),
        0.25,
        rel_tol=1e-4,
    )


def test_one_basis_is_a_mean_by_choice_and_needs_no_warning() -> None:
    x = features(1.0)
    unit = hemnet.HighwayEMAttention(x.shape[1], bases=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(unit, x, 120)
    assert unit.health().state == "collapsed"


def test_units_of_unit_length_bases_are_read_at_the_scale_of_their_features() -> None:
    """EMANet's bases have length 1 whatever the features' is."""
    centres = 30 * torch.eye(4, 8)
    x = centres.repeat(2, 16, 1).mT.unflatten(2, (8, 8)) + 0.1 * torch.randn(2, 8, 8, 8)
    unit = hemnet.EMAttention(8, bases=4)
    with torch.no_grad():
        unit.conv_in.weight.copy_(torch.eye(8)[..., None, None])
        unit.bases.value.copy_(torch.nn.functional.normalize(centres, dim=-1))
    health = unit.eval().health(x)
    assert health.rebuilt > 0.9
    assert health.state != "collapsed"
