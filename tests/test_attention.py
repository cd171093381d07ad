"""The attention units as drop-in modules."""

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hemnet
from hemnet.nn.initial_bases import farthest_points
from support.recording import RecordingSolver

Unit = hemnet.HighwayEMAttention | hemnet.EMAttention

UNITS: dict[str, Callable[..., Unit]] = {
    "highway": lambda **kw: hemnet.HighwayEMAttention(8, bases=4, preset="paper", **kw),
    "auto": lambda **kw: hemnet.HighwayEMAttention(
        8, bases=4, preset="paper", variance="auto", **kw
    ),
    "rbf": lambda **kw: hemnet.HighwayEMAttention(8, bases=4, preset="paper", kernel="rbf", **kw),
    "normalised": lambda **kw: hemnet.HighwayEMAttention(
        8, bases=4, preset="paper", normalise=True, **kw
    ),
    "recommended": lambda **kw: hemnet.HighwayEMAttention(8, bases=4, **({"gain": 0.3} | kw)),
    "emanet": lambda **kw: hemnet.EMAttention(8, bases=4, **kw),
}


@pytest.fixture(params=UNITS)
def make(request: pytest.FixtureRequest) -> Callable[..., Unit]:
    return UNITS[request.param]


def images(batch: int = 2, height: int = 5, width: int = 7) -> Tensor:
    return torch.randn(batch, 8, height, width)


def literal_unit(unit: Unit, x: Tensor, iterations: int) -> Tensor:
    """The unit as the papers describe it, in evaluation, one image at a time."""
    outputs = []
    highway = isinstance(unit, hemnet.HighwayEMAttention)
    for image in unit.scale(unit.conv_in(x)):
        features = image.flatten(1).T  # N,C
        mu = unit.bases.value
        if unit.initial_bases == "image":
            mu = farthest_points(features[None], len(mu))[0]
        variance = float(unit.plan().mixture.variance)
        for _ in range(iterations):
            if highway and unit.kernel == "rbf":
                gamma = (torch.cdist(features, mu).square() / (-2 * variance)).softmax(-1)
                mu = 0.5 * mu + 0.5 * (gamma / gamma.sum(0)).T @ features
            elif highway:
                gamma = (features @ mu.T / variance).softmax(-1)
                mu = 0.5 * mu + 0.5 * (gamma / gamma.sum(0)).T @ features
            else:
                gamma = (features @ mu.T).softmax(-1)
                mu = F.normalize((gamma / gamma.sum(0)).T @ features, dim=-1)
        outputs.append((gamma @ mu).T.unflatten(1, image.shape[1:]))
    branch = unit.norm(unit.conv_out(F.relu(torch.stack(outputs))))
    return F.relu(unit.gain.factor * branch + x)


@pytest.mark.parametrize("name", ["highway", "emanet", "rbf", "normalised", "recommended"])
@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_is_the_unit_of_the_paper(name: str, iterations: int) -> None:
    unit = UNITS[name](iterations=iterations)
    unit(images(8))  # averages that are not 0 and 1
    unit.eval()
    nn.init.normal_(unit.norm.weight)
    x = images()
    torch.testing.assert_close(unit(x), literal_unit(unit, x, iterations), rtol=1e-4, atol=1e-5)


def test_parameters_are_the_two_convolutions_and_the_norm(make: Callable[..., Unit]) -> None:
    names = {name for name, _ in make().named_parameters()}
    assert names == {
        "conv_in.weight", "conv_in.bias", "conv_out.weight", "norm.weight", "norm.bias"
    }  # fmt: skip


def test_initial_bases_have_unit_length_and_differ(make: Callable[..., Unit]) -> None:
    bases = make().bases.value
    torch.testing.assert_close(bases.norm(dim=-1), torch.ones(4))
    assert float(torch.pdist(bases).min()) > 0.1


def test_presets_say_how_much_the_unit_adds_at_first() -> None:
    def gain(**options: Any) -> float:
        unit = hemnet.HighwayEMAttention(16, bases=4, **options)
        (weight,) = unit.norm.weight.unique().tolist()
        return float(weight * unit.gain.factor)

    assert gain(preset="paper") == 1
    assert gain(zero_init=False) == pytest.approx(1)
    assert gain(zero_init=True) == 0
    assert gain() == 0
    assert gain(gain=0.25) == pytest.approx(0.25)
    for said in ({"gain": 0.5, "zero_init": True}, {"gain": math.nan}, {"gain_lr_mult": 0}):
        with pytest.raises(ValueError, match="gain"):
            hemnet.HighwayEMAttention(16, bases=4, **said)


@pytest.mark.parametrize("make_optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_gain_lr_mult_changes_how_fast_the_gain_is_learned_and_nothing_else(
    make_optimizer: type[torch.optim.Optimizer],
) -> None:
    """The output moves gain_lr_mult times as far, with Adam, whose step is as long as its rate, as
    with SGD, whose step follows the gradient."""
    results, moved, gradients = [], [], []
    for rate in (1.0, 10.0):
        torch.manual_seed(0)
        x = images().requires_grad_()
        unit = hemnet.HighwayEMAttention(8, bases=4, gain=0.5, gain_lr_mult=rate)
        results.append(unit(x))
        optimizer = make_optimizer(unit.norm.parameters(), lr=1e-3)  # type: ignore[call-arg]
        results[-1].square().mean().backward()
        gradients.append((x.grad, unit.conv_in.weight.grad, unit.conv_out.weight.grad))
        before = [p.detach().clone() for p in unit.norm.parameters()]
        optimizer.step()
        after = unit.norm.parameters()
        moved.append([rate * (p.detach() - b) for p, b in zip(after, before, strict=True)])
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)
    for slow, fast in zip(*moved, strict=True):
        assert slow.abs().min() > 0
        torch.testing.assert_close(fast, 10 * slow, rtol=1e-2, atol=0)


def test_em_sees_normalised_features_where_asked() -> None:
    x = 3 * images(4) + torch.arange(8.0).view(1, 8, 1, 1)
    recorder = RecordingSolver()
    for normalise in (True, False):
        unit = hemnet.HighwayEMAttention(8, bases=4, normalise=normalise)
        unit.solver = recorder
        nn.init.normal_(unit.conv_in.bias, mean=5.0)
        unit(x)
        if not normalise:
            seen = recorder.features[-1].mT.unflatten(2, x.shape[2:])
            torch.testing.assert_close(seen, unit.conv_in(x))
    means, deviations = recorder.features[0].mean((0, 1)), recorder.features[0].std((0, 1))
    torch.testing.assert_close(means, torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(deviations, torch.ones(8), rtol=0, atol=1e-2)


def test_the_longest_basis_does_not_explain_everything_when_features_are_normalised() -> None:
    torch.manual_seed(0)
    common = 20 * F.normalize(torch.ones(8), dim=0)  # a shift that all positions share
    x = images(4, 16, 16)
    used = {}
    for normalise in (True, False):
        unit = hemnet.HighwayEMAttention(
            8, bases=16, kernel="dot", normalise=normalise, preset="paper"
        )
        nn.init.dirac_(unit.conv_in.weight)
        with torch.no_grad():
            unit.conv_in.bias.copy_(common)
            for _ in range(30):
                unit(x)
        used[normalise] = unit.health().in_use
    assert used[False] < 0.25 < used[True]


def test_looking_at_health_moves_no_average() -> None:
    unit = hemnet.HighwayEMAttention(8, bases=4, normalise=True)
    unit(images())
    before = {name: value.clone() for name, value in unit.state_dict().items()}
    unit.health(images())
    assert unit.scale.training
    for name, value in unit.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_zero_start_is_the_identity() -> None:
    x = images().relu()
    for unit in (
        hemnet.HighwayEMAttention(8, bases=4),
        hemnet.HighwayEMAttention(8, bases=4, preset="paper", zero_init=True),
        hemnet.EMAttention(8, bases=4, zero_init=True),
    ):
        torch.testing.assert_close(unit(x), x)
    assert not torch.equal(hemnet.HighwayEMAttention(8, bases=4, preset="paper")(x), x)


def test_gradient_reaches_every_parameter(make: Callable[..., Unit]) -> None:
    unit = make()
    x = images().requires_grad_()
    unit(x).square().sum().backward()
    for name, parameter in unit.named_parameters():
        # EMANet lets no gradient through its iterations: its first convolution never learns.
        expected = not (isinstance(unit, hemnet.EMAttention) and name.startswith("conv_in"))
        assert (parameter.grad is not None and bool(parameter.grad.any())) == expected, name
    assert x.grad is not None


def test_a_unit_that_starts_as_the_identity_learns_from_its_second_step_on() -> None:
    unit, x = hemnet.HighwayEMAttention(8, bases=4), images()
    optimizer = torch.optim.SGD(unit.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        unit(x).square().sum().backward()
        found = {n for n, p in unit.named_parameters() if p.grad is not None and p.grad.any()}
        everything = {name for name, _ in unit.named_parameters()}
        assert found == (everything if step else {"norm.weight", "norm.bias"})
        optimizer.step()


@pytest.mark.parametrize("backward", ["exact", "autograd"])
def test_backward_modes_give_one_gradient(backward: str) -> None:
    torch.manual_seed(3)
    unit = hemnet.HighwayEMAttention(8, bases=4, zero_init=False, backward=backward)
    torch.manual_seed(4)
    x = images()
    grads = torch.autograd.grad(unit(x).square().sum(), list(unit.parameters()))
    torch.manual_seed(3)
    exact = hemnet.HighwayEMAttention(8, bases=4, zero_init=False, backward="exact")
    expected = torch.autograd.grad(exact(x).square().sum(), list(exact.parameters()))
    torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-4)


def test_evaluation_does_not_depend_on_the_batch(make: Callable[..., Unit]) -> None:
    unit = make()
    for _ in range(3):
        unit(images(4))
    unit.eval()
    x = images(3)
    together = unit(x)
    for i in range(3):
        torch.testing.assert_close(unit(x[i : i + 1]), together[i : i + 1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(unit(x.flip(0)), together.flip(0), rtol=1e-5, atol=1e-5)


def test_evaluation_changes_nothing(make: Callable[..., Unit]) -> None:
    unit = make().eval()
    before = copy.deepcopy(unit.state_dict())
    unit(images())
    torch.testing.assert_close(dict(unit.state_dict()), dict(before), rtol=0, atol=0)


def test_train_eval_switching(make: Callable[..., Unit]) -> None:
    unit = make().eval()
    x = images()
    first = unit(x)
    unit.train()(x)
    assert not torch.allclose(unit.eval()(x), first)  # bases and batch norm have moved
    torch.testing.assert_close(unit(x), unit(x), rtol=0, atol=0)


def test_eval_iterations(make: Callable[..., Unit]) -> None:
    short, long = make(iterations=2), make(iterations=2, eval_iterations=6)
    long.load_state_dict(short.state_dict())
    six = make(iterations=6)
    six.load_state_dict(short.state_dict())
    x = images()
    torch.testing.assert_close(long.eval()(x), six.eval()(x))
    assert not torch.allclose(long(x), short.eval()(x))
    torch.testing.assert_close(long.train()(x), short.train()(x))


def test_eval_iterations_beyond_the_given_step_sizes() -> None:
    unit = hemnet.HighwayEMAttention(
        8, 4, iterations=2, step_size=[0.3, 0.7], eval_iterations=3, zero_init=False
    ).eval()
    other = hemnet.HighwayEMAttention(
        8, 4, iterations=3, step_size=[0.3, 0.7, 0.7], zero_init=False
    ).eval()
    other.load_state_dict(unit.state_dict())
    x = images()
    torch.testing.assert_close(unit(x), other(x))


def test_learned_step_size() -> None:
    step = nn.Parameter(torch.tensor([0.4, 0.5, 0.6]))
    unit = hemnet.HighwayEMAttention(8, bases=4, step_size=step, zero_init=False)
    assert "step_size" in dict(unit.named_parameters())
    unit(images()).square().sum().backward()
    assert step.grad is not None
    assert bool(step.grad.any())


def test_state_dict_round_trip(make: Callable[..., Unit]) -> None:
    unit = make()
    for _ in range(3):
        unit(images())
    other = make()
    other.load_state_dict(unit.state_dict())
    x = images()
    torch.testing.assert_close(other.eval()(x), unit.eval()(x), rtol=0, atol=0)


def test_checkpoint_of_another_size_names_both(make: Callable[..., Unit]) -> None:
    unit = make()
    before = copy.deepcopy(unit.state_dict())
    other = hemnet.HighwayEMAttention(8, bases=6)
    with pytest.raises(RuntimeError, match=r"6 bases of 8 channels.* 4 bases of 8 channels"):
        unit.load_state_dict(other.state_dict(), strict=False)
    torch.testing.assert_close(dict(unit.state_dict()), dict(before), rtol=0, atol=0)


def test_copies(make: Callable[..., Unit]) -> None:
    unit = make()
    unit(images())
    x = images()
    expected = unit.eval()(x)
    stored = io.BytesIO()
    torch.save(unit, stored)
    stored.seek(0)
    for twin in (
        copy.deepcopy(unit),
        pickle.loads(pickle.dumps(unit)),
        torch.load(stored, weights_only=False),
    ):
        torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)
        twin.train()(x)
        if unit.initial_bases == "running_average":
            assert not torch.equal(twin.bases.value, unit.bases.value)


def test_construction_on_the_meta_device(make: Callable[..., Unit]) -> None:
    with torch.device("meta"):
        unit = make()
    assert unit(images().to("meta")).shape == (2, 8, 5, 7)
    unit = unit.to_empty(device="cpu")
    unit.reset_parameters()
    unit.train()(images()).sum().backward()
    assert bool(unit.eval()(images()).isfinite().all())
    source = make()
    with torch.device("meta"):
        loaded = make()
    loaded.load_state_dict(source.state_dict(), assign=True)
    x = images()
    torch.testing.assert_close(loaded.eval()(x), source.eval()(x), rtol=0, atol=0)


def test_channels_last_in_channels_last_out(make: Callable[..., Unit]) -> None:
    unit = make().eval()
    x = images()
    out = unit(x.to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert unit(x).is_contiguous()
    torch.testing.assert_close(out, unit(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(make: Callable[..., Unit], dtype: torch.dtype) -> None:
    unit = make()
    x = images()
    with torch.autocast("cpu", dtype=dtype):
        out = unit(x)
    out.float().square().sum().backward()
    assert unit.bases.value.dtype == torch.float32
    assert all(bool(p.grad.isfinite().all()) for p in unit.parameters() if p.grad is not None)
    full = unit.eval()(x)
    with torch.autocast("cpu", dtype=dtype):
        half = unit(x)
    torch.testing.assert_close(half.float(), full, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "name,backend",
    [("highway", "inductor"), ("auto", "aot_eager"), ("rbf", "aot_eager"), ("emanet", "aot_eager")],
)
def test_compile(name: str, backend: str) -> None:
    """Forward and training in one graph, with the same bases and gradients as without."""
    eager = UNITS[name]()
    compiled_unit = copy.deepcopy(eager)
    compiled = torch.compile(compiled_unit, fullgraph=True, backend=backend)
    optimizers = [torch.optim.SGD(u.parameters(), 0.1) for u in (eager, compiled_unit)]
    for _ in range(3):
        x = images()
        for function, optimizer in zip((eager, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            function(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(
        dict(compiled_unit.state_dict()), dict(eager.state_dict()), rtol=1e-4, atol=1e-5
    )
    x = images()
    torch.testing.assert_close(compiled.eval()(x), eager.eval()(x), rtol=1e-4, atol=1e-5)


def test_export(make: Callable[..., Unit]) -> None:
    unit = make().eval()
    auto = torch.export.Dim.DYNAMIC
    program = torch.export.export(unit, (images(),), dynamic_shapes=({0: auto, 2: auto, 3: auto},))
    assert not any("hemnet" in str(node.target) for node in program.graph.nodes)
    for shape in ((2, 5, 7), (3, 9, 4)):
        x = images(*shape)
        torch.testing.assert_close(program.module()(x), unit(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: hemnet.HighwayEMAttention(0), "channels must be .* got 0"),
        (lambda: hemnet.HighwayEMAttention(8, bases=0), "bases must be .* got 0"),
        (lambda: hemnet.HighwayEMAttention(8, decay=1.5), r"decay must lie in \[0, 1\]; got 1.5"),
        (lambda: hemnet.HighwayEMAttention(8, iterations=0), "iterations must be .* got 0"),
        (lambda: hemnet.HighwayEMAttention(8, eval_iterations=0), "iterations must be .* got 0"),
        (lambda: hemnet.HighwayEMAttention(8, step_size=2.0), "step_size must lie .* got 2.0"),
        (lambda: hemnet.HighwayEMAttention(8, variance=-1.0), "variance must be .* got -1.0"),
        (lambda: hemnet.HighwayEMAttention(8, variance="big"), '"auto"; got .big.'),
        (lambda: hemnet.HighwayEMAttention(8, kernel="cos"), "kernel must be .* got 'cos'"),
        (lambda: hemnet.HighwayEMAttention(8, backward="fast"), "backward must be .* got 'fast'"),
        (lambda: hemnet.HighwayEMAttention(8, preset="old"), "preset must be one of .* got 'old'"),
        (lambda: hemnet.EMAttention(8, iterations=0), "iterations must be .* got 0"),
        (lambda: hemnet.EMAttention(8)(torch.zeros(1, 4, 2, 2)), r"\(batch, 8, .* \(1, 4, 2, 2\)"),
        (lambda: hemnet.EMAttention(8)(torch.zeros(8, 2, 2)), r"\(batch, 8, .* got \(8, 2, 2\)"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_counts_a_batch_once(reentrant: bool) -> None:
    unit = hemnet.HighwayEMAttention(8, bases=4, gain=0.5, normalise=True).train()
    plain = copy.deepcopy(unit)
    x = images(4).requires_grad_()
    checkpoint(unit, x, use_reentrant=reentrant).sum().backward()
    plain(x).sum().backward()
    for (name, ours), theirs in zip(
        unit.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_the_rate_of_the_gain_is_part_of_a_checkpoint() -> None:
    """What a unit adds is read right whatever the rate it was built with."""
    x = images(2)
    saved = hemnet.HighwayEMAttention(8, bases=4, gain=0.5, gain_lr_mult=5).eval()
    other = hemnet.HighwayEMAttention(8, bases=4, gain=0.5, gain_lr_mult=2).eval()
    other.load_state_dict(saved.state_dict())
    torch.testing.assert_close(other(x), saved(x))
    older = {k: v for k, v in saved.state_dict().items() if k != "gain.rate"}
    same = hemnet.HighwayEMAttention(8, bases=4, gain_lr_mult=5).eval()
    same.load_state_dict(older)
    torch.testing.assert_close(same(x), saved(x))


@pytest.mark.parametrize("make", [hemnet.HighwayEMAttention, hemnet.EMAttention])
@pytest.mark.parametrize("training", [True, False])
def test_points_without_a_grid(make: Callable[..., Unit], training: bool) -> None:
    unit = make(8, bases=4, zero_init=False).train(training)
    twin, x = copy.deepcopy(unit), torch.randn(2, 30, 8)
    mask = torch.rand(2, 30) > 0.3
    ours = unit(x, mask)
    image = twin(x.mT.unflatten(2, (5, 6)), mask.unflatten(1, (5, 6)))
    assert ours.shape == x.shape
    torch.testing.assert_close(ours, image.flatten(2).mT)
    torch.testing.assert_close(unit.bases.value, twin.bases.value)
