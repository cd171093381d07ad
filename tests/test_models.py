"""The contract of every model, and what `create_model` refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hemnet
from hemnet.errors import UserError
from hemnet.models.registry import head_options
from hemnet.nn.heads import psanet

MODELS = hemnet.list_models()
DECODED = [name for name in MODELS if "decoder" in head_options(name)[0]]
CLASSES = 5


def build(name: str, **options: Any) -> hemnet.Segmenter:
    """A model by name, or "hemnet with a decoder"."""
    torch.manual_seed(0)
    name, decoded, _ = name.partition(" with a decoder")
    if decoded:
        options.setdefault("decoder", 12)
    if name != "fcn":
        options.setdefault("channels", 32)
    if name in ("hemnet", "emanet"):
        options.setdefault("bases", 8)
    options.setdefault("backbone", "test_resnet")
    model = hemnet.create_model(name, CLASSES, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():  # zero-initialised: give every path something to carry
                parameter.fill_(0.1)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module", params=[*MODELS, "hemnet with a decoder"])
def model(request: pytest.FixtureRequest) -> hemnet.Segmenter:
    return build(request.param).eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((a - b).abs().max() <= tolerance * max(1, float(b.abs().max())))


@pytest.mark.parametrize("size", [(33, 47), (1, 1), (7, 130), (513, 513)])
def test_logits_have_the_size_of_the_image(model: hemnet.Segmenter, size: tuple[int, int]) -> None:
    with torch.no_grad():
        logits = model(images(1, 3, *size))
    assert logits.shape == (1, CLASSES, *size)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", [*MODELS, *(f"{name} with a decoder" for name in DECODED)])
def test_gradients_reach_every_parameter_that_trains(name: str) -> None:
    model = build(name, auxiliary=True).train()
    logits, auxiliary = model(images(2, 3, 40, 56), auxiliary=True)
    assert logits.shape == auxiliary.shape == (2, CLASSES, 40, 56)
    (logits.square().mean() + auxiliary.square().mean()).backward()
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert not [n for n, grad in trained.items() if grad is None or not grad.abs().sum() > 0]
    # EMANet's iterations are constants: what only feeds them cannot be trained.
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    expected = {f"head.attention.conv_in.{n}" for n in ("weight", "bias")}
    assert frozen == (expected if name.startswith("emanet") else set())


@pytest.mark.parametrize("name", MODELS)
def test_training_and_evaluation_differ_as_they_should(name: str) -> None:
    model = build(name).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        model(images(2, 3, 40, 56))
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert any(k.endswith("running_mean") for k in changed)
    if name in ("hemnet", "emanet"):
        assert {"head.attention.bases.value", "head.attention.principal.value"} & set(changed)
    model.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        first, second = model(images(2, 3, 40, 56)), model(images(2, 3, 40, 56))
    assert torch.equal(first, second)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_an_image_does_not_depend_on_its_batch(model: hemnet.Segmenter) -> None:
    x = images(3, 3, 40, 56)
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(x[i : i + 1]) for i in range(3)])
    assert close(alone, together)


def test_saved_and_loaded_is_the_same_model(model: hemnet.Segmenter, tmp_path: Path) -> None:
    loaded = hemnet.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert not loaded.training
    assert loaded.config == model.config
    x = images(1, 3, 33, 47)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_compiles_into_one_graph(model: hemnet.Segmenter) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = images(1, 3, 33, 47)
    with torch.no_grad():
        assert close(compiled(x), model(x))


def test_exports(model: hemnet.Segmenter) -> None:
    x = images(1, 3, 33, 47)
    exported = torch.export.export(model, (x,)).module()
    with torch.no_grad():
        assert close(exported(x), model(x))


# A processor without bfloat16 products makes torch say once that it uses another kernel.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_close(model: hemnet.Segmenter, dtype: torch.dtype) -> None:
    x = images(1, 3, 65, 65)
    with torch.no_grad():
        full = model(x)
        with torch.autocast("cpu", dtype):
            half = model(x).float()
    assert torch.isfinite(half).all()
    assert close(half, full, 0.1 if dtype == torch.bfloat16 else 0.02)


def test_channels_last_gives_the_same(model: hemnet.Segmenter) -> None:
    x = images(2, 3, 40, 56)
    with torch.no_grad():
        expected = model(x)
        model.to(memory_format=torch.channels_last)
        found = model(x.contiguous(memory_format=torch.channels_last))
        model.to(memory_format=torch.contiguous_format)
    assert close(found, expected)


def test_fused_gives_the_same_without_batch_norms(model: hemnet.Segmenter) -> None:
    fused = model.fuse().to(memory_format=torch.channels_last)
    x = images(2, 3, 65, 65)
    with torch.no_grad():
        assert close(fused(x), model(x), 1e-4)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in fused.modules())
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    with pytest.raises(RuntimeError, match="cannot be trained"):
        fused.train()
    with pytest.raises(UserError, match="fused"):
        fused.save_pretrained("nowhere")


@pytest.mark.parametrize("backbone", ["test_efficientnet", "test_convnext", "regnetx_002"])
def test_fuses_backbones_whose_norms_carry_an_activation(backbone: str) -> None:
    model = build("fcn", backbone=backbone, output_stride=16).eval()
    x = images(1, 3, 64, 64)
    with torch.no_grad():
        assert close(model.fuse()(x), model(x), 1e-4)


class TestPrediction:
    def test_normalises_as_the_model_was_trained(self) -> None:
        model = build("fcn", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)).eval()
        picture = np.random.default_rng(0).integers(0, 256, (130, 141, 3), dtype=np.uint8)
        x = (torch.tensor(picture) / 255 - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor(
            [0.5, 0.6, 0.7]
        )
        with torch.no_grad():
            # Centred, so that no class is everywhere.
            last = [m for m in model.head.modules() if isinstance(m, torch.nn.Conv2d)][-1]
            last.bias -= model(x.permute(2, 0, 1)[None]).mean((0, 2, 3))
            expected = model(x.permute(2, 0, 1)[None]).argmax(1)[0].numpy()
        assert np.array_equal(model.predict(picture), expected)
        assert np.array_equal(model.predict(picture / 255.0), expected)
        assert np.array_equal(model.predict(Image.fromarray(picture)), expected)
        assert len(np.unique(expected)) > 1

    def test_obeys_rotation_marks_and_keeps_the_mode(self, tmp_path: Path) -> None:
        model = build("fcn").train()
        path = tmp_path / "turned.png"
        exif = Image.Exif()
        exif[0x0112] = 6  # turn by 90°
        Image.new("RGBA", (40, 30), (200, 30, 90, 128)).save(path, exif=exif)
        assert model.predict(path).shape == (40, 30)
        assert model.training

    @pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "I;16", "RGBA"])
    def test_takes_every_kind_of_picture(self, mode: str) -> None:
        classes = build("fcn").predict(Image.new(mode, (9, 6)))
        assert classes.shape == (6, 9)
        assert classes.dtype == np.uint8

    def test_refuses_what_is_no_picture(self, tmp_path: Path) -> None:
        model = build("fcn")
        (tmp_path / "x.png").write_bytes(b"no picture")
        for path in (tmp_path / "x.png", tmp_path / "missing.png", tmp_path):
            with pytest.raises(UserError, match="cannot read the image"):
                model.predict(path)
        for array in (
            np.zeros((4, 4, 2), np.uint8),
            np.full((4, 4, 3), 7.0),
            np.zeros((4, 4), int),
        ):
            with pytest.raises(ValueError, match="an image array is"):
                model.predict(array)
        with pytest.raises(TypeError, match="not list"):
            model.predict([1, 2])  # type: ignore[arg-type]


class TestCreateModel:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"name": "unet"}, "choose from hemnet, emanet, fcn"),
            ({"backbone": "resnet51"}, "did you mean resnet"),
            ({"backbone": "hf-hub:someone/model"}, "timm has no backbone"),
            ({"output_stride": 4}, r"one of \(8, 16, 32\), not 4"),
            ({"num_classes": 0}, "num_classes must be a whole number from 1, not 0"),
            ({"num_classes": True}, "num_classes must be a whole number"),
            ({"channels": 3.5}, "channels must be a whole number"),
            ({"name": "fcn", "channels": 64}, "no channels to choose"),
            ({"stepsize": 1}, "no option 'stepsize'; its options are channels, dropout, mixed"),
            ({"step_size": 3}, "step_size"),
            ({"iterations": 0}, "iterations"),
            ({"dropout": 1.5}, "dropout must be in"),
            ({"preset": "best"}, "preset must be one of"),
            ({"name": "emanet", "step_size": 0.5}, "no option 'step_size'"),
            ({"name": "psanet", "mask_size": 4}, "mask_size must be odd"),
            ({"classes": ["a", "b"]}, "classes must be 21 names"),
            ({"palette": [[0, 0, 256]] * 21}, "three bytes"),
            ({"palette": [[0, 0, 0]]}, "palette must have 21 colours"),
            ({"mean": (0.5, 0.5)}, "mean must be three numbers"),
            ({"std": (0.5, 0, 0.5)}, "std must be three numbers"),
            ({"weights": 3}, "weights must be None"),
            ({"weights": "missing.pth"}, "there is no weight file"),
            ({"multi_grid": (1, 2, 4)}, "multi_grid .* must be 2 positive"),
            ({"resnet_v1": True}, "needs a ResNet of timm's Bottleneck"),
            ({"auxiliary": 1}, "auxiliary must be true or false"),
            ({"step_size": torch.tensor(0.5, requires_grad=True)}, "To learn it"),
        ],
    )
    def test_refuses(self, arguments: dict[str, Any], message: str) -> None:
        arguments = {"name": "hemnet", "backbone": "resnet18", "output_stride": 32} | arguments
        with pytest.raises(UserError, match=message):
            hemnet.create_model(**arguments)

    def test_deeplab_needs_detail(self) -> None:
        with pytest.raises(UserError, match="needs a feature of stride 4"):
            hemnet.create_model("deeplabv3plus", 3, "test_vit", 16)

    @pytest.mark.parametrize("name", DECODED)
    def test_a_decoder_is_built_only_when_asked_for(self, name: str) -> None:
        plain = build(name).state_dict()
        decoded = build(name, decoder=12)
        assert not [key for key in plain if "decode" in key or "detail" in key]
        assert decoded.config.options["decoder"] == 12
        added = {k: tuple(v.shape) for k, v in decoded.state_dict().items() if "conv" not in k}
        assert added["head.detail.0.weight"][:1] == (48,)
        assert added["head.decode.0.weight"] == (12, 256 + 48, 3, 3)
        assert added["head.classifier.1.weight"] == (CLASSES, 12, 1, 1)
        assert build(name).config.options["decoder"] is None

    def test_the_papers_head_has_no_decoder(self) -> None:
        assert build("hemnet", preset="paper").config.options["decoder"] is None

    @pytest.mark.parametrize("decoder", [0, -1, True, 1.5, "wide"])
    def test_a_decoder_is_a_number_of_channels(self, decoder: Any) -> None:
        with pytest.raises(UserError, match="decoder must be null or a whole number from 1"):
            build("nonlocal", decoder=decoder)

    def test_a_decoder_needs_detail(self) -> None:
        with pytest.raises(UserError, match="decoder=8 needs a feature of stride 4"):
            hemnet.create_model("emanet", 3, "test_vit", 16, decoder=8)

    def test_options_reach_the_unit(self) -> None:
        unit = build(
            "hemnet", bases=7, iterations=2, step_size=(0.3, 0.6), eval_iterations=5, kernel="rbf"
        ).head.attention
        assert isinstance(unit, hemnet.HighwayEMAttention)
        assert unit.bases.value.shape == (7, 32)
        assert (unit.iterations, unit.eval_iterations, unit.kernel) == (2, 5, "rbf")
        assert list(unit.step_size) == [0.3, 0.6]

    def test_the_papers_unit_is_a_preset(self) -> None:
        def scale(**options: Any) -> torch.Tensor:
            model = hemnet.create_model("hemnet", 3, "test_resnet", channels=8, **options)
            return model.head.attention.norm.weight

        assert (scale(preset="paper") == 1).all()
        assert (scale() == 0).all()

    def test_without_auxiliary_head_there_is_no_auxiliary_output(self) -> None:
        with pytest.raises(ValueError, match="auxiliary=True"):
            build("fcn").eval()(images(1, 3, 8, 8), auxiliary=True)

    @pytest.mark.parametrize("shape", [(3, 8, 8), (1, 4, 8, 8)])
    def test_refuses_other_inputs(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="B,3,H,W"):
            build("fcn")(images(*shape))

    def test_importing_hemnet_does_not_import_timm(self) -> None:
        code = "import sys, hemnet; sys.exit('timm' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0


class TestPointwiseMask:
    """PSANet's relative masks against the definition, position by position."""

    @staticmethod
    def reference(mask: torch.Tensor, size: int, x: torch.Tensor, give: bool) -> torch.Tensor:
        b, _, h, w = x.shape
        reach = size // 2
        mask = mask.view(b, size, size, h, w)
        scores = x.new_full((b, h * w, h * w), float("-inf"))  # target, source
        for target in range(h * w):
            for source in range(h * w):
                at, other = (source, target) if give else (target, source)
                dy, dx = other // w - at // w + reach, other % w - at % w + reach
                if 0 <= dy < size and 0 <= dx < size:
                    scores[:, target, source] = mask[:, dy, dx, at // w, at % w]
        return (x.flatten(2) @ scores.softmax(-1).mT).view(x.shape)

    @pytest.mark.parametrize("give", [False, True])
    @pytest.mark.parametrize("tiled", [False, True])
    @pytest.mark.parametrize(
        ("size", "h", "w"), [(5, 4, 6), (5, 1, 1), (5, 2, 1), (7, 3, 4), (3, 8, 7), (63, 4, 3)]
    )
    def test_equals_the_definition(
        self, size: int, h: int, w: int, tiled: bool, give: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if tiled:
            monkeypatch.setattr(psanet, "DENSE_POSITIONS", 0)
            monkeypatch.setattr(psanet, "TILE", 3)
        mask, x = images(2, size * size, h, w).double(), images(2, 3, h, w).double()
        relative = psanet.crop_mask(mask, size)
        if give:
            relative = psanet.received(relative)
        found = psanet.weighted_sum(psanet.normalised(relative), x)
        assert torch.allclose(found, self.reference(mask, size, x, give), atol=1e-12)
