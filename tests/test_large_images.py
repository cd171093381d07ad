"""Windows over large images: blended as if held whole, and explained by one set of bases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

import hemnet
from hemnet.data.transforms import Augmentation, normalise
from hemnet.em.mixtures import initial
from hemnet.em.solver import iterate
from hemnet.em.sources import Parts
from hemnet.inference.global_bases import em_unit, fit_global_bases, using_bases
from hemnet.inference.options import InferenceOptions
from hemnet.inference.probabilities import em_iterations, predict_classes
from hemnet.inference.sliding_window import window_grid, windowed_classes
from support import tiny_data
from support.command_line import run

CPU = torch.device("cpu")
SETTINGS = Augmentation()


class Neighbours(nn.Module):
    """A few convolutions: what they say of a pixel depends on where the window ends."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(), nn.Conv2d(6, classes, 5, padding=2)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images) * 5


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def tensor(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    return normalise(pixels, SETTINGS.mean, SETTINGS.std)


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.integers(1, 24), st.integers(1, 24)),
    st.sampled_from([0.0, 1 / 3, 0.5, 0.8]),
)
def test_a_strip_at_a_time_is_as_good_as_the_whole(
    size: tuple[int, int], window: tuple[int, int], overlap: float
) -> None:
    torch.manual_seed(0)
    model, image = Neighbours().eval(), picture(*size)
    options = InferenceOptions(window=window, overlap=overlap)
    expected = predict_classes(model, tensor(image), options)[0].numpy()
    found = windowed_classes(model, image, SETTINGS, options, CPU)
    assert found.dtype == np.uint8
    assert (found != expected).mean() <= 0.002  # sums in another order: ties may fall otherwise


def test_windows_leave_no_seams() -> None:
    """A model that is surer at one side of its window: the blend of two has no step."""

    class Ramp(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            across = torch.linspace(-2, 2, images.shape[-1]).expand_as(images[:, 0])
            return torch.stack((across, -across), 1)

    from hemnet.inference.probabilities import predict_probabilities

    options = InferenceOptions(window=64, overlap=0.5)
    found = predict_probabilities(Ramp(), torch.zeros(1, 3, 64, 200), options)[0, 0, 0]
    inside = Ramp()(torch.zeros(1, 3, 64, 64)).softmax(1)[0, 0, 0]
    steepest = float((inside[1:] - inside[:-1]).abs().max())
    assert float((found[1:] - found[:-1]).abs().max()) < 3 * steepest


def test_a_large_file_is_predicted_in_windows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = hemnet.create_model("fcn", 3, "test_resnet", 16)
    saved = network.save_pretrained(tmp_path / "model")
    path = tiny_data.image(tmp_path / "large.png", 130, 170)
    out = tmp_path / "out"
    flags = ["--whole", "0.02", "--window", "64", "--out", str(out)]
    assert run("predict", str(saved), str(path), *flags) == 0
    options = InferenceOptions(window=64)
    with Image.open(path) as image:
        expected = predict_classes(network.eval(), tensor(image), options)[0].numpy()
    with Image.open(out / "classes/large.png") as found:
        assert (np.asarray(found) != expected).mean() < 0.002
    assert '"windows": 12' in (out / "predictions.jsonl").read_text()


@pytest.mark.parametrize(
    "mixture",
    [
        hemnet.Gaussian(2.0),
        hemnet.Gaussian(2.0, "rbf"),
        hemnet.VonMisesFisher(1.0, normalise=False),
        hemnet.DiagonalGaussian(),
    ],
)
def test_parts_have_the_bases_of_the_whole(mixture: hemnet.Mixture) -> None:
    x, bases = torch.randn(1, 500, 12, dtype=torch.float64) * 3, torch.randn(7, 12).double()
    steps = (0.5, 0.7, 1.0)
    cuts = (3, 200, 0, 297)
    parts = Parts(lambda: mixture.statistics(x)[0].split(cuts))
    *_, (_, _, found) = iterate(parts, initial(bases, x, mixture, 12), steps, mixture)
    whole = hemnet.highway_em(x, bases, 3, steps, mixture=mixture)
    torch.testing.assert_close(found, whole.bases)


def network(name: str = "hemnet", **options: Any) -> hemnet.Segmenter:
    torch.manual_seed(1)
    model = hemnet.create_model(
        name, 5, "test_resnet", 8, channels=16, bases=6, **{"zero_init": False} | options
    ).eval()
    nn.init.normal_(model.head.classifier[-1].weight, std=2)
    return model


UNITS: list[tuple[str, dict[str, Any]]] = [
    ("hemnet", {}),
    ("hemnet", {"variance": "auto", "kernel": "rbf", "step_size": (0.5, 0.6), "iterations": 2}),
    ("emanet", {}),
]


@pytest.mark.parametrize(("name", "options"), UNITS)
def test_one_window_with_global_bases_is_the_plain_model(
    name: str, options: dict[str, Any]
) -> None:
    model, image = network(name, **options), picture(50, 70)
    with em_iterations(model, 4), torch.inference_mode():
        expected = model(tensor(image))
        grid = window_grid(50, 70, (80, 80), 1 / 3)
        bases = fit_global_bases(model, image, grid, SETTINGS, CPU)
        with using_bases(model, bases):
            torch.testing.assert_close(model(tensor(image)), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(model(tensor(image)), expected)  # as before


def test_global_bases_are_those_of_all_features_each_once() -> None:
    """With a backbone that sees only its own cell, windows cannot hide anything."""
    model, image = network(initial_bases="running_average"), picture(64, 96)

    class Cells(nn.Module):
        def forward(self, images: Tensor) -> list[Tensor]:
            cells = images[..., ::8, ::8]
            cells = cells.repeat(1, 16, 1, 1)[:, :16] * torch.arange(1, 17).view(1, -1, 1, 1)
            return [cells] * len(model.backbone.strides)

    model.backbone.network = Cells()
    model.head.reduce = nn.Identity()
    grid = window_grid(64, 96, (32, 48), 0.5)
    assert len(grid) > 4
    with torch.inference_mode():
        unit = em_unit(model)
        features = unit.scale(unit.conv_in(Cells()(tensor(image))[0])).flatten(2).mT
        found = fit_global_bases(model, image, grid, SETTINGS, CPU)
        assert features.shape[1] == 8 * 12
        expected = hemnet.highway_em(features, unit.bases.value, 3, mixture=unit.plan().mixture)
        torch.testing.assert_close(found.after, expected.bases[0], rtol=1e-4, atol=1e-5)


def test_global_bases_from_the_command_line(tmp_path: Path, capsys: Any) -> None:
    saved = network(gain=5.0, zero_init=None).save_pretrained(tmp_path / "model")
    path = tiny_data.image(tmp_path / "large.png", 100, 120)
    found = []
    for extra in ([], ["--global-bases"]):
        out = tmp_path / f"out{len(extra)}"
        flags = ["--whole", "0", "--window", "48", "--out", str(out), *extra]
        assert run("predict", str(saved), str(path), *flags) == 0
        with Image.open(out / "classes/large.png") as image:
            found.append(np.asarray(image))
        assert sorted(p.name for p in out.iterdir()) == ["classes", "overlays", "predictions.jsonl"]
    assert (found[0] != found[1]).any()
    plain = hemnet.create_model("fcn", 5, "test_resnet", 8).save_pretrained(tmp_path / "plain")
    flags = ["--global-bases", "--out", str(tmp_path / "no")]
    assert run("predict", str(plain), str(path), *flags) == 2
    assert "one EM unit" in capsys.readouterr().err
