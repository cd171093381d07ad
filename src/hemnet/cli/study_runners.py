"""What each `hemnet study` does: train or load, measure, write JSON, Markdown and pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hemnet.data.dataset import SegmentationDataset
from hemnet.data.labels import VOID
from hemnet.errors import UserError
from hemnet.files import write_json, write_text
from hemnet.image_io import read_image
from hemnet.inference.open_model import load_model
from hemnet.inspection.attention import choose_bases, class_shares, needed_unit
from hemnet.inspection.em_trace import analyse, spread_out, trace_unit
from hemnet.inspection.examples import Example
from hemnet.models.segmenter import Segmenter
from hemnet.run_folder import RunFolder
from hemnet.study import ablation_figure as picture
from hemnet.study import markdown as tables
from hemnet.study.ablation import ablation_cells, paper_ablation, summarise_ablation
from hemnet.study.attention_figure import draw_attention, draw_shares
from hemnet.study.compare_figure import draw_compare
from hemnet.study.compare_heads import (
    check_heads,
    compare_cells,
    costs_of,
    speeds_of,
    summarise_comparison,
)
from hemnet.study.gradients import gradient_cells, measure_model
from hemnet.study.gradients_figure import draw_flow
from hemnet.study.grid import Cell, Outcome, collect, run_grid
from hemnet.study.iterations import evaluate_all, models_of, paper_iterations, summarise_iterations
from hemnet.study.iterations_figure import draw_iterations
from hemnet.study.recipe import study_config
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import differences, dump_config, read_config
from hemnet.training.setup import open_datasets, open_split

RECIPE = "recipe.yaml"
ALIASES = {"backbone": "--model.backbone", "weights": "--model.weights"}


def recipe_of(args: argparse.Namespace) -> TrainConfig:
    """The study's recipe; a folder that has one keeps it."""
    flags = list(args.settings)
    for short, long in ALIASES.items():
        value = getattr(args, short)
        flags += [] if value is None else [long, value]
    kept = args.out / RECIPE
    path = args.config or (kept if kept.exists() else None)
    config = study_config(path, flags)
    if kept.exists():
        changed = differences(read_config(kept), config)
        if changed:
            raise UserError(
                f"{args.out} was begun with another recipe:\n  " + "\n  ".join(changed) + "\n"
                "Leave these settings out to go on with it, or choose another --out"
            )
    write_text(kept, dump_config(config))
    return config


def train_cells(args: argparse.Namespace, cells: Sequence[Cell], **options: Any) -> Outcome:
    if args.workers is not None and args.workers < 1:
        raise UserError(f"--workers {args.workers}: expected at least 1")
    outcome = run_grid(cells, args.out, workers=args.workers, **options)
    if outcome.stopped_by is not None:
        print(f"stopped. The same command goes on with what is in {args.out}")
        raise SystemExit(128 + outcome.stopped_by)
    return outcome


def model_and_data(
    source: Path, settings: Sequence[str]
) -> tuple[Segmenter, TrainConfig, SegmentationDataset]:
    """A trained model, its recipe changed by flags, and what that validates on."""

    model = load_model(source)
    run = RunFolder(source)
    config = read_config(run.config if run.holds_run else None, settings)
    train_set, val_set = open_datasets(config.data)
    dataset = val_set or train_set
    names = model.config.classes
    if model.config.num_classes != dataset.num_classes or (
        names is not None and names != tuple(dataset.info.classes)
    ):
        raise UserError(
            f"{source} was trained for other classes than those of {dataset.info.name}: give its "
            "data with --data.name and --data.root"
        )
    return model, config, dataset


def finish(
    args: argparse.Namespace, content: Any, text: str, outcome: Outcome | None = None
) -> None:
    """Write the figures and the document, and print it; exit code 1 if runs failed."""
    out = args.out
    write_json(out / f"{args.study}.json", content)
    write_text(out / f"{args.study}.md", text)
    print(text)
    print(f"wrote JSON, Markdown and pictures to {out}")
    if outcome is not None and outcome.failed:
        names = ", ".join(outcome.failed)
        raise SystemExit(f"hemnet: {len(outcome.failed)} runs failed: {names}")


def ablation(args: argparse.Namespace) -> None:
    config = recipe_of(args)
    cells = ablation_cells(config, args.iterations, args.step_sizes, args.seeds, args.baselines)
    outcome = None if args.summary else train_cells(args, cells, shard=args.shard)
    results = collect(cells, [args.out, *args.merge])
    summary, printed = summarise_ablation(cells, results), paper_ablation()
    if not summary["runs_done"]:
        raise UserError(f"none of the {len(cells)} runs in {args.out} is done")
    context = None
    if any(result.get("context_miou") is not None for result in results.values()):
        context = summarise_ablation(cells, results, "context_miou")
    content: dict[str, Any] = {"miou": summary, "context_miou": context, "paper": printed}
    content["runs"] = list(results.values())
    text = tables.ablation_document(summary, context, printed)
    title = f"{config.data.name}, {config.model.backbone}"
    picture.draw_heat(summary, printed, f"ours: {title}", args.out / "ablation")
    picture.draw_lines(summary, "validation mIoU (%)", args.out / "ablation_lines")
    if context is not None:
        picture.draw_lines(context, "mIoU of context classes (%)", args.out / "ablation_context")
    finish(args, content, text, outcome)


def iterations(args: argparse.Namespace) -> None:
    models = models_of(args.models)
    _, config, dataset = model_and_data(models[0].path, args.settings)
    rows = evaluate_all(models, dataset, args.iterations, args.out, config.validation.batch_size)
    summary, printed = summarise_iterations(rows), paper_iterations()
    content: dict[str, Any] = {"miou": summary, "paper": printed, "rows": rows}
    if dataset.info.context_classes:
        content["context_miou"] = summarise_iterations(rows, "context_miou")
    text = tables.iterations_document(summary, printed)
    title = f"ours: {config.data.name}, {config.model.backbone}"
    draw_iterations(summary, printed, title, args.out / "iterations")
    finish(args, content, text)


def gradients(args: argparse.Namespace) -> None:
    if args.samples < 1 or (args.every is not None and args.every < 1):
        raise UserError("--samples and --every: expected at least 1")
    if args.model is not None:
        model, config, dataset = model_and_data(args.model, args.settings)
        found = measure_model(
            model, config, dataset, args.iterations, args.step_sizes, args.samples
        )
        draw_flow(found, args.out / "gradients")
        text = tables.gradients_document(found, f"in {args.model}")
        return finish(args, {"model": str(args.model), "measured": found}, text)

    config = recipe_of(args)
    every = args.every or max(1, config.optim.steps // 10)
    cells = gradient_cells(
        config, args.iterations, args.step_sizes, args.seeds, every=every, samples=args.samples
    )
    outcome = train_cells(args, cells)
    results = {n: r for n, r in collect(cells, [args.out]).items() if r["status"] == "done"}
    if not results:
        raise UserError(f"none of the {len(cells)} runs in {args.out} is done")
    first = [r for r in results.values() if r["seed"] == args.seeds[0]]
    training = {r["step_size"]: r["measurements"] for r in first}
    start = {eta: measured[0] for eta, measured in training.items()}
    end = {eta: measured[-1] for eta, measured in training.items()}
    draw_flow(start, args.out / "gradients", training)
    draw_flow(end, args.out / "gradients_trained")
    text = tables.gradients_document(start, "before the first step")
    text += "\n" + tables.gradients_document(end, f"after {config.optim.steps} steps")
    return finish(args, {"runs": list(results.values())}, text, outcome)


def attention(args: argparse.Namespace) -> None:
    import torch

    model, _, dataset = model_and_data(args.model, args.settings)
    model.eval()
    if args.image is not None:
        image = torch.from_numpy(read_image(args.image)).permute(2, 0, 1)
        mask = torch.full(image.shape[1:], VOID, dtype=torch.uint8)
    elif 0 <= args.index < len(dataset):
        image, mask = dataset.read(args.index)
    else:
        raise UserError(f"--index {args.index}: {dataset.info.name} has 0 to {len(dataset) - 1}")
    unit, analysis = needed_unit(model), analyse(model, image[None], args.iterations)
    assert analysis.features is not None
    trace = trace_unit(unit, analysis.features, args.iterations)
    last = trace.responsibilities(trace.iterations)[0]
    bases = choose_bases(last, args.count, args.bases)
    shown = [t + 1 for t in spread_out(trace.iterations, 4)]
    prediction = torch.from_numpy(analysis.classes[0].astype("uint8"))
    draw_attention(
        Example("", image, mask, prediction), args.image is None, trace, analysis.placement, bases,
        shown, dataset.info, args.out / "attention",
    )  # fmt: skip
    shares, weight = class_shares(model, dataset, args.limit, args.iterations)
    draw_shares(shares, weight, dataset.info, args.out / "attention_classes")
    rows = [
        {
            "basis": k + 1,
            "share_of_attention": float(weight[k]),
            "classes": dict(zip(dataset.info.classes, shares[k].tolist(), strict=True)),
        }
        for k in range(len(shares))
    ]
    content = {"model": str(args.model), "drawn": [k + 1 for k in bases], "bases": rows}
    finish(args, content, tables.attention_document(rows))


def compare(args: argparse.Namespace) -> None:
    heads = check_heads(args.heads)
    config = recipe_of(args)
    info = open_split(config.data, config.data.split, config.data.length).info
    cells = compare_cells(config, heads, args.seeds)
    outcome = train_cells(args, cells)
    results = collect(cells, [args.out])
    summary = summarise_comparison(
        heads, results, costs_of(config, heads, info), speeds_of(config, heads, info)
    )
    draw_compare(summary, f"{config.data.name}, {config.model.backbone}", args.out / "compare")
    finish(args, summary, tables.compare_document(summary, config.data.crop), outcome)
