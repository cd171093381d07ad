"""The optimizer's parameter groups and the schedule of the learning rate."""

import pytest
import torch
from torch import nn

import hemnet
from hemnet.errors import UserError
from hemnet.training.config import OptimConfig
from hemnet.training.optim import check_optimizer, lr_at, make_optimizer, parameter_groups, set_lr


def small() -> hemnet.Segmenter:
    return hemnet.create_model("hemnet", 5, "test_resnet", 16, 16, bases=8, gain=0.3)


def test_only_convolution_weights_decay_and_biases_have_twice_the_rate() -> None:
    model = small()
    kinds = {}
    for group in parameter_groups(model, OptimConfig(lr=0.01, weight_decay=1e-4, bias_lr_mult=2)):
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
    optimizer = make_optimizer(small(), OptimConfig(head_lr_mult=10))
    set_lr(optimizer, 0.5)
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates["backbone weights"] == 0.5
    assert rates["backbone bias"] == 1.0
    assert rates["head weights"] == 5.0
    assert rates["head bias"] == 10.0


def test_poly_schedule_with_warm_up() -> None:
    config = OptimConfig(steps=100, lr=1.0, poly_power=0.9, warmup=10)
    assert lr_at(0, config) == pytest.approx(0.1)
    assert lr_at(5, config) == pytest.approx(0.55 * 0.95**0.9)
    assert lr_at(50, config) == pytest.approx(0.5**0.9)
    assert lr_at(99, config) == pytest.approx(0.01**0.9)
    assert lr_at(99, OptimConfig(steps=100, lr=1.0, poly_power=0)) == 1.0


@pytest.mark.parametrize("name", ["adam", "lion", "adan", "rmsprop", "muon"])
def test_any_optimizer_of_timm_learns_with_our_groups(name: str) -> None:
    config = OptimConfig(name, lr=1e-3, momentum=0.5, betas=(0.8, 0.9), weight_decay=0)
    model = small()
    optimizer = make_optimizer(model, config)
    assert {group["multiple"] for group in optimizer.param_groups} == {1.0, 2.0}
    assert optimizer.defaults.get("betas", (0.8, 0.9)) in {(0.8, 0.9), (0.98, 0.92, 0.99)}
    before = {key: value.clone() for key, value in model.named_parameters()}
    model(torch.randn(2, 3, 33, 33)).square().mean().backward()
    optimizer.step()
    changed = {key for key, value in model.named_parameters() if not value.equal(before[key])}
    assert changed == {key for key, value in model.named_parameters() if value.grad.any()}


def test_an_optimizer_that_cannot_be_made_says_why() -> None:
    with pytest.raises(UserError, match=r"optim\.name bnbadamw cannot be used"):
        check_optimizer(OptimConfig(name="bnbadamw"))
    with pytest.raises(UserError, match=r"optim\.name is 'adamv': timm has none; try adam"):
        check_optimizer(OptimConfig(name="adamv"))
