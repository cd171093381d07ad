"""The parts of training: parameter groups, schedule, loss, freezing, synchronised norms."""

import pytest
import torch
from timm.layers.norm_act import SyncBatchNormAct
from torch import nn

import hemnet
from hemnet.errors import UserError
from hemnet.training.config import OptimConfig
from hemnet.training.optim import make_optimizer, set_lr
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


def test_frozen_stages_stay_and_the_rest_trains() -> None:
    model = small("resnet18").train()
    freeze_stages(model, 2)  # stem and layer1
    frozen = {n.split(".")[2] for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"conv1", "bn1", "layer1"}
    assert not model.backbone.network.bn1.training
    assert model.backbone.network.layer2[0].bn1.training
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = make_optimizer(model, OptimConfig(lr=0.1))
    set_lr(optimizer, 0.1)
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
    first = small(gain=0.4, gain_lr_mult=1)
    first.save_pretrained(tmp_path)
    second = small(gain_lr_mult=8)
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
