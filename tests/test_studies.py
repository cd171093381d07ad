"""The studies: what they measure is what the shipped code does, and what they say follows."""

import json
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
import torch

from hemnet.cli import main
from hemnet.data import Scenes
from hemnet.errors import UserError
from hemnet.inference.evaluate import evaluate
from hemnet.inference.open_model import load_model
from hemnet.inference.options import InferenceOptions
from hemnet.inspection import attention
from hemnet.inspection.em_trace import analyse, trace_unit
from hemnet.nn.plan import highway_solver
from hemnet.study import ablation
from hemnet.study import compare_heads as compare
from hemnet.study import gradients as flow
from hemnet.study import paper_results as paper
from hemnet.study.grid import collect, run_cell
from hemnet.study.iterations import evaluate_all, models_of, summarise_iterations
from hemnet.study.markdown import ablation_document, grid_table
from hemnet.study.recipe import scenes_config
from hemnet.study.uncertainty import (
    difference,
    interaction,
    pooled,
    pooled_within_seeds,
    slope,
    t_critical,
)
from hemnet.training.config_parser import dump_config
from hemnet.training.setup import build_model


def tiny(steps: int = 3):
    config = scenes_config()
    config.data.size, config.data.crop = 32, (32, 32)
    config.data.length, config.data.val_length = 4, 3
    config.optim.steps, config.optim.warmup, config.optim.batch_size = steps, 0, 4
    config.validation.every, config.validation.batch_size = steps, 3
    config.model.options["bases"] = 4
    return config


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A trained grid of two columns and one seed, run in this process."""
    out = tmp_path_factory.mktemp("grid")
    cells = ablation.ablation_cells(tiny(), [2], [0.5], [0])
    assert [run_cell(cell, out) for cell in cells] == [None] * 3
    return out, cells


# Statistics


@pytest.mark.parametrize(
    "freedom, expected", [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (80, 1.990)]
)
def test_students_quantile(freedom, expected):
    assert t_critical(freedom) == pytest.approx(expected, rel=1e-3)


def test_pooled_spread_and_differences():
    noise = pooled([[1.0, 3.0], [10.0, 12.0], [5.0]])
    assert noise.freedom == 2
    assert noise.sd == pytest.approx(2**0.5)
    gap = difference([1.0, 3.0], [10.0, 12.0], noise)
    assert gap.value == -9
    assert gap.margin == pytest.approx(4.30265 * 2**0.5)  # t · s · sqrt(1/2 + 1/2)
    assert gap.margin == pytest.approx(noise.least_difference(2))
    assert gap.to_json()["clear"]
    assert pooled([[1.0], [2.0]]) is None


def test_what_a_seed_does_to_all_groups_is_no_noise():
    own = [[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]
    groups = [[10 * g + 7 * s + own[g][s] for s in range(3)] for g in range(2)]
    noise = pooled_within_seeds(groups)
    assert noise.freedom == 2
    assert noise.sd == pytest.approx((4 / 2) ** 0.5)
    differences = [b - a for a, b in zip(*groups, strict=True)]
    assert noise.sd * 2**0.5 == pytest.approx(stdev(differences))  # the paired test's
    gap = [[1.0, 3.0], [10.0, 12.0], [5.0]]
    assert pooled_within_seeds(gap) == pooled(gap)


def test_slope_and_interaction_are_least_squares():
    noise = pooled([[0.0, 1.0]])
    assert slope([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], noise).value == pytest.approx(2)
    cells = {(u, v): [3 * u - v + 0.5 * u * v] for u in (0.0, 1.0, 3.0) for v in (1.0, 2.0)}
    assert interaction(cells, noise).value == pytest.approx(0.5)
    cells.pop((0.0, 1.0))
    assert interaction(cells, noise) is None


# Table 1


def test_the_default_grid_is_the_papers_table_with_three_seeds():
    cells = ablation.ablation_cells(scenes_config(), paper.ITERATIONS, paper.STEP_SIZES, [0, 1, 2])
    assert len({c.name for c in cells}) == len(cells) == 3 * (8 * 4 + 8 + 1)
    chosen = next(c for c in cells if c.name == "T06_eta0.2_seed1")
    assert chosen.config.model.options["iterations"] == 6
    assert chosen.config.model.options["step_size"] == 0.2
    assert chosen.config.model.options["preset"] == "paper"
    assert chosen.config.run.seed == 1
    names = {c.config.model.name for c in cells if "emanet" in c.name}
    assert names == {"emanet"}


def test_the_plain_baseline_is_the_head_without_its_unit():
    config = scenes_config()
    cells = ablation.ablation_cells(config, [3], [0.5], [0], ["emanet", "fcn", "plain"])
    built = {c.name: build_model(c.config, Scenes("train").info) for c in cells}
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in built.items()}
    unit = sum(p.numel() for p in built["T03_eta0.5_seed0"].head.attention.parameters())
    assert sizes["plain_seed0"] == sizes["T03_eta0.5_seed0"] - unit
    assert sizes["fcn_seed0"] < sizes["plain_seed0"]
    summary = ablation.summarise_ablation(cells, made_up(cells, lambda t, c, s: 40.0 + len(c)))
    assert [floor["mean"] for floor in summary["floors"].values()] == [43.0, 45.0]
    text = ablation_document(summary, None, ablation.paper_ablation())
    assert "the same head without its unit 45.00" in text


def made_up(cells, miou):
    """Results as a grid would leave them."""
    found = {}
    for cell in cells:
        place = cell.place
        value = miou(place["iterations"], place["column"], place["seed"])
        state = {"status": "failed", "error": "lost"} if value is None else {"status": "done"}
        found[cell.name] = {**place, **state, "miou": value, "context_miou": None}
    return found


def test_claims_follow_from_the_numbers():
    cells = ablation.ablation_cells(scenes_config(), [1, 2, 4], [0.2, 0.4], [0, 1, 2])

    def miou(t, column, seed):
        noise = 0.1 * (-1) ** len(f"{t}{column}") * (seed - 1)
        if column == "fcn":
            return 40 + noise
        if column == "emanet":
            return 50 - 2 * [1, 2, 4].index(t) + noise  # deeper hurts
        return 60 + noise - (1 if column == "0.4" else -1) * [1, 2, 4].index(t)

    summary = ablation.summarise_ablation(cells, made_up(cells, miou))
    assert summary["pooled_sd"] == pytest.approx(0.1, rel=0.1)
    assert summary["best_iterations"] == {"0.2": 4, "0.4": 1, "emanet": 1}
    claims = summary["claims"]
    assert claims["hemnet_minus_emanet"]["value"] == pytest.approx(12)
    assert claims["minus_floors"]["fcn"]["0.2"]["value"] == pytest.approx(21)
    assert claims["per_doubling"]["emanet"]["value"] == pytest.approx(-2)
    assert claims["per_doubling"]["0.2"]["value"] == pytest.approx(1)
    assert claims["step_size_by_iterations"]["value"] == pytest.approx(-2)
    assert claims["step_size_by_iterations"]["clear"]
    assert claims["best_minus_emanet"]["4"]["best_step_size"] == "0.2"
    text = ablation_document(summary, None, ablation.paper_ablation())
    assert "**62.00** ± 0.10" in text
    assert "EMANet: -2.00 ± " in text
    assert "missing" not in text
    assert "falls, clearly, as T doubles: -2.00 ± " in text
    claims["step_size_by_iterations"]["clear"] = False
    text = ablation_document(summary, None, ablation.paper_ablation())
    assert "falls, but not distinguishably, as T doubles" in text


def test_a_failed_cell_is_shown_and_said():
    cells = ablation.ablation_cells(scenes_config(), [1, 2], [0.2], [0, 1])
    results = made_up(cells, lambda t, c, s: None if (t, c) == (2, "0.2") else 50.0 + s)
    summary = ablation.summarise_ablation(cells, results)
    text = ablation_document(summary, None, ablation.paper_ablation())
    assert "2 of 10 runs are missing" in text
    assert "T02_eta0.2_seed0 failed: lost" in text
    assert "| 2 | – |" in text


def test_the_papers_table_is_the_papers():
    table = grid_table(ablation.paper_ablation())
    assert "| 6 | 77.46 | **78.22** | 77.83 | 77.40 | 76.26 |" in table
    for columns in (paper.TABLE_1, paper.TABLE_2):
        assert {len(column) for column in columns.values()} == {8}
    for column, trained in paper.TABLE_2_TRAINED.items():  # the tables meet where T is the same
        place = paper.ITERATIONS.index(trained)
        assert paper.TABLE_1[column][place] == paper.TABLE_2[column][place]


def test_a_cells_result_is_its_models(grid):
    out, cells = grid
    results = collect(cells, [out])
    for cell in cells:
        model = load_model(out / "runs" / cell.name)
        scenes = Scenes("val", size=32, length=3)
        found = evaluate(model, scenes, InferenceOptions(batch_size=3), progress=None)
        assert results[cell.name]["miou"] == pytest.approx(found.miou)


# Table 2


def test_iterations_in_evaluation(grid, tmp_path):
    out, cells = grid
    models = models_of([out])
    assert {(m.column, m.iterations) for m in models} == {("0.5", 2), ("emanet", 2)}
    scenes = Scenes("val", size=32, length=3)
    rows = evaluate_all(models, scenes, [1, 2, 5], tmp_path, 3)
    results = collect(cells, [out])
    for row in rows:
        if row["iterations"] == 2:  # as trained: Table 1's value
            assert row["miou"] == pytest.approx(results[Path(row["model"]).name]["miou"])
    assert len({row["miou"] for row in rows if row["column"] == "0.5"}) > 1
    assert evaluate_all(models, scenes, [1, 2, 5], tmp_path, 3) == rows  # from the file
    summary = summarise_iterations(rows)
    assert summary["trained"] == {"0.5": 2, "emanet": 2}
    single = models_of([out / "runs" / "T02_eta0.5_seed0"])
    assert single[0].column == "0.5"
    with pytest.raises(UserError, match="without EM"):
        models_of([out / "runs" / "fcn_seed0"])


# Figure 3


@pytest.mark.parametrize("samples", [1, 4, 10])
def test_as_many_samples_are_measured_as_asked_for(samples):
    base = tiny()
    train_set = Scenes("train", size=32, length=12)
    fixed = flow.fixed_samples(base, train_set, build_model(base, train_set.info), samples)
    sizes = [len(batch.images) for batch in fixed]
    assert sum(sizes) == samples
    assert max(sizes) <= base.optim.batch_size
    assert max(sizes) - min(sizes) <= 1
    assert sizes == [len(batch.masks) for batch in fixed] == [len(batch.ids) for batch in fixed]


def test_measuring_does_not_disturb_training(tmp_path):
    ends = []
    for every in (1, 3):
        base = tiny()
        (cell,) = flow.gradient_cells(base, 3, [0.4], [0], every=every, samples=4)
        assert run_cell(cell, tmp_path) is None
        measured = collect([cell], [tmp_path])[cell.name]["measurements"]
        assert [m["step"] for m in measured] == list(range(0, 4, every))
        ends.append(measured[-1])
    assert ends[0]["n_step"] == pytest.approx(ends[1]["n_step"], rel=1e-3)
    assert ends[0]["elbo"] == pytest.approx(ends[1]["elbo"], rel=1e-4)
    assert len(ends[0]["n_step"]) == 3
    assert ends[0]["weights"] == pytest.approx([0.4 * 0.36, 0.4 * 0.6, 0.4])


# Figure 4


def test_a_trace_is_what_the_model_does(grid):
    out, _ = grid
    for name in ("T02_eta0.5_seed0", "T02_emanet_seed0"):
        model = load_model(out / "runs" / name).eval()
        image, _ = Scenes("val", size=32, length=3).read(0)
        analysis = analyse(model, image[None])
        assert np.array_equal(analysis.classes[0], model.predict(image.permute(1, 2, 0).numpy()))
        unit = model.head.attention
        found = trace_unit(unit, analysis.features)
        x = analysis.features.flatten(2).mT
        own = highway_solver(x, unit.bases.value, unit.plan())
        gamma = found.responsibilities(found.iterations)
        torch.testing.assert_close(gamma.flatten(2).mT, own.responsibilities)
        rebuilt = (own.responsibilities @ own.bases).mT
        torch.testing.assert_close(found.rebuilt(found.iterations).flatten(2), rebuilt)
    assert attention.choose_bases(gamma[0], 2, [4, 1]) == [3, 0]
    with pytest.raises(UserError, match="bases 1 to 4"):
        attention.choose_bases(gamma[0], 2, [5])


def test_iterations_change_the_prediction_as_well_as_the_trace(grid):
    """One option, one prediction: what is drawn of EM and of the classes is of the same pass."""
    out, _ = grid
    model = load_model(out / "runs" / "T02_eta0.5_seed0").eval()
    images = torch.stack([Scenes("val", size=32, length=3).read(i)[0] for i in range(3)])
    predicted = []
    for iterations in (2, 9):
        analysis = analyse(model, images, iterations)
        predicted.append(analysis.classes)
        assert trace_unit(model.head.attention, analysis.features, iterations).iterations == (
            iterations
        )
    assert np.array_equal(predicted[0], analyse(model, images).classes)
    assert not np.array_equal(predicted[0], predicted[1])


def test_class_shares_are_shares(grid):
    out, _ = grid
    model = load_model(out / "runs" / "T02_eta0.5_seed0").eval()
    shares, weight = attention.class_shares(model, Scenes("val", size=32, length=3))
    assert shares.shape == (4, 11)
    torch.testing.assert_close(shares.sum(1), torch.ones(4, dtype=torch.float64))
    assert float(weight.sum()) == pytest.approx(1)


def test_pictures_of_features_share_one_scale():
    torch.manual_seed(0)
    x = torch.randn(6, 5, 7)
    colours = attention.FeatureColours.of(x)
    first, second = colours.picture(x), colours.picture(torch.zeros(6, 5, 7))
    assert first.shape == (3, 5, 7)
    assert 0 <= float(first.min()) <= float(first.max()) <= 1
    assert float(second.std((1, 2)).max()) == pytest.approx(0)


# Heads


def test_comparison_counts_costs_and_keeps_one_recipe():
    heads = compare.check_heads(["hemnet", "fcn", "hemnet"])
    assert heads == ["hemnet", "fcn"]
    with pytest.raises(UserError, match="deeplabv3plus"):
        compare.check_heads(["segformer"])
    base = tiny()
    cells = compare.compare_cells(base, heads, [0, 1])
    assert [c.config.optim for c in cells] == [base.optim] * 4
    costs = compare.costs_of(base, heads, Scenes("train").info)
    assert costs["hemnet"]["params"] > costs["fcn"]["params"] > 0
    results = made_results(cells, {"hemnet": [60.0, 62.0], "fcn": [50.0, 52.0]})
    summary = compare.summarise_comparison(heads, results, costs, dict.fromkeys(heads, 1.0))
    assert summary["hemnet_minus"]["fcn"]["value"] == 10
    assert summary["rows"][0]["miou"]["mean"] == 61


def made_results(cells, values):
    return {
        c.name: {**c.place, "status": "done", "miou": values[c.place["head"]][c.place["seed"]]}
        for c in cells
    }


# The commands


def hemnet(*args) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in args])
    return stop.value.code


def test_commands_write_json_markdown_and_pictures(grid, tmp_path, capsys):
    out, _ = grid
    settings = ["--iterations", 2, "--step-sizes", 0.5, "--seeds", 0]
    (out / "recipe.yaml").write_text(dump_config(tiny()))
    assert hemnet("study", "ablation", *settings, "--out", out) == 0
    assert hemnet("study", "ablation", *settings[:-1], 0, 1, "--summary", "--out", out) == 0
    assert "3 of 6 runs are missing" in (out / "ablation.md").read_text()
    run = out / "runs" / "T02_eta0.5_seed0"
    flags = ["--data.val_length", 2]
    assert hemnet("study", "iterations", *flags, out, "--iterations", 1, 2, "--out", tmp_path) == 0
    assert hemnet("study", "attention", run, *flags, "--out", tmp_path) == 0
    few = ["--samples", 4, "--step-sizes", 0.5, 1, "--iterations", 2]
    assert hemnet("study", "gradients", run, *few, "--out", tmp_path) == 0
    assert "already in" in capsys.readouterr().out
    for folder, stems in (
        (out, ("ablation", "ablation_lines", "ablation_context")),
        (tmp_path, ("iterations", "attention", "attention_classes", "gradients")),
    ):
        for stem in stems:
            assert (folder / f"{stem}.png").stat().st_size > 5000, stem
            assert "<svg" in (folder / f"{stem}.svg").read_text()[:600], stem
    for name in ("iterations", "attention", "gradients"):
        assert json.loads((tmp_path / f"{name}.json").read_text())
        assert (tmp_path / f"{name}.md").read_text().startswith("# ")


def test_mistakes_are_said_in_one_line(grid, tmp_path, capsys):
    out, _ = grid
    (out / "recipe.yaml").write_text(dump_config(tiny()))
    for args, words in (
        (["ablation", "--step-sizes", "1.5", "--out", tmp_path], "at most 1"),
        (["ablation", "--optm.steps", "3", "--out", tmp_path], "did you mean optim.steps"),
        (["ablation", "--shard", "3/2", "--out", tmp_path], "expected I/N"),
        (["ablation", "--optim.steps", "9", "--out", out], "another recipe"),
        (["attention", out / "runs" / "fcn_seed0", "--out", tmp_path], "no EM unit"),
        (["attention", out / "runs" / "T02_emanet_seed0", "--index", 9, "--out", tmp_path], "0 to"),
        (["compare", "--heads", "x", "--out", tmp_path], "expected some of"),
    ):
        assert hemnet("study", *args) == 2, args
        assert words in capsys.readouterr().err
