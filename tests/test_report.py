"""The report of a run: complete, self-contained, and there whatever the run has left behind."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import hemnet
from hemnet.data import normalise
from hemnet.errors import UserError
from hemnet.inference.evaluate import evaluate
from hemnet.inference.metrics import class_iou, confusion_matrix
from hemnet.inference.open_model import load_model
from hemnet.inference.options import InferenceOptions
from hemnet.inspection.attention import most_distinct
from hemnet.inspection.em_trace import analyse, find_unit, spread_out, trace_unit
from hemnet.report import write_report
from hemnet.report.charts import Series, line_chart, smooth, ticks
from hemnet.report.contents import gather
from hemnet.run_folder import RunFolder
from support.report_runs import SCENES, make_run

VOID_TAGS = {"meta", "link", "img", "br", "line", "circle", "polyline"}


class Strict(HTMLParser):
    """Notes everything that opens, closes or points somewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.pictures = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID_TAGS:
            self.open.append(tag)
        values = dict(attrs)
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]
        if tag == "img":
            self.pictures += 1
            assert values["alt"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID_TAGS  # the shapes of the charts close themselves

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(path: Path) -> tuple[str, Strict]:
    text = path.read_text(encoding="utf-8")
    page = Strict(text)
    assert page.open == []
    assert all(address.startswith("data:") for address in page.addresses)  # nothing from outside
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    return text, page


def test_everything_is_in_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text, page = read(write_report(run))  # opens the data set of the configuration
    for part in ("Learning curve", "IoU of each class", "Predictions", "What the attention does",
                 "Likelihood bound", "Health of the bases", "Next steps"):  # fmt: skip
        assert part in text
    assert "64.2%" in text  # the best validation, whose model is saved
    assert f"hemnet evaluate {run} --scales" in text
    assert "&lt;hemnet&gt; &amp; co" in text
    assert "violet unlit" in text
    assert "of the variance rebuilt" in text
    assert page.pictures == 6 * 4 + 1 + 5 * 3  # examples, the image, and 5 bases in 3 iterations
    assert not list(run.glob("*.part"))
    assert text.count("<svg") == 5


def test_an_evaluation_goes_before_the_runs_own(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    found = evaluate(load_model(run), SCENES)
    text, _ = read(write_report(run, SCENES, found))
    assert f"<b>{found.miou:.1f}%</b>" in text
    assert "Most often confused" in text


def test_a_run_without_metrics(tmp_path: Path) -> None:
    text, _ = read(write_report(make_run(tmp_path, metrics=False), SCENES))
    assert "Learning curve" not in text
    assert "Predictions" in text


@pytest.mark.parametrize(("name", "unit"), [("fcn", False), ("emanet", True)])
def test_other_models(tmp_path: Path, name: str, unit: bool) -> None:
    text, _ = read(write_report(make_run(tmp_path, name), SCENES))
    assert ("Health of the bases" in text) == unit
    assert ("--iterations" in text) == unit
    assert "Likelihood bound" not in text  # EMANet's unit length breaks it


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_report(make_run(tmp_path, metrics=False))


def test_damaged_metrics(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "metrics.jsonl").write_text("{}\nnonsense\n")
    text, _ = read(write_report(run, SCENES))
    assert "Learning curve" not in text


def test_the_figures_are_those_of_the_saved_model(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    lines = RunFolder(run).read_metrics()
    last = max(i for i, line in enumerate(lines) if line["kind"] == "validation")
    best = max(line["miou"] for line in lines if line["kind"] == "validation")
    lines[last] |= {"miou": 12.3, "saved": True}  # validation.keep last
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text, _ = read(write_report(run, SCENES))
    assert "<b>12.3%</b>" in text
    assert f"<b>{best:.1f}%</b>" not in text


def test_pictures_and_captions_are_of_one_prediction(tmp_path: Path) -> None:
    """With the options of the evaluation, which change what is predicted."""
    run = make_run(tmp_path)
    model, options = load_model(run), InferenceOptions(flip=True, scales=(0.5,))
    found = evaluate(model, SCENES, options)
    contents = gather(RunFolder(run), SCENES, found, torch.device("cpu"))
    for example, score in contents.examples:
        index = next(i for i in range(len(SCENES)) if SCENES.id(i) == example.id)
        labels = SCENES.read(index)[1]
        shown = confusion_matrix(labels, example.prediction, SCENES.num_classes)
        assert float(class_iou(shown).nanmean()) == pytest.approx(score.miou)


def test_without_an_evaluation_the_examples_are_seen_as_the_run_validates(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text + "validation: {scales: [0.5], iterations: 7}\n")
    contents = gather(RunFolder(run), SCENES, None, torch.device("cpu"))
    assert contents.unit is not None
    assert contents.unit.iterations == 7
    options = InferenceOptions(scales=(0.5,), iterations=7)
    scores = {image.id: image.miou for image in evaluate(load_model(run), SCENES, options).images}
    assert all(scores[image.id] == pytest.approx(image.miou) for _, image in contents.examples)


def test_the_maps_are_those_of_the_evaluations_iterations(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    found = evaluate(load_model(run), SCENES, InferenceOptions(iterations=2))
    text, page = read(write_report(run, SCENES, found))
    assert page.pictures == 6 * 4 + 1 + 5 * 2
    assert "the model stops at 2" in text


def test_metrics_of_other_classes_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    line = {"kind": "validation", "step": 9, "miou": 99.0, "pixel_accuracy": 1.0, "iou": {"x": 1.0}}
    with (run / "metrics.jsonl").open("w") as file:
        file.write(json.dumps(line) + "\n")
    text, _ = read(write_report(run, SCENES))
    assert "99.0%" not in text


def test_the_unit_is_traced_as_it_runs() -> None:
    model = hemnet.create_model("hemnet", 3, "test_resnet", 16, channels=8, bases=5, kernel="rbf")
    model.eval()
    pixels = torch.randint(0, 256, (2, 3, 64, 48), dtype=torch.uint8)
    analysis, unit = analyse(model, pixels), find_unit(model)
    assert unit is not None
    own, longer = (trace_unit(unit, analysis.features, n) for n in (None, 6))
    images = normalise(pixels, model.config.mean, model.config.std)
    x = model.head.reduce(model.backbone(images)[-1])[..., :4, :3]  # without the padding
    flat = unit.scale(unit.conv_in(x)).flatten(2).mT
    direct = hemnet.highway_em(flat, unit.starting_bases(flat), 3, 0.5, unit.variance, "rbf")
    expected = direct.responsibilities.mT.reshape(2, 5, *x.shape[2:])
    torch.testing.assert_close(own.responsibilities(3), expected)
    torch.testing.assert_close(longer.responsibilities(3), expected)
    assert own.iterations == 3
    assert len(longer.bound) == 7
    assert list(longer.bound) == sorted(longer.bound)  # with rbf it never falls


def test_distinct_bases_are_chosen_before_copies() -> None:
    a, b = torch.zeros(4, 4), torch.zeros(4, 4)
    a[0], b[:, 1] = 1.0, 0.9
    flat = torch.full((4, 4), 0.3)
    assert most_distinct(torch.stack((flat, a, 0.99 * a, b)), 2) == [1, 3]
    assert sorted(most_distinct(torch.stack((flat, a, b)), 9)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 82.6, [0, 25, 50, 75, 100]),
        (0, 2.1, [0, 1, 2, 3]),
        (-108.2, -105.1, [-109, -108, -107, -106, -105]),
        (0, 0.4, [0, 0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_ticks_of_one_value() -> None:
    found = ticks(5, 5)
    assert found[0] < 5 < found[-1]


def test_charts() -> None:
    drawn = line_chart(
        [Series([1, 2, 3], [1.0, float("nan"), 3.0], dots=True)], x_label="s", y_label="<y>"
    )
    assert drawn.count("<circle") == 2
    assert "&lt;y&gt;" in drawn
    assert line_chart([Series([], [])], x_label="x", y_label="y") == ""
    assert smooth([3.0] * 90) == pytest.approx([3.0] * 90)
    assert spread_out(10, 4) == [0, 3, 6, 9]
    assert spread_out(3, 6) == [0, 1, 2]
