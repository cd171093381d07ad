"""bf16 on a CPU leaves depthwise convolutions in float32."""

import copy

import pytest
import torch
from torch import nn

import hemnet
from hemnet.training.depthwise import keep_depthwise_in_float32


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return hemnet.create_model("fcn", num_classes=3, backbone="mobilenetv2_050").eval()


def output_types(network: nn.Module) -> dict[bool, set[torch.dtype]]:
    """The types that convolutions give under bf16, by whether they are depthwise."""
    found: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            depthwise = module.groups == module.in_channels > 1
            module.register_forward_hook(lambda *of, d=depthwise: found[d].add(of[2].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(torch.randn(1, 3, 33, 33))
    return found


def test_only_depthwise_convolutions_leave_bf16(network: nn.Module) -> None:
    assert output_types(copy.deepcopy(network)) == {True: {torch.bfloat16}, False: {torch.bfloat16}}
    keep_depthwise_in_float32(network)
    assert output_types(network) == {True: {torch.float32}, False: {torch.bfloat16}}


def test_names_parameters_and_results_stay(network: nn.Module) -> None:
    before = copy.deepcopy(network)
    parameters = dict(network.named_parameters())
    keep_depthwise_in_float32(network)
    assert list(network.state_dict()) == list(before.state_dict())
    assert all(parameter is parameters[name] for name, parameter in network.named_parameters())
    x = torch.randn(2, 3, 33, 65)
    torch.testing.assert_close(network(x), before(x))
