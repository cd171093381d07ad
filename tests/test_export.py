"""Exported files: the model's own logits for any size, with all that is needed to use them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import hemnet
from hemnet.errors import UserError
from hemnet.export import writers as export
from hemnet.export.writers import BATCHES, SIZES, check_parity, export_model
from hemnet.inference.exported_model import ExportedModel
from hemnet.nn.backbone import Backbone
from hemnet.nn.plan import highway_solver
from hemnet.nn.pooling import region_means
from support import tiny_data
from support.backbones import FAMILIES
from support.command_line import run
from support.exports import INFO, build, logits

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Joined(nn.Module):
    """Several heads in one, because an export takes seconds: the sum of their logits."""

    level = 0

    def __init__(self, heads: list[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, features: list[Tensor], mask: Tensor | None = None) -> Tensor:
        size = features[0].shape[-2:]
        return sum(F.interpolate(head(features, mask), size) for head in self.heads)


# Those not named here: hemnet is exported below, in every format.
@pytest.mark.parametrize(
    "names", [("psanet",), ("emanet", "fcn", "deeplabv3plus", "pspnet", "danet", "nonlocal")]
)
def test_every_model_as_onnx(names: tuple[str, ...], tmp_path: Path) -> None:
    model = build(names[0])
    model.head = Joined([build(name).head for name in names])
    found = export_model(model, tmp_path / "model.onnx").parity
    assert len(found) == len(SIZES) * len(BATCHES) >= 8
    assert all(row.difference < 1e-4 for row in found)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    exported = ExportedModel(tmp_path / "model.onnx")
    for shape in ((3, 3, 41, 7), (1, 3, 1, 1), (1, 3, 50, 333)):  # not among those compared
        torch.testing.assert_close(
            logits(exported, *shape), logits(model, *shape), rtol=1e-3, atol=1e-4
        )


def test_a_decoder_as_onnx(tmp_path: Path) -> None:
    model = build(decoder=8)
    found = export_model(model, tmp_path / "model.onnx").parity
    assert all(row.difference < 1e-4 for row in found)
    exported = ExportedModel(tmp_path / "model.onnx")
    for shape in ((3, 3, 41, 7), (1, 3, 1, 1), (1, 3, 50, 333)):
        torch.testing.assert_close(
            logits(exported, *shape), logits(model, *shape), rtol=1e-3, atol=1e-4
        )


def test_bases_that_explain_nothing_as_onnx(tmp_path: Path) -> None:
    """Their mass is 0, and optimizers of ONNX take a tiny number added to it for nothing."""
    model = build(variance=1e-6)
    unit, masses = model.head.attention, []

    def recording(*given: Any, **more: Any) -> hemnet.EMResult:
        result = highway_solver(*given, **more)
        masses.append(result.responsibilities.sum(dim=1))
        return result

    unit.solver = recording
    logits(model, 1, 3, 65, 65)
    assert (masses[0] == 0).any()
    unit.solver = highway_solver
    assert all(row.difference < 1e-4 for row in export_model(model, tmp_path / "model.onnx").parity)


def test_no_model_is_forgotten() -> None:
    named = test_every_model_as_onnx.pytestmark[0].args[1]
    assert {"hemnet", *(name for names in named for name in names)} == set(hemnet.list_models())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = build(tiny=False, variance="auto", iterations=2, step_size=(0.5, 0.25), kernel="rbf")
    model.head.attention.principal.value.mul_(3.0)  # not √C
    return model.save_pretrained(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module", params=["onnx", "torch", "openvino"])
def exported(
    source: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    suffix = {"onnx": "onnx", "torch": "pt2", "openvino": "xml"}[request.param]
    path = tmp_path_factory.mktemp("exported") / f"model.{suffix}"
    report = path.with_suffix(".json")
    flags = ("--format", request.param, "--out", str(path), "--json", str(report))
    flags += ("--iterations", "5")
    assert run("export", str(source), *flags) == 0
    assert len(json.loads(report.read_text())["parity"]) == 8
    return path


def test_evaluates_and_predicts_like_the_model(
    source: Path, exported: Path, tmp_path: Path, capsys: Any
) -> None:
    picture = tiny_data.image(tmp_path / "a.png", 70, 50)
    found = []
    for number, model in enumerate((source, exported)):
        report, out = tmp_path / f"{number}.json", tmp_path / f"out{number}"
        data = ("--data.name", "scenes", "--data.size", "48", "--data.length", "6")
        how = ("--trust",) if number else ("--iterations", "5")
        flags = ("--split", "val", "--workers", "0", "--json", str(report), *how)
        assert run("evaluate", str(model), *data, *flags) == 0
        assert run("predict", str(model), str(picture), "--out", str(out), *how) == 0
        with Image.open(out / "classes/a.png") as image:
            found.append((json.loads(report.read_text()), np.asarray(image), image.getpalette()))
    assert found[0][0]["miou"] == pytest.approx(found[1][0]["miou"], abs=1e-9)
    assert found[0][0]["confusion"] == found[1][0]["confusion"]
    assert np.array_equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]
    assert run("predict", str(exported), str(picture), "--out", str(tmp_path / "no"), "--trust",
               "--iterations", "3") == 2  # fmt: skip
    assert "those it was exported with" in capsys.readouterr().err


def five(source: Path) -> hemnet.Segmenter:
    model = hemnet.from_pretrained(source)
    model.head.attention.eval_iterations = 5
    return model


def test_small_and_odd_images(source: Path, exported: Path) -> None:
    model, file = five(source), ExportedModel(exported, trust=True)
    for shape in ((1, 3, 1, 1), (3, 3, 17, 9), (2, 3, 33, 100)):
        torch.testing.assert_close(logits(file, *shape), logits(model, *shape), rtol=1e-3,
                                   atol=1e-4)  # fmt: skip


def test_the_configuration_travels(source: Path, exported: Path) -> None:
    assert ExportedModel(exported, trust=True).config == hemnet.from_pretrained(source).config


@pytest.mark.skipif(sys.platform == "win32", reason="signal stacks of Linux")
@pytest.mark.parametrize("exported", ["openvino"], indirect=True)
def test_signals_are_safe_after_models_are_dropped(exported: Path) -> None:
    """Each engine of OpenVINO replaces the signal stack, and frees it: see `openvino_core`."""
    program = f"""
import signal
from hemnet.inference.exported_model import ExportedModel
received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append(True))
first, second = (ExportedModel({str(exported)!r}) for _ in range(2))
del first
del second
signal.raise_signal(signal.SIGUSR1)
print(len(received))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("exported", ["onnx"], indirect=True)
def test_runs_without_torch(source: Path, exported: Path, tmp_path: Path) -> None:
    """A program with onnxruntime alone has names, colours and normalisation."""
    path, model = exported, five(source)
    program = f"""
import sys
sys.modules["torch"] = None  # importing it fails
import json, numpy, onnxruntime
session = onnxruntime.InferenceSession({str(path)!r}, providers=["CPUExecutionProvider"])
meta = session.get_modelmeta().custom_metadata_map
read = {{key: json.loads(text) for key, text in meta.items()}}
image = numpy.random.default_rng(0).random((1, 3, 45, 61), numpy.float32)
mean, std = (numpy.array(read[k], numpy.float32).reshape(1, 3, 1, 1) for k in ("mean", "std"))
logits = session.run(None, {{"images": (image - mean) / std}})[0]
print(json.dumps({{
    "shape": logits.shape, "first": logits[0, :, 0, 0].tolist(), "classes": read["classes"],
    "palette": read["palette"], "iterations": read["iterations"], "step": read["step_size"],
    "axes": session.get_inputs()[0].shape,
}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = json.loads(done.stdout)
    assert found["shape"] == [1, 11, 45, 61]
    assert found["classes"] == list(INFO.classes)
    assert found["palette"] == [list(colour) for colour in INFO.palette]
    assert (found["iterations"], found["step"]) == (5, [0.5, 0.25])
    assert found["axes"] == ["batch", 3, "height", "width"]
    image = torch.from_numpy(np.random.default_rng(0).random((1, 3, 45, 61), np.float32))
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (model.config.mean, model.config.std))
    with torch.inference_mode():
        expected = model((image - mean) / std)[0, :, 0, 0]
    assert found["first"] == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-4)


def test_nothing_of_the_exporting_machine_is_in_the_file(exported: Path) -> None:
    data = exported.read_bytes()
    for trace in (b"site-packages", b"segmenter.py", str(Path(hemnet.__file__).parent).encode()):
        assert trace not in data


def test_batch_norms_are_folded(exported: Path) -> None:
    if exported.suffix == ".onnx":
        import onnx

        kinds = {node.op_type for node in onnx.load(exported).graph.node}
        assert "Conv" in kinds
        assert "BatchNormalization" not in kinds


def test_a_file_that_disagrees_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = export.WRITERS["torch"]

    def wrong(program: Any, texts: dict[str, str], path: Path) -> None:
        program.state_dict["head.classifier.1.bias"].data[3] += 0.5
        write(program, texts, path)

    monkeypatch.setitem(export.WRITERS, "torch", wrong)
    with pytest.raises(UserError, match="does not agree"):
        export_model(build("fcn"), tmp_path / "model.pt2", "torch")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    class Reads(nn.Module):
        def forward(self, images: Tensor) -> list[Tensor]:
            return [images.repeat(1, 64 if images.sum().item() > 0 else 32, 1, 1)]

    model = build("fcn")
    model.backbone = Reads()
    with pytest.raises(UserError, match="fcn with test_resnet cannot be exported to onnx"):
        export_model(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_parity_sees_a_difference_in_one_size() -> None:
    class Wrong(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            out = F.avg_pool2d(images, 3, 1, 1)
            return out + 0.1 * (images.shape[-1] == SIZES[-1][1])

    pool = nn.AvgPool2d(3, 1, 1)
    assert len(check_parity(pool, pool)) == 8
    with pytest.raises(UserError, match="1 images of 160×225"):
        check_parity(pool, Wrong())


@pytest.mark.parametrize(("length", "regions"), [(12, 6), (13, 6), (5, 3), (2, 6), (1, 3), (7, 1)])
def test_region_means_are_adaptive_pooling(
    length: int, regions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, 2, length, 9)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    expected = F.adaptive_avg_pool2d(x, (regions, 4))
    torch.testing.assert_close(region_means(x, (regions, 4)), expected)


def test_a_program_is_loaded_only_with_trust(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"anything")
    with pytest.raises(UserError, match="trust=True"):
        ExportedModel(path)


@pytest.mark.parametrize("suffix", ["onnx", "pt2", "xml", "bin"])
def test_other_files_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(b"anything")
    with pytest.raises(UserError, match=r"cannot be read|ends in"):
        ExportedModel(path, trust=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--out", "model.pt"), "ends in .onnx"),
        (("--out", "gone/model.onnx"), "no folder"),
        (("--out", "model.onnx", "--iterations", "0"), "--iterations is 0"),
    ],
)
def test_mistakes_exit_with_2(
    source: Path, flags: tuple[str, ...], message: str, tmp_path: Path, capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run("export", str(source), *flags) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_em_has_no_iterations(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no EM unit"):
        export_model(build("fcn"), tmp_path / "model.onnx", iterations=3)


FULL = """
import resource, sys
from pathlib import Path
import torch
from hemnet.export.writers import WRITERS, capture
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # the disk is full after so many bytes
try:
    WRITERS["torch"](capture(torch.nn.Conv2d(3, 64, 3, padding=1)), {}, Path(sys.argv[1]))
except OSError as error:
    print("said:", error.strerror)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of this kind")
def test_a_full_disk_does_not_end_the_process(tmp_path: Path) -> None:
    """As torch's own writer does: by abort(), past every handler."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "x.pt2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "said: File too large" in done.stdout


def test_the_stages_are_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", str(source), "--out", str(tmp_path / "m.onnx")) == 0
    said = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert [word for word in said if word in ("tracing", "translating", "comparing")] == [
        "tracing",
        "translating",
        "comparing",
    ]


@pytest.mark.parametrize(
    "name",
    [
        *(name for family, (name, _) in FAMILIES.items() if family != "Swin"),
        "tf_mobilenetv3_small_minimal_100",
    ],
)
def test_graphs_of_every_family_stay_small(name: str) -> None:
    """What an export costs: nodes, and the expressions of their sizes.

    Padding that depends on the size nested these layer in layer: hours of tracing. Swin's windows
    still do, for minutes; `docs/export.md` says so.
    """

    class Deepest(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            strides = dict(FAMILIES.values())
            self.backbone = Backbone(name, strides.get(name, (8,))[0])

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.backbone(images)[-1]

    program = export.capture(Deepest().eval())
    values = [node.meta.get("val") for node in program.graph.nodes]
    shapes = [str(side) for v in values if isinstance(v, torch.Tensor) for side in v.shape]
    assert len(values) < 2000
    kinds = {str(node.target) for node in program.graph.nodes}
    assert not {kind for kind in kinds if kind.startswith(("aten.hardtanh_.", "aten.relu_."))}
    assert max(map(len, shapes)) < 200, max(shapes, key=len)[:300]
