"""Weights of other projects: every layer's numbers, safety, and errors that list what is wrong."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor

import hemnet
from hemnet.errors import UserError
from hemnet.models.convert import convert
from hemnet.models.convert.settings_text import read_settings
from hemnet.nn.backbone import Backbone
from hemnet.nn.backbone_weights import load_weights
from support import foreign
from support.command_line import run
from support.foreign import State

CLASSES = ["road", "car", "tree", "sky", "person"]
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def double(state: State) -> State:
    return {k: v.double() for k, v in state.items()}


def images(height: int, width: int) -> Tensor:
    random = torch.Generator().manual_seed(4)
    return torch.randn(2, 3, height, width, generator=random, dtype=torch.float64)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.fixture(scope="module")
def emanet() -> State:
    return foreign.emanet_checkpoint()


@pytest.fixture(scope="module")
def backbone() -> State:
    return foreign.mmseg_backbone()


@pytest.fixture(scope="module")
def emanet_file(emanet: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("emanet") / "final.pth"
    torch.save({"iter": 30000, "net": {f"module.{k}": v for k, v in emanet.items()}}, path)
    return path


@pytest.fixture(scope="module")
def converted(emanet_file: Path) -> hemnet.Segmenter:
    return convert(emanet_file, "emanet", classes=CLASSES).model


class TestEMANet:
    def test_has_the_original_logits(self, emanet: State, converted: hemnet.Segmenter) -> None:
        assert converted.config.backbone == "resnet50s"
        assert converted.config.multi_grid == (1, 2, 4)
        assert converted.config.classes == tuple(CLASSES)
        assert (converted.config.mean, converted.config.std) == IMAGENET
        assert not converted.training
        x = images(65, 49)
        with torch.inference_mode():
            found = converted.double()(x)
        converted.float()
        same(found, foreign.emanet(double(emanet), x))

    def test_names_of_layers_inside_a_block_may_differ(
        self, emanet: State, converted: hemnet.Segmenter, tmp_path: Path
    ) -> None:
        names = {"fc0.conv": "fc0.0", "fc0.bn": "fc0.1", "emau.conv2.0": "emau.conv2.conv"}
        state = {}
        for key, value in emanet.items():
            for old, new in names.items():
                key = key.replace(f"{old}.", f"{new}.")
            if not key.endswith("num_batches_tracked"):  # the oldest torch had none
                state[key] = value.contiguous()
        save_file(state, tmp_path / "a.safetensors")
        other = convert(tmp_path / "a.safetensors", "emanet").model
        for key, value in other.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                assert torch.equal(value, converted.state_dict()[key]), key

    def test_command_writes_a_model_that_starts_a_hemnet(
        self, emanet_file: Path, tmp_path: Path, capsys: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        from hemnet.data import Scenes
        from hemnet.training.config_parser import read_config
        from hemnet.training.setup import build_model

        out = tmp_path / "model"
        flags = ("--from", "emanet", "--out", str(out), "--classes", ",".join(CLASSES))
        assert run("convert", str(emanet_file), *flags) == 0
        text = capsys.readouterr().out
        assert "emanet on resnet50s, output stride 8" in text
        assert "align_corners  true" in text
        assert run("convert", str(emanet_file), *flags) == 2
        assert "exists already" in capsys.readouterr().err
        source = hemnet.from_pretrained(out)
        assert source.config.classes == tuple(CLASSES)

        settings = {
            "model.backbone": "resnet50s",
            "model.output_stride": "8",
            "model.channels": "24",
            "model.options.bases": "6",
            "model.init_from": str(out),
        }
        text = [part for k, v in settings.items() for part in (f"--{k}", v)]
        model = build_model(read_config(None, text), Scenes.info)
        assert model.config.model == "hemnet"
        theirs, ours = source.state_dict(), model.state_dict()
        for key in theirs:
            if key.startswith("head.classifier") or key.endswith("gain.rate"):
                continue  # 11 classes instead of 5; the run's own rate
            rate = 30 if key.startswith("head.attention.norm.") and "running" not in key else 1
            scaled = rate if key.endswith(("norm.weight", "norm.bias")) else 1
            torch.testing.assert_close(ours[key] * scaled, theirs[key])
        other = read_config(None, [*text, "--model.align_corners", "false"])
        with pytest.raises(UserError, match=r"was trained with model\.align_corners true"):
            build_model(other, Scenes.info)


class TestMmsegmentation:
    def convert(self, state: State, path: Path, text: str, **meta: Any) -> hemnet.Segmenter:
        torch.save({"meta": {"config": text, **meta}, "state_dict": state, "optimizer": {}}, path)
        return convert(path, "mmseg").model

    @pytest.mark.parametrize(
        ("kind", "name", "corners", "options"),
        [
            ("ema", "emanet", True, {"concatenate": True, "mixed": 12, "bases": 6}),
            ("ema", "emanet", False, {"concatenate": False}),
            ("nl", "nonlocal", True, {"concatenate": True, "activation": False}),
            ("psp", "pspnet", False, {}),
            ("da", "danet", True, {}),
            ("fcn", "fcn", False, {"hidden": 24, "mixed": 24, "concatenate": True}),
        ],
    )
    def test_has_the_original_logits(
        self,
        kind: str,
        name: str,
        corners: bool,
        options: dict[str, Any],
        backbone: State,
        tmp_path: Path,
    ) -> None:
        head = foreign.mmseg_head(kind, concatenate=options.get("concatenate", True))
        state = backbone | head
        text = foreign.settings(corners)
        palette = [[n, n, n] for n in range(5)]
        model = self.convert(state, tmp_path / "a.pth", text, CLASSES=CLASSES, PALETTE=palette)
        config = model.config
        assert (config.model, config.backbone, config.output_stride) == (name, "resnet50c", 8)
        assert config.align_corners == corners
        assert config.classes == tuple(CLASSES)
        assert config.palette == tuple((n, n, n) for n in range(5))
        assert config.options.items() >= options.items()
        x = images(65, 97) if corners else images(64, 96)
        with torch.inference_mode():
            found, second = model.double()(x, auxiliary=True)
        expected, other = foreign.mmseg(double(state), x, kind, corners)
        same(found, expected)
        same(second, other)

    def test_caffe_bgr_eps_and_multi_grid(self, tmp_path: Path) -> None:
        """Stride in the first convolution, images in BGR, another eps, dilations of their own."""
        state = foreign.mmseg_backbone("v1") | foreign.mmseg_head("fcn", concatenate=False)
        text = foreign.settings(
            True,
            backbone="strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2), multi_grid=(1, 2, 4),",
            head="dropout_ratio=0.3,",
            rest="img_norm_cfg = dict(mean=[103.53, 116.28, 123.675], std=[1.0, 2.0, 3.0], "
            "to_rgb=False)",
        )
        text = text.replace("'pytorch'", "'caffe'").replace("_grad=True", "_grad=True, eps=1e-3")
        model = self.convert(state, tmp_path / "a.pth", text)
        config = model.config
        assert (config.backbone, config.output_stride, config.resnet_v1) == ("resnet50", 16, True)
        assert config.multi_grid == (1, 1, 2)
        assert config.options["dropout"] == 0.3
        assert config.mean == pytest.approx((123.675 / 255, 116.28 / 255, 103.53 / 255))
        assert config.std == pytest.approx((3 / 255, 2 / 255, 1 / 255))
        x = images(65, 81)
        with torch.inference_mode():
            found = model.double()(x)
        dilations = ((1,) * 3, (1,) * 4, (1,) * 6, (1, 2, 4))
        expected, _ = foreign.mmseg(
            double(state),
            x.flip(1),
            "fcn",
            True,
            1e-3,
            strides=(1, 2, 2, 1),
            dilations=dilations,
            first_strides=True,
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # eps is a float32 here

    def test_version_1_keeps_its_facts_elsewhere(self, backbone: State, tmp_path: Path) -> None:
        state = backbone | foreign.mmseg_head("fcn")
        text = foreign.settings(True).replace(
            "type='EncoderDecoder',",
            "type='EncoderDecoder', data_preprocessor=dict(type='SegDataPreProcessor', "
            "mean=[10, 20, 30], std=[1, 1, 1], bgr_to_rgb=True),",
        )
        meta = {"cfg": text, "dataset_meta": {"classes": tuple(CLASSES), "palette": None}}
        torch.save({"meta": meta, "state_dict": state}, tmp_path / "a.pth")
        model = convert(tmp_path / "a.pth", "mmseg").model
        model.save_pretrained(tmp_path / "saved")
        config = hemnet.from_pretrained(tmp_path / "saved").config
        assert config == model.config
        assert config.classes == tuple(CLASSES)
        assert config.mean == pytest.approx((10 / 255, 20 / 255, 30 / 255))
        assert config.align_corners

    def test_a_missing_configuration_is_asked_for(self, backbone: State, tmp_path: Path) -> None:
        path = tmp_path / "a.pth"
        torch.save(backbone | foreign.mmseg_head("fcn"), path)
        with pytest.raises(UserError, match="`align_corners`"):
            convert(path, "mmseg")
        assert not convert(path, "mmseg", align_corners=False).model.config.align_corners
        given = convert(path, "mmseg", config=foreign.settings(True)).model
        assert given.config.align_corners

    @pytest.mark.parametrize(
        ("mark", "reason"),
        [
            ("attention_p.1.weight", "PSANet's projection"),
            ("sep_bottleneck.0.weight", "depthwise separable"),
            ("aspp_modules.0.conv.weight", "not DeepLabV3 without"),
            ("lateral_convs.0.conv.weight", "no UPerNet"),
            ("other.weight", "none that hemnet has"),
        ],
    )
    def test_heads_that_differ_are_named(self, mark: str, reason: str, tmp_path: Path) -> None:
        names = ("backbone.layer4.0.conv1.weight", f"decode_head.{mark}",
                 "decode_head.conv_seg.weight")  # fmt: skip
        torch.save(dict.fromkeys(names, torch.zeros(1)), tmp_path / "a.pth")
        with pytest.raises(UserError, match=reason):
            convert(tmp_path / "a.pth", "mmseg", align_corners=True)

    def test_the_backbone_of_a_head_that_differs_can_start_a_network(
        self, backbone: State, tmp_path: Path
    ) -> None:
        """Of a PSANet here; a configuration in `meta` and the other layers do no harm."""
        more = {"decode_head.attention_p.1.weight": torch.zeros(1)}
        path = tmp_path / "psanet.pth"
        meta = {"config": foreign.settings(), "CLASSES": CLASSES, "iter": 80000}
        torch.save({"meta": meta, "state_dict": backbone | more, "optimizer": {}}, path)
        network = Backbone("resnet50c", 8)
        assert not load_weights(network.network, path).missing
        theirs, ours = {k: v.float() for k, v in backbone.items()}, network.network.state_dict()
        for name, key in (
            ("backbone.stem.0.weight", "conv1.0.weight"),
            ("backbone.stem.4.running_var", "conv1.4.running_var"),
            ("backbone.stem.6.weight", "conv1.6.weight"),
            ("backbone.stem.7.bias", "bn1.bias"),
            ("backbone.layer3.2.conv2.weight", "layer3.2.conv2.weight"),
        ):
            torch.testing.assert_close(ours[key], theirs[name])

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("contract_dilation=True", "contract_dilation=False", "contract_dilation=False"),
            ("dilations=(1, 1, 2, 4)", "dilations=(1, 1, 1, 1)", r"dilations \(1, 1, 1, 1\)"),
            ("in_index=3", "dilation=6", "dilation=6, ours has 1"),
            ("in_index=3", "pool_scales=[1, 2]", r"pool_scales=\[1, 2\]"),
            ("type='SyncBN'", "type='GN'", "normalised by GN"),
            ("strides=", "multi_grid=(1, 2, 4), strides=", "multi_grid"),
            ("in_index=3", "momentum='x'", "not understood"),
        ],
    )
    def test_facts_that_differ_are_named(
        self, old: str, new: str, reason: str, tmp_path: Path
    ) -> None:
        text = foreign.settings().replace(old, new)
        torch.save({"decode_head.conv_seg.weight": torch.zeros(1)}, tmp_path / "a.pth")
        with pytest.raises(UserError, match=reason):
            convert(tmp_path / "a.pth", "mmseg", config=text)

    def test_other_backbones_are_named(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pth"
        state = foreign.mmseg_head("fcn") | {"backbone.layer4.0.conv1.weight": torch.zeros(1)}
        torch.save(state, path)
        with pytest.raises(UserError, match="basic blocks"):
            convert(path, "mmseg", align_corners=True)
        torch.save(foreign.mmseg_head("fcn"), path)
        with pytest.raises(UserError, match="ResNets"):
            convert(path, "mmseg", align_corners=True)
        state = foreign.mmseg_backbone("v1d") | foreign.mmseg_head("fcn")
        torch.save(state, path)
        with pytest.raises(UserError, match="stride 32 only"):
            convert(path, "mmseg", align_corners=True)
        model = convert(path, "mmseg", align_corners=True, output_stride=32).model
        assert model.config.backbone == "resnet50d"


class TestWhatDoesNotFit:
    def refused(self, state: State, path: Path, **options: Any) -> str:
        torch.save(state, path)
        with pytest.raises(UserError) as error:
            convert(path, "emanet", **options)
        return str(error.value)

    def test_left_over_and_missing_names_are_listed(self, emanet: State, tmp_path: Path) -> None:
        path = tmp_path / "a.pth"
        more = emanet | {"loss.weight": torch.zeros(5), "fc3.weight": torch.zeros(5)}
        text = self.refused(more, path)
        assert "left over in the file: loss.weight, fc3.weight" in text
        assert "`ignore=NAME`" in text
        assert convert(path, "emanet", ignore=["loss.*", "fc3.weight"]).dropped
        less = {k: v for k, v in emanet.items() if not k.startswith(("fc1", "emau.conv1.b"))}
        text = self.refused(less, path)
        assert "missing in the file: fc1 (convolution 1 of 1), fc1 (batch norm 1 of 1)" in text
        less = {k: v for k, v in emanet.items() if k != "emau.conv1.bias"}
        assert "by our names: head.attention.conv_in.bias" in self.refused(less, path)
        less = {k: v for k, v in emanet.items() if k != "extractor.6.3.bn2.running_var"}
        assert "layer3.3.bn2.running_var" in self.refused(less, path)

    def test_other_shapes_and_values(self, emanet: State, tmp_path: Path) -> None:
        path = tmp_path / "a.pth"
        text = self.refused(emanet | {"emau.conv1.bias": torch.zeros(7)}, path)
        assert "head.attention.conv_in.bias would have the shape (7,)" in text
        nan = torch.full_like(emanet["fc2.bias"], torch.nan)
        assert "not finite" in self.refused(emanet | {"fc2.bias": nan}, path)
        assert "5 names" in self.refused(emanet, path, classes=["one"])
        assert "(7,), not (1, channels, bases)" in self.refused(
            emanet | {"emau.mu": torch.zeros(7)}, path
        )

    def test_other_files(self, emanet: State, tmp_path: Path) -> None:
        path = tmp_path / "a.pth"
        text = self.refused({"emau.mus": torch.zeros(1)}, path)
        assert "none of its 1 tensors is called emau.mu; there are emau.mus" in text
        torch.save([1], path)
        with pytest.raises(UserError, match="holds a list"):
            convert(path, "emanet")
        for content in (b"", b"anything", b"PK\3\4", path.read_bytes()[:100]):
            path.write_bytes(content)
            with pytest.raises(UserError, match="damaged or of another kind"):
                convert(path, "emanet")
        with pytest.raises(UserError, match="no checkpoint"):
            convert(tmp_path / "none.pth", "emanet")
        loop: dict[str, Any] = {}
        loop["again"] = loop
        torch.save(loop, path)
        with pytest.raises(UserError, match="none of its 0 tensors"):
            convert(path, "emanet")


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


class TestNothingIsExecuted:
    @pytest.fixture
    def odd(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """An object of a class that is not there when the file is read."""
        module = types.ModuleType("mmengine_odd")

        class History(dict):  # type: ignore[type-arg]
            pass

        class Buffer(list):  # type: ignore[type-arg]
            def __setstate__(self, state: Any) -> None:
                raise AssertionError("executed")

        for kind in (History, Buffer):
            kind.__module__, kind.__qualname__ = "mmengine_odd", kind.__name__
            setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, "mmengine_odd", module)
        buffer, history = Buffer([1, 2]), History(a=1)
        buffer.name, history.more = "x", {2}
        return {
            "buffer": buffer,
            "history": history,
            "set": {1, 2},
            "array": __import__("numpy").ones(3),
        }

    @pytest.mark.parametrize("legacy", [False, True])
    def test_odd_objects_are_ignored(
        self,
        legacy: bool,
        odd: Any,
        emanet: State,
        converted: hemnet.Segmenter,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path, marker = tmp_path / "a.pth", tmp_path / "executed"
        parameter = torch.nn.Parameter(emanet["fc2.bias"])
        content = {
            "meta": odd | {"evil": _Evil(marker)},
            "state_dict": emanet | {"fc2.bias": parameter},
        }
        torch.save(content, path, _use_new_zipfile_serialization=not legacy)
        monkeypatch.delitem(sys.modules, "mmengine_odd")
        model = convert(path, "emanet").model
        assert not marker.exists()
        for key, value in model.state_dict().items():
            assert torch.equal(value, converted.state_dict()[key]), key

    def test_programs_are_refused(self, tmp_path: Path) -> None:
        path, marker = tmp_path / "a.pth", tmp_path / "executed"
        torch.jit.script(torch.nn.ReLU()).save(str(path))
        with pytest.raises(UserError, match="cannot be read"):
            convert(path, "emanet")
        path.write_bytes(pickle.dumps(_Evil(marker)))
        with pytest.raises(UserError, match="cannot be read"):
            convert(path, "emanet")
        torch.save(_Evil(marker), path)
        with pytest.raises(UserError, match="not tensors by name"):
            convert(path, "emanet")
        assert not marker.exists()

    def test_configurations_are_read_not_run(self) -> None:
        text = """
a = dict(b=[1, -2.5, None], c=(True, 'x'), d={'e': 1, f(): 2}, g=open('x'))
h = a
i = __import__('os').system('true')
j: int = 3
k = [unknown]
l = dict(1, m=2)
import os
"""
        a = {"b": [1, -2.5, None], "c": (True, "x"), "d": {"e": 1}}
        assert read_settings(text) == {"a": a, "h": a}
        assert read_settings("a = (") == read_settings("\0") == {}


@pytest.mark.parametrize("name", ["fcn_resnet50", "deeplabv3_resnet50"])
def test_torchvisions_networks_give_a_backbone(name: str, tmp_path: Path) -> None:
    make = getattr(torchvision.models.segmentation, name)
    theirs = make(weights=None, weights_backbone=None, num_classes=21, aux_loss=True).eval()
    torch.save(theirs.state_dict(), tmp_path / "coco.pth")
    ours = Backbone("resnet50", 8).eval()
    assert not load_weights(ours.network, tmp_path / "coco.pth").missing
    x = images(65, 65).float()
    with torch.inference_mode():
        torch.testing.assert_close(ours(x)[-1], theirs.backbone(x)["out"], rtol=1e-4, atol=1e-5)
