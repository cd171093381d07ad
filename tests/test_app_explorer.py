"""What the explorer computes and draws, without a browser."""

import argparse
import io
import json
import re
import threading
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

import hemnet
from hemnet.app.answers import Answers, Query
from hemnet.app.explore import Explorer, OpenImage
from hemnet.app.limits import Limits, read_upload, safe_stem, shown_name
from hemnet.app.page import facts
from hemnet.app.samples import samples
from hemnet.app.sessions import Sessions
from hemnet.cli.app import add_arguments
from hemnet.data.scenes import SCENES
from hemnet.errors import UserError
from hemnet.export.writers import export_model
from hemnet.inference.exported_model import ExportedModel
from hemnet.inspection.em_trace import EMTrace, step_text, trace_unit
from hemnet.nn.geometry import Placement
from support import ROOT, tiny_data
from support.command_line import run
from support.explorers import CLASSES, answers, build, explorer
from support.recording import RecordingSolver
from support.tiny_data import head_of_a_png


def picture(width: int = 72, height: int = 56, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


# A look and its EM


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hemnet", {}),
        ("hemnet", {"kernel": "rbf", "variance": 0.3, "eval_iterations": 5}),
        ("hemnet", {"step_size": [0.9, 0.4, 0.2], "eval_iterations": 5}),
        ("hemnet", {"variance": "auto", "iterations": 2}),
        ("emanet", {}),
    ],
)
def test_the_models_own_settings_are_what_the_model_does(
    name: str, options: dict[str, Any]
) -> None:
    this, image = explorer(name, **options), picture()
    opened = this.open(image, "x")
    assert np.array_equal(opened.classes, this.model.predict(image))
    own = this.solve(opened)
    assert own.iterations == this.unit.current_iterations
    this.unit.solver = recorder = RecordingSolver()
    this.model.predict(image)
    torch.testing.assert_close(own.bases[-1], recorder.results[-1].bases)


def test_other_iterations_and_step_sizes_are_solved_from_the_same_features() -> None:
    this = explorer(kernel="rbf", variance=0.5)
    image = this.open(picture(), "x")
    trace, x = this.solve(image, 7, 0.2), image.features.flatten(2).mT
    steps = list(hemnet.trace(x, this.unit.starting_bases(x), 7, 0.2, 0.5, "rbf"))
    expected = [float(step.elbo) / x.shape[1] for step in steps]
    assert trace.bound[1:] == pytest.approx(expected, rel=1e-5)
    assert len(trace.bound) == 8
    assert sorted(trace.bound) == list(trace.bound)  # with this kernel it never falls
    torch.testing.assert_close(trace.bases[-1], steps[-1].bases)
    gamma = trace.responsibilities(7)[0].flatten(1).T
    torch.testing.assert_close(gamma, steps[-1].responsibilities[0])
    rebuilt = trace.rebuilt(7)[0].flatten(1).T
    torch.testing.assert_close(rebuilt, (steps[-1].responsibilities @ steps[-1].bases)[0])


def test_emanets_unit_has_no_bound_and_full_steps_only() -> None:
    this = explorer("emanet")
    image = this.open(picture(), "x")
    assert not this.has_steps
    assert this.solve(image, 4, 0.1).plan.steps == (1.0,) * 4
    assert this.solve(image).bound == ()


@pytest.mark.parametrize("settings", [(0, 0.5), (17, 0.5), (3, 0.0), (3, 1.5), (3, float("nan"))])
def test_refuses_settings_that_make_no_sense(settings: tuple[int, float]) -> None:
    this = explorer()
    with pytest.raises(UserError, match="expected a number"):
        this.solve(this.open(picture(), "x"), *settings)


def test_opening_an_image_leaves_nothing_behind_in_the_model() -> None:
    this = explorer()
    this.open(picture(), "x")
    assert not this.unit._forward_pre_hooks
    broken = explorer()
    broken.model.head.classifier = None
    with pytest.raises(TypeError):
        broken.open(picture(), "x")
    assert not broken.unit._forward_pre_hooks


def test_images_opened_at_the_same_time_do_not_mix() -> None:
    this = explorer()
    pictures = [picture(72 + 16 * (i % 3), 56, seed=i) for i in range(6)]
    alone = [this.open(image, "x") for image in pictures]
    found: dict[int, OpenImage] = {}

    def work(number: int) -> None:
        for _ in range(3):
            found[number] = this.open(pictures[number], "x")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pictures))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, image in enumerate(alone):
        assert torch.equal(image.features, found[i].features)
        assert np.array_equal(image.classes, found[i].classes)


def test_a_pixel_of_the_file_has_its_place_everywhere() -> None:
    image = OpenImage(
        "x",
        picture(50, 40),
        (100, 80),
        np.zeros((40, 50), np.uint8),
        torch.zeros(1, 3, 4, 5),
        Placement(10, 4.5),
    )
    assert image.pixel(0, 0) == (0, 0)
    assert image.pixel(99, 79) == (39, 49)
    assert image.position(0, 0) == (0, 0)
    assert image.position(99, 0) == (0, 4)
    assert image.position(99, 79) == (3, 4)
    assert image.position(45, 25) == (1, 2)
    for place in ((-1, 0), (100, 0), (0, 80)):
        with pytest.raises(UserError, match="outside the image: x goes from 0 to 99"):
            image.position(*place)


def test_main_class_of_a_basis() -> None:
    this = explorer()
    classes = np.zeros((40, 60), np.uint8)
    classes[:, 30:] = 2
    features, place = torch.zeros(1, 8, 2, 6), Placement(10, 4.5)
    image = OpenImage("x", picture(60, 40), (60, 40), classes, features, place)
    gamma = torch.zeros(5, 2, 6)
    gamma[0, 0, 0] = gamma[0, 1, 0] = 1  # left
    gamma[1, 0, 5] = 3  # right
    gamma[2, 0, 0], gamma[2, 0, 3] = 0.25, 0.75
    found = this.main_classes(image, gamma)
    assert found[0] == (0, 1.0)
    assert found[1] == (2, 1.0)
    assert found[2] == (2, 0.75)


def test_how_much_the_rebuilt_features_explain() -> None:
    unit = explorer(kernel="rbf", variance=0.01).unit
    # Eight directions, each twice; with five bases three of them are rebuilt as the bases' mean.
    features = torch.eye(8)[None, :, :, None].repeat(1, 1, 1, 2)
    for bases, expected in ((features[0, :, :5, 0].T, 1 - 3.6 / 7), (torch.ones(5, 8) / 8, 0.0)):
        plan = unit.plan(1)._replace(steps=(1e-9,))
        found = EMTrace(features, plan, (bases[None], bases[None]), ())
        assert found.explained(1) == pytest.approx(expected, abs=1e-3)
    assert found.is_global_mean(1)
    worse = EMTrace(features, plan, (bases[None], -9 * bases[None]), ())
    assert worse.explained(1) < 0
    assert trace_unit(unit, features, 2).iterations == 2
    assert step_text((0.5, 0.5)) == "0.5"
    assert step_text(torch.tensor([0.9, 0.25])) == "0.9, 0.25"


# What users give


def test_a_bomb_is_refused_before_a_pixel_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(head_of_a_png(60_000, 60_000))

    def decode(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", decode)
    with pytest.raises(UserError, match="bomb: 60000×60000 pixels: the limit is 50 megapixels"):
        read_upload(path, Limits(), "bomb")
    path.write_bytes(head_of_a_png(600, 600))
    with pytest.raises((AssertionError, UserError), match="decoded"):
        read_upload(path, Limits(), "bomb")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"#!/bin/sh\nrm -rf /\n", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"", "not an image"),
        (b"\xff\xd8\xff\xe0 nothing more", "cannot read"),
        (head_of_a_png(5000, 5000), "cannot read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image"),
    ],
)
def test_only_content_that_is_an_image_is_taken(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as caught:
        read_upload(path, Limits(), "innocent.png")
    assert "innocent.png" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)  # where the server keeps it is no one's business


def test_reads_what_cameras_write(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90°
    picture(60, 40).save(path, exif=exif)
    upright, size = read_upload(path, Limits(), "photo")
    assert (upright.mode, upright.size, size) == ("RGB", (40, 60), (40, 60))
    smaller, size = read_upload(path, Limits(side=30), "photo")
    assert (smaller.size, size) == ((20, 30), (40, 60))
    with pytest.raises(UserError, match=r"the limit is 0.001 MB \(--max-upload\)"):
        read_upload(path, Limits(bytes=1000), "photo")
    with pytest.raises(ValueError, match="side is 0"):
        Limits(side=0)


def test_names_of_files_are_harmless() -> None:
    assert safe_stem("../../etc/pass wd.png") == "pass_wd"
    assert safe_stem("…") == "image"
    assert len(safe_stem("x" * 500)) == 60
    assert shown_name("a\x1b[31mb\n.png") == "a[31mb.png"
    assert shown_name("C:\\me\\../x\ud800.png") == "x.png"
    assert shown_name("/") == "image"
    assert len(shown_name("x" * 200)) < 60


# Sessions


def image_of(size: int) -> OpenImage:
    classes = np.zeros((1, size - 3), np.uint8)
    return OpenImage("x", picture(1, 1), (1, 1), classes, None, Placement())


def test_sessions_are_apart_and_the_unused_go_first() -> None:
    sessions = Sessions(memory=300)
    images = [image_of(100) for _ in range(4)]
    for key, image in zip("abc", images, strict=False):
        sessions.begin(key, image)
    assert sessions.get("a").image is images[0]  # and now "b" is the oldest
    sessions.begin("d", images[3])
    assert [sessions.get(key).image for key in "acd"] == [images[0], images[2], images[3]]
    with pytest.raises(UserError, match="Choose an image again"):
        sessions.get("b")
    sessions.begin("a", image_of(250))  # replaces, and pushes out
    assert len(sessions) == 1
    sessions.begin("b", image_of(900))  # one image always has room
    assert len(sessions) == 1
    sessions.end("b")
    sessions.end("b")
    assert len(sessions) == 0
    for key in (None, ""):
        with pytest.raises(UserError, match="belongs to no page"):
            sessions.begin(key, images[0])


# Answers


def test_an_image_is_drawn_with_its_classes(tmp_path: Path) -> None:
    these = answers(tmp_path)
    path = tiny_data.image(tmp_path / "up" / "my & sky.png", 56, 72)
    found = these.upload("me", path.name, path.read_bytes())
    assert "my &amp; sky.png: 72×56 pixels" in found.status
    assert 'alt="my &amp; sky.png"' in found.stage
    assert found.stage.count("data:image/") == 2
    classes = these.explorer.model.predict(path)
    for k in np.unique(classes):
        assert escape(CLASSES[k]) in found.legend
    assert "<b>road</b>" not in found.legend + found.view.maps
    view = found.view
    assert len(view.bases) == 5
    assert view.maps.count("<figure>") == 2 + 5
    assert view.chart.count("<circle") == 4
    assert "Pixel (36, 28)" in view.bars  # the middle, to begin with


def test_the_class_map_is_what_predict_writes(tmp_path: Path) -> None:
    these = answers(tmp_path / "own")
    (tmp_path / "own").mkdir()
    path = tiny_data.image(tmp_path / "sky.png", 56, 72)
    model = these.explorer.model.save_pretrained(tmp_path / "model")
    assert run("predict", str(model), str(path), "--out", str(tmp_path / "out")) == 0
    these.upload("me", "sky.png", path.read_bytes())
    expected = (tmp_path / "out/classes/sky.png").read_bytes()
    assert these.class_map("me") == ("sky_classes.png", expected)
    assert not list((tmp_path / "own").iterdir())  # nothing stays


def test_a_large_image_is_made_smaller_and_says_so(tmp_path: Path) -> None:
    these = answers(tmp_path)
    path = tmp_path / "large.png"
    picture(500, 250).save(path)
    found = these.upload("me", path.name, path.read_bytes())
    assert "500×250 pixels" in found.status
    assert "Seen at 200×100" in found.status
    with Image.open(io.BytesIO(these.class_map("me")[1])) as file:
        assert file.size == (200, 100)
    assert "Pixel (499, 249)" in these.view("me", Query(place=(499, 249))).bars
    with pytest.raises(UserError, match="outside the image"):
        these.view("me", Query(place=(500, 0)))


def test_queries_are_answered(tmp_path: Path) -> None:
    these = answers(tmp_path, step_size=0.5)
    these.sample("me", 0)
    view = these.view("me", Query(9, 0.25, 4, [2, 1], (3, 4)))
    plan = these.sessions.get("me").trace.plan
    assert (view.iterations, plan.steps[0], view.shown) == (9, 0.25, 4)
    assert view.bases == (2, 1)
    assert view.maps.count("<figure>") == 4
    assert view.maps.index("basis 2") < view.maps.index("basis 1")
    assert view.chart.count("<circle") == 10
    assert "the model&#39;s own: η 0.5, 3 iterations" in view.chart
    assert "shown: 4" in view.chart
    assert set(view.listed) <= set(range(1, 6))
    assert "basis" in view.bars
    assert these.view("me", Query(9, 0.25, 99)).shown == 9
    again = these.view("me", Query(3, 0.5))  # the model's own
    assert again.iterations == these.sessions.get("me").own.iterations == 3
    assert "the model" not in again.chart
    with pytest.raises(UserError, match="bases 1 to 5"):
        these.view("me", Query(bases=[6]))
    assert "Choose bases" in these.view("me", Query(bases=[])).maps


def test_the_bars_are_the_responsibilities_of_the_place(tmp_path: Path) -> None:
    these = answers(tmp_path)
    these.sample("me", 0)
    view = these.view("me", Query(shown=2, place=(20, 30)))
    session = these.sessions.get("me")
    row, column = session.image.position(20, 30)
    gamma = session.own.responsibilities(2)[0, :, row, column]
    widths = [float(w) for w in re.findall(r"width:([\d.]+)%", view.bars)]
    expected = [100 * float(gamma[k - 1]) for k in view.listed]
    assert widths[: len(expected)] == pytest.approx(expected, abs=0.06)
    assert sum(widths) == pytest.approx(100, abs=0.5)
    assert expected == sorted(expected, reverse=True)


def test_models_without_an_em_unit_say_why_there_is_nothing(tmp_path: Path) -> None:
    these = answers(tmp_path, "fcn")
    found = these.sample("me", 1)
    assert "data:image/" in found.stage
    assert (found.view.maps, found.view.chart) == ("", "")
    assert "This model is a fcn: it has no EM unit" in these.explorer.why_no_unit
    assert "Pixel (3, 4)" in these.view("me", Query(place=(3, 4))).bars
    assert answers(tmp_path).explorer.why_no_unit == ""


def test_exported_files_segment(tmp_path: Path) -> None:
    model, out = build(), tmp_path / "model.pt2"
    export_model(model, out, "torch")
    this = Explorer(ExportedModel(out, trust=True))
    assert "exported file gives only its result" in this.why_no_unit
    assert "exported file model.pt2" in facts(this)[0]
    assert np.array_equal(this.open(picture(), "x").classes, model.predict(picture()))


def test_more_than_256_classes_and_step_sizes_for_each_iteration(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hemnet.create_model("hemnet", 300, "test_resnet", 16, channels=8, bases=4,
                                step_size=[0.9, 0.4, 0.2])  # fmt: skip
    these = Answers(Explorer(model), Limits(), tmp_path)
    found = these.sample("me", 0)
    with Image.open(io.BytesIO(these.class_map("me")[1])) as file:
        assert file.mode == "I;16"
    assert "η 0.9, 0.4, 0.2" in facts(these.explorer)[-1]
    assert "η 0.9, 0.4, 0.2" in found.view.chart
    these.view("me", Query(5, None))
    kept = these.sessions.get("me").trace.plan.steps
    assert kept == pytest.approx((0.9, 0.4, 0.2, 0.2, 0.2))


def test_samples_suit_the_model() -> None:
    assert samples(SCENES.classes)[0].name == "scene 1"
    assert samples(CLASSES)[0].name == "photograph"
    assert len({sample.name for sample in samples(CLASSES)}) == 6
    for sample in samples(CLASSES):
        assert sample.picture.mode == "RGB"


@pytest.mark.parametrize("number", [-1, 6, "0", None, 1.5])
def test_samples_that_do_not_exist(number: object, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are 6"):
        answers(tmp_path).sample("me", number)


# The command


def test_says_how_to_make_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("app") == 2
    assert "make it with `hemnet demo`" in capsys.readouterr().err


def test_says_which_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run("app", "any") == 2
    assert "pip install 'hemnet-torch[app]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--side", "0"), "--side 0"),
        (("--max-upload", "nan"), "--max-upload nan"),
        (("--max-pixels", "-1"), "--max-pixels -1"),
        (("--port", "70000"), "cannot listen on 127.0.0.1, port 70000"),
        (("--host", "203.0.113.1"), "cannot listen on 203.0.113.1"),
    ],
)
def test_mistakes_in_the_command(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn")
    assert run("app", str(tmp_path), *options) == 2
    assert message in capsys.readouterr().err


def test_the_command_of_the_space_is_a_command() -> None:
    """docs/app.md shows a Dockerfile; Hugging Face wants the port that its README names."""
    text = (ROOT / "docs/app.md").read_text("utf-8")
    words = json.loads(re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)[1])
    assert words[:2] == ["hemnet", "app"]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(words[2:])
    assert (args.host, args.model) == ("0.0.0.0", "model")
    assert f"app_port: {args.port}" in text


def test_a_unit_that_is_a_global_mean_says_so(tmp_path: Path) -> None:
    mean = answers(tmp_path, variance=1e6)  # far above the features' own variance
    mean.sample("me", 0)
    assert "no more than a global mean" in mean.view("me", Query()).maps
    groups = answers(tmp_path, variance=1e-3, kernel="rbf")
    groups.sample("me", 0)
    assert "global mean" not in groups.view("me", Query()).maps


def test_a_run_shows_images_that_it_validates_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from hemnet.app.samples import samples_of_run

    root = tiny_data.folder(tmp_path / "data", {"train": 1, "val": 3})
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"data: {{name: folder, root: {root}}}\n")
    found = samples_of_run(run, 16)
    assert found is not None
    assert [sample.name for sample in found] == ["0", "1", "2"]
    assert all(max(sample.picture.size) == 16 for sample in found)
    these = Answers(explorer(), Limits(), tmp_path, found)
    assert [sample.name for sample in these.samples] == ["0", "1", "2"]
    assert samples_of_run(tmp_path, 16) is None, "a saved model, not a run"
    (run / "config.yaml").write_text("data: {name: folder, root: gone}\n")
    assert samples_of_run(run, 16) is None
    assert "cannot be shown as samples" in caplog.text
    (run / "config.yaml").write_text("data: {name: scenes}\n")
    assert samples_of_run(run, 16) is None, "which has its own"


def test_black_classes_and_the_background_are_let_through() -> None:
    from hemnet.inference.prediction_files import see_through

    names, palette = ["Background", "soil", "crop"], [(9, 200, 9), (0, 0, 0), (0, 255, 0)]
    assert see_through(names, palette) == [0, 1]
