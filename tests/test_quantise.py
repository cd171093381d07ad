"""Files in int8 and with half weights: what they lose, what stays in float, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hemnet
from hemnet.errors import UserError
from hemnet.export.calibration import calibration_data
from hemnet.export.quantise import (
    AccuracyDrop,
    Calibration,
    float_nodes,
    measure_drop,
    refuse_above,
)
from hemnet.export.writers import export_model
from hemnet.inference.exported_model import ExportedModel, openvino_core
from support import tiny_data
from support.command_line import run
from support.exports import build, logits

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = build(tiny=False, iterations=2)
    return model.save_pretrained(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module", params=["onnx", "openvino"])
def int8(
    source: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    pytest.importorskip("nncf")
    pytest.importorskip("openvino")
    suffix = {"onnx": "onnx", "openvino": "xml"}[request.param]
    path = tmp_path_factory.mktemp("int8") / f"model.{suffix}"
    flags = ("--format", request.param, "--out", str(path), "--precision", "int8")
    data = ("--calibrate", "scenes", "--images", "3", "--held-out", "2", "--tolerance", "50")
    report = path.with_suffix(".json")
    assert run("export", str(source), *flags, *data, "--json", str(report)) == 0
    found = json.loads(report.read_text())
    assert found["loss"]["metric"] == "mIoU"
    assert found["loss"]["images"] == 2
    report.unlink()
    return path


class TestInt8:
    def test_is_used_like_any_model(self, source: Path, int8: Path, tmp_path: Path) -> None:
        expected = {"model.onnx"} if int8.suffix == ".onnx" else {"model.xml", "model.bin"}
        assert {path.name for path in int8.parent.iterdir()} == expected
        exported, model = ExportedModel(int8), hemnet.from_pretrained(source)
        assert exported.precision == "int8"
        assert exported.config == model.config
        assert logits(exported, 2, 3, 130, 97).shape == (2, 11, 130, 97)
        for images in calibration_data(model, "scenes", images=1, held_out=2).held_out:
            with torch.inference_mode():
                ours, theirs = model(images), exported(images)
            assert (ours.argmax(1) == theirs.argmax(1)).float().mean() > 0.8
            assert 0.001 < (ours - theirs).abs().mean() / ours.std() < 0.3
        picture = tiny_data.image(tmp_path / "a.png", 70, 50)
        assert run("predict", str(int8), str(picture), "--out", str(tmp_path / "out")) == 0
        data = ("--data.name", "scenes", "--data.size", "48", "--data.length", "2")
        assert run("evaluate", str(int8), *data, "--split", "val", "--workers", "0") == 0

    @pytest.mark.parametrize("int8", ["onnx"], indirect=True)
    def test_em_and_classifier_stay_in_float(self, int8: Path) -> None:
        import onnx
        from onnx import numpy_helper

        model = onnx.load(int8)
        graph = model.graph
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        made = {name: node for node in graph.node for name in node.output}
        quantised = [
            node
            for node in graph.node
            if node.op_type == "Conv"
            and getattr(made.get(node.input[1]), "op_type", "") == "DequantizeLinear"
        ]
        plain = [n for n in graph.node if n.op_type == "Conv" and n not in quantised]
        assert len(quantised) > 10
        assert [tensors[n.input[1]].dims[0] for n in plain] == [11]  # the classifier
        for node in graph.node:
            if node.op_type in ("MatMul", "Softmax", "Div", "Sub", "ReduceSum"):
                kinds = {made[name].op_type for name in node.input if name in made}
                assert "DequantizeLinear" not in kinds, node.name
            if node.op_type == "QuantizeLinear":  # as TensorRT reads it
                zero = numpy_helper.to_array(tensors[node.input[2]])
                assert zero.dtype == "int8"
                assert not zero.any()
        meta = {p.key: json.loads(p.value) for p in model.metadata_props}
        assert meta["precision"] == "int8"
        assert meta["calibration"]["data"] == "scenes"
        assert meta["calibration"]["images"] == 3
        assert meta["calibration"]["loss"]["metric"] == "mIoU"
        assert len(meta["classes"]) == 11

    @pytest.mark.parametrize("int8", ["openvino"], indirect=True)
    def test_openvino_computes_in_int8(self, int8: Path) -> None:
        compiled = openvino_core().compile_model(int8, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        kinds: dict[str, set[str]] = {}
        for node in compiled.get_runtime_model().get_ordered_ops():
            info = node.get_rt_info()
            kind, precision = (info[k].astype(str) for k in ("layerType", "runtimePrecision"))
            kinds.setdefault(kind, set()).add(precision)
        assert kinds["Convolution"] & {"i8", "u8"}
        for kind in {"MatMul", "Softmax", "SoftMax"} & kinds.keys():
            assert kinds[kind] == {"f32"}

    def test_too_large_a_loss_is_refused(
        self, source: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is lost depends on the processor: here the first file loses 1.5 points."""
        pytest.importorskip("nncf")
        for number in range(3):
            tiny_data.image(tmp_path / "photos" / f"{number}.png", 64, 64, seed=number)
        flags = ("--precision", "int8", "--calibrate", str(tmp_path / "photos"))
        out = ("--tolerance", "1", "--out", str(tmp_path / "a.onnx"))
        with monkeypatch.context() as lossy:
            lossy.setattr(
                "hemnet.export.quantise.measure_drop",
                lambda _, __, data: AccuracyDrop("agreement", 100.0, 98.5, len(data.held_out)),
            )
            assert run("export", str(source), *flags, *out) == 2
        error = capsys.readouterr().err
        assert "agreement 100.00 in float32, 98.50 in int8, on 1 held-out images" in error
        assert "--keep-float" in error
        assert "--accurate" in error
        assert [path.name for path in tmp_path.iterdir()] == ["photos"]
        report = tmp_path / "a.json"
        out = (*out, "--json", str(report))
        assert run("export", str(source), *flags, *out, "--accurate") == 0
        assert json.loads(report.read_text())["loss"]["after"] >= 99


def node(kind: str, module: str, name: str) -> Any:
    scopes = ["", *(module.split("/") if module else []), name]
    return SimpleNamespace(
        op_type=kind, name=name, metadata_props={"pkg.torch.onnx.name_scopes": str(scopes)}
    )


def test_what_stays_in_float() -> None:
    model = build()
    graph = [
        node("Conv", "backbone/backbone.network/backbone.network.conv1", "a"),
        node("Add", "backbone/backbone.network", "b"),
        node("Pad", "", "c"),
        node("Conv", "head/head.attention/head.attention.conv_in", "d"),
        node("Mul", "head/head.attention", "e"),
        node("Conv", "head/head.attention/head.attention.conv_out", "f"),
        node("MatMul", "head/head.mix", "g"),
        node("Conv", "head/head.mix/head.mix.0", "h"),
        node("Conv", "head/head.classifier/head.classifier.1", "i"),
    ]
    assert float_nodes(graph, model) == ["c", "d", "e", "g", "i"]
    assert float_nodes(graph, model, ["head.mix*"]) == ["c", "d", "e", "g", "h", "i"]
    with pytest.raises(UserError, match="no layer left"):
        float_nodes(graph, model, ["*"])
    for plain in graph:
        plain.metadata_props = {}
    with pytest.raises(UserError, match="no layer left"):
        float_nodes(graph, model)


class Constant(nn.Module):
    """Class 1 in the first columns, class 0 elsewhere."""

    config = SimpleNamespace(num_classes=2)

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(1, 2, *images.shape[-2:])
        found[:, 1, :, : self.columns] = 1
        found[:, 0] = 0.5
        return found


def test_losses() -> None:
    images = [torch.zeros(1, 3, 10, 10)] * 2
    label = torch.zeros(10, 10, dtype=torch.int64)
    label[:, :4] = 1
    label[0] = 255
    data = Calibration(images, images, [label, label], "x")
    loss = measure_drop(Constant(4), Constant(5), data)
    assert (loss.metric, loss.before) == ("mIoU", 100)
    assert loss.after == pytest.approx(100 * (4 / 5 + 5 / 6) / 2)
    loss = measure_drop(Constant(4), Constant(5), Calibration(images, images, None, "x"))
    assert loss == AccuracyDrop("agreement", 100, pytest.approx(90), 2)
    refuse_above(loss, 10, accurate=False)
    with pytest.raises(UserError, match=r"10\.00 points are lost, at most 9 are accepted"):
        refuse_above(loss, 9, accurate=False)


@pytest.mark.parametrize(
    ("kind", "precision", "share"),
    [("onnx", "fp16", 0.75), ("onnx", "bf16", 0.75), ("torch", "fp16", 0.9),
     ("openvino", "fp16", 0.75)],
)  # fmt: skip
def test_half_weights(kind: str, precision: str, share: float, tmp_path: Path) -> None:
    if kind == "openvino":
        pytest.importorskip("openvino")
    model = build("fcn", hidden=64)
    suffix = {"onnx": ".onnx", "torch": ".pt2", "openvino": ".xml"}[kind]
    path = tmp_path / f"a{suffix}"
    found = export_model(model, path, kind, precision=precision)
    assert 1e-6 < max(row.difference for row in found.parity) < 0.05
    exported = ExportedModel(path, trust=True)
    assert exported.precision == precision
    weights = sum(p.numel() for p in model.parameters()) * 4
    stored = path.with_suffix(".bin") if kind == "openvino" else path
    assert stored.stat().st_size < share * weights


class TestCalibration:
    def test_data_sets_have_labels(self) -> None:
        data = calibration_data(build(), "scenes", images=3, held_out=2)
        assert (len(data.images), len(data.held_out), data.name) == (3, 2, "scenes")
        assert data.labels is not None
        assert data.images[0].shape[:2] == (1, 3)
        assert data.labels[1].shape == data.held_out[1].shape[-2:]
        assert not torch.equal(data.held_out[0], data.held_out[1])

    def test_files_are_halved_and_large_ones_cut(self, tmp_path: Path) -> None:
        for number in range(5):
            tiny_data.image(tmp_path / f"{number}.png", 20, 1500 if number == 4 else 30, number)
        data = calibration_data(build(), str(tmp_path), images=10, held_out=10)
        assert (len(data.images), len(data.held_out), data.labels) == (3, 2, None)
        assert data.images[2].shape == (1, 3, 20, 1024)
        every = [*data.images, *data.held_out]
        assert all(not torch.equal(a, b) for i, a in enumerate(every) for b in every[:i])

    def test_mistakes(self, tmp_path: Path) -> None:
        tiny_data.image(tmp_path / "a.png")
        with pytest.raises(UserError, match="one image is not enough"):
            calibration_data(build(), str(tmp_path))
        with pytest.raises(UserError, match="give it as `root`"):
            calibration_data(build(), "voc")
        with pytest.raises(UserError, match="no such file"):
            calibration_data(build(), str(tmp_path / "none"))
        other = hemnet.create_model("fcn", 2, "test_resnet", 16)
        with pytest.raises(UserError, match="not those of scenes"):
            calibration_data(other, "scenes")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--precision", "int8"), "belong together"),
        (("--calibrate", "scenes"), "belong together"),
        (("--precision", "int8", "--calibrate", "scenes", "--tolerance", "-1"), "tolerance"),
        (("--precision", "int8", "--calibrate", "scenes", "--images", "0"), "at least one"),
    ],
)
def test_mistakes_exit_with_2(
    source: Path, flags: tuple[str, ...], message: str, tmp_path: Path, capsys: Any
) -> None:
    assert run("export", str(source), "--out", str(tmp_path / "a.onnx"), *flags) == 2
    assert message in capsys.readouterr().err


def test_formats_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no precision"):
        export_model(build("fcn"), tmp_path / "a.onnx", precision="int4")
    with pytest.raises(UserError, match="not bf16"):
        export_model(build("fcn"), tmp_path / "a.xml", "openvino", precision="bf16")
    with pytest.raises(UserError, match="torch has no such file"):
        export_model(build("fcn"), tmp_path / "a.pt2", "torch", precision="int8")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "nncf" else name)
    with pytest.raises(UserError, match=r"int8 needs nncf.*hemnet-torch\[nncf\]"):
        export_model(build("fcn"), tmp_path / "a.onnx", precision="int8")
