"""Gradient flow by leaf copies: the parts are right, one by one and together."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import hemnet
from hemnet.data import Batch
from hemnet.em import EMResult, highway_em, r_step
from hemnet.errors import UserError
from hemnet.inspection.gradient_flow import effective_weights, gradient_flow, model_gradient_flow
from hemnet.study.gradients import measure_flow
from hemnet.training.config import LossConfig
from hemnet.training.loss import SegmentationLoss
from support.recording import RecordingSolver

STEPS = (0.1, 0.5, 1.0, (0.3, 1.0, 0.2, 0.7))


def problem(kernel: str = "dot") -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 30, 5, dtype=torch.float64) * 2
    return x, torch.randn(4, 5, dtype=torch.float64), torch.randn(2, 30, 5, dtype=torch.float64)


def loss_towards(target: Tensor):  # type: ignore[no-untyped-def]
    def loss(result: EMResult) -> Tensor:
        rebuilt = r_step(result.responsibilities, result.bases)
        return (rebuilt - target).square().sum() + rebuilt.sin().sum()

    return loss


@pytest.mark.parametrize("kernel", ["dot", "rbf"])
@pytest.mark.parametrize("step_size", STEPS)
def test_parts_add_up_to_the_gradient_of_the_shipped_solver(kernel, step_size):
    x, bases, target = problem()
    loss = loss_towards(target)
    flow = gradient_flow(x, bases, loss, 4, step_size, 1.5, kernel)
    for backward in ("exact", "autograd"):
        leaf = x.clone().requires_grad_()
        value = loss(highway_em(leaf, bases, 4, step_size, 1.5, kernel, backward))
        (total,) = torch.autograd.grad(value, leaf)
        torch.testing.assert_close(flow.total, total)
    # Each part alone is not the whole: the test would pass with everything in one leaf otherwise.
    assert flow.n_step.sum(0).sub(total).abs().max() > 1e-3
    assert flow.e_step.sum(0).sub(total).abs().max() > 1e-3


@pytest.mark.parametrize("kernel", ["dot", "rbf"])
@pytest.mark.parametrize("step_size", STEPS)
def test_n_step_part_equals_its_closed_form_given_the_gradient_at_the_bases(kernel, step_size):
    x, bases, target = problem()
    flow = gradient_flow(x, bases, loss_towards(target), 4, step_size, 1.5, kernel)
    torch.testing.assert_close(flow.n_step, flow.n_step_closed_form())
    # The gradient at the last bases, by hand: Σ_n γ · ∂loss/∂x̃.
    rebuilt = r_step(*highway_em(x, bases, 4, step_size, 1.5, kernel)[::-1])
    direct = flow.responsibilities[-1].mT @ (2 * (rebuilt - target) + rebuilt.cos())
    torch.testing.assert_close(flow.bases[-1], direct)


def test_highway_alone_gives_the_weights_of_the_paper():
    # Constant responsibilities leave only skips and N-steps: backward="highway".
    x, bases, target = problem()
    loss = loss_towards(target)
    flow = gradient_flow(x, bases, loss, 4, 0.3, 1.5)
    leaf = x.clone().requires_grad_()
    (total,) = torch.autograd.grad(
        loss(highway_em(leaf, bases, 4, 0.3, 1.5, "dot", "highway")), leaf
    )
    gamma = flow.responsibilities / flow.responsibilities.sum(2, keepdim=True)
    weights = effective_weights(flow.step_sizes).view(-1, 1, 1, 1)
    torch.testing.assert_close((weights * (gamma @ flow.bases[-1])).sum(0), total)


def test_weights_are_eta_times_powers_and_sum_to_what_the_start_does_not_keep():
    weights = effective_weights(torch.full((6,), 0.2, dtype=torch.float64))
    expected = [0.2 * 0.8 ** (6 - t) for t in range(1, 7)]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    assert float(weights.sum()) == pytest.approx(1 - 0.8**6)


def test_plain_em_gives_n_step_gradient_to_the_last_iteration_alone():
    """With η = 1 nothing but E-steps connects μ⁽ᵗ⁾ to what follows."""
    x, _, _ = problem()
    assert effective_weights(torch.ones(5)).tolist() == [0, 0, 0, 0, 1]
    # Saturated responsibilities pass no gradient, so that only the direct path is left.
    centres = 50 * torch.eye(4, 5, dtype=torch.float64)
    near = centres.repeat(2, 8, 1) + 0.1 * x[:, :1].expand(2, 32, 5)
    goal = torch.randn(2, 32, 5, dtype=torch.float64)
    plain = gradient_flow(near, centres, loss_towards(goal), 4, 1.0, 1.0, "rbf")
    sizes = plain.n_step.abs().mean((1, 2, 3))
    assert sizes[-1] > 1e-2
    assert sizes[:-1].max() < 1e-12
    damped = gradient_flow(near, centres, loss_towards(goal), 4, 0.5, 1.0, "rbf")
    ratio = damped.n_step.abs().mean((1, 2, 3))
    torch.testing.assert_close(ratio[1:] / ratio[:-1], torch.full((3,), 2.0, dtype=torch.float64))


def tiny_model(name: str = "hemnet", **options):  # type: ignore[no-untyped-def]
    torch.manual_seed(1)
    zero = {"zero_init": False}
    return hemnet.create_model(
        name, 3, "test_resnet", 8, 16, bases=4, dropout=0.0, **(zero | options)
    )


def test_inside_a_model_the_parts_are_the_gradient_at_the_units_features():
    model = tiny_model(iterations=3, step_size=0.4, variance="auto").train()
    images, labels = torch.randn(2, 3, 32, 32), torch.randint(0, 3, (2, 32, 32))

    def loss(network):  # type: ignore[no-untyped-def]
        return F.cross_entropy(network(images), labels)

    before = copy.deepcopy(model.state_dict())
    flow = model_gradient_flow(model, loss)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(p.grad is None for p in model.parameters())

    model.head.attention.solver = recorder = RecordingSolver()
    value = loss(model)
    (total,) = torch.autograd.grad(value, recorder.features)
    torch.testing.assert_close(flow.total, total, atol=1e-9, rtol=1e-4)
    assert flow.n_step.shape == (3, 2, 25, 16)
    assert (flow.n_step.unflatten(2, (5, 5))[:, :, 4] == 0).all()  # padding has no part in it
    assert flow.elbo.shape == (3, 2)


def test_no_gradient_reaches_emanets_features():
    model = tiny_model("emanet")
    images = torch.randn(2, 3, 32, 32)
    flow = model_gradient_flow(model, lambda network: network(images).square().mean())
    assert flow.n_step.abs().max() == 0
    assert flow.e_step.abs().max() == 0


def test_a_unit_that_adds_nothing_yet_has_no_gradient_to_measure():
    batch = Batch(torch.randn(2, 3, 32, 32), torch.randint(0, 3, (2, 32, 32)), ["a", "b"])
    loss = SegmentationLoss(LossConfig(), 3)
    assert measure_flow(tiny_model(gain=0.3, zero_init=None).train(), loss, [batch])["total"] > 0
    with pytest.raises(UserError, match="adds nothing to its input yet"):
        measure_flow(tiny_model(zero_init=None).train(), loss, [batch])


def test_a_model_without_em_is_refused():
    model = hemnet.create_model("fcn", 3, "test_resnet", 8)
    with pytest.raises(ValueError, match="no EM unit"):
        model_gradient_flow(model, lambda network: network(torch.zeros(1, 3, 32, 32)).sum())
