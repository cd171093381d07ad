"""The tables of measured figures in the documents, made from stored results.

    python benchmarks/tables.py            # prints every table
    python benchmarks/tables.py --write    # puts them into the pages

A table stands in a page between `<!-- table: NAME -->` and `<!-- end -->`; a test compares the
pages with what this prints. A difference is bold where it exceeds two standard errors.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from comparisons import (
    CAMVID_CROPS,
    CAMVID_FILMS,
    CAMVID_FROZEN,
    CAMVID_RESNET,
    COMPARISONS,
    PREVIOUS,
    ROOT,
    VOC_FROZEN,
    Comparison,
    Pair,
    Run,
    differences,
    read_runs,
    standard_error,
)
from hemnet.study.uncertainty import t_critical

RESULTS, BENCHMARKS = ROOT / "docs" / "results", ROOT / "benchmarks" / "results"
CONTROLS = RESULTS / "controls.jsonl"
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
MEAN = "hemnet:bases=1"
MEASURED = {"unit", "rate", "seed", "leave_out", "loss", "miou", "accuracy", "iou", "seconds"}
MEASURED |= {"health", "gain", "more_iterations"}
NAMES = {
    "plain": "no unit",
    MEAN: "global mean, K = 1",
    "pooling": "attention pooling, one query",
    "grid": "means of an 8×8 grid",
    "emanet": "EMANet",
    "hemnet": "HEMNet",
    PREVIOUS: "HEMNet, gain from 0.3, 10 times the rate",
    "hemnet:gain_rate=1,gain=0.3": "HEMNet, gain from 0.3, common rate",
    "hemnet:kernel=rbf,normalise=true,gain=0.6,gain_rate=1": "HEMNet, RBF, normalised, gain 0.6",
    "nonlocal": "self-attention, O(N²)",
    "pspnet": "PSPNet's pyramid pooling",
}
UNITS = [unit for unit in NAMES if unit not in (MEAN, "pooling", "grid")]  # of real_data.jsonl


def name_of(unit: str) -> str:
    if unit in NAMES:
        return NAMES[unit]
    name, _, options = unit.partition(":")
    return f"{NAMES.get(name, name)}, {options.replace(',', ', ').replace('bases=', 'K = ')}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("  |", " |") for line in lines)


def gain(values: Sequence[float], interval: bool = False) -> str:
    """Mean ± standard error; bold where it exceeds two of them."""
    if not values:
        return ""
    mean, error = statistics.mean(values), standard_error(values)
    if len(values) == 1:
        return f"{mean:+.2f}".replace("-", "−")
    text = f"{mean:+.2f} ± {error:.2f}".replace("-", "−")
    text = f"**{text}**" if abs(mean) > 2 * error else text
    if interval:
        wide = t_critical(len(values) - 1) * error
        text += f" [{mean - wide:+.2f}, {mean + wide:+.2f}]".replace("-", "−")
    return text


def mean(values: Iterable[float], digits: int = 2) -> str:
    found = list(values)
    return f"{statistics.mean(found):.{digits}f}" if found else "–"


def stored(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def recalled(
    file: str, groups: int | None, options: Mapping[str, Any], measure: str = "accuracy"
) -> dict[tuple[str, int | None], list[float]]:
    """Accuracies on recall by unit and K, in this many groups and with these options."""
    found: dict[tuple[str, int | None], list[float]] = {}
    for row in read_runs(RESULTS / file):
        if row["groups"] == groups and row["options"] == options:
            found.setdefault((row["unit"], row["bases"]), []).append(row[measure])
    return found


def median_worst(values: Sequence[float] | None) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.1f}, {min(values):.1f} ({len(values)})"


def evidence() -> str:
    runs = read_runs()
    found = recalled("recall.jsonl", 12, {})
    answers = [
        f"{statistics.median(found[key]):.1f}"
        for key in (("mean", None), ("emanet", 16), ("hem", 16), ("attention", None))
    ]
    heads = {row["head"]: row["miou"]["mean"] for row in stored(RESULTS / "compare.json")["rows"]}
    rows = [
        ("Recall with 12 groups, accuracy in % [1](docs/recall.md)", *answers),
        (
            "Generated scenes, mIoU [2](docs/studies.md#heads-under-one-budget) \\*",
            *(f"{heads[name]:.1f}" for name in ("fcn", "emanet", "hemnet", "nonlocal")),
        ),
    ]
    for title, comparison in (
        ("Part of VOC, frozen backbone, mIoU [3](docs/results.md) \\*", VOC_FROZEN),
        ("CamVid, a film never seen, frozen backbone, mIoU [4](docs/results.md) \\*", CAMVID_FILMS),
    ):
        units = ("plain", "emanet", "hemnet", "nonlocal")
        rows.append((title, *(mean(comparison.miou(runs, u).values(), 1) for u in units)))
    return markdown(("", "no attention", "EMANet", "**HEMNet**", "self-attention"), rows)


def recall() -> str:
    units: tuple[tuple[str, str, int | None, dict[str, Any]], ...] = (
        ("K = 1, a mean", "mean", None, {}),
        ('`preset="paper"`, K = 16', "hem", 16, {"preset": "paper"}),
        ("EMANet's unit, K = 16", "emanet", 16, {}),
        ("… with a gradient through its iterations", "emanet with gradient", 16, {}),
        ("self-attention, O(N²)", "attention", None, {}),
        ("**as shipped, K = 16**", "hem", 16, {}),
        ("**as shipped, K = 64**", "hem", 64, {}),
    )
    majority = {row["groups"]: row["majority"] for row in read_runs(RESULTS / "recall.jsonl")}
    groups = sorted(majority)
    rows = [("the majority", *(f"{majority[count]:.1f}" for count in groups))]
    for name, unit, bases, options in units:
        found = (recalled("recall.jsonl", n, options).get((unit, bases)) for n in groups)
        rows.append((name, *(median_worst(values) for values in found)))
    return markdown(("unit", *(f"{count} groups" for count in groups)), rows)


def recall_pairs() -> str:
    """The unit as shipped less self-attention with the same seed."""
    runs = {
        (row["unit"], row["bases"], row["groups"], row["seed"]): row["accuracy"]
        for row in read_runs(RESULTS / "recall.jsonl")
        if not row["options"]
    }
    groups = sorted({key[2] for key in runs})
    rows = []
    for bases in (16, 64):
        cells = []
        for count in groups:
            leads = [
                value - runs["attention", None, count, seed]
                for (unit, k, n, seed), value in runs.items()
                if (unit, k, n) == ("hem", bases, count)
                and ("attention", None, count, seed) in runs
            ]
            close = sum(lead > -2 for lead in leads)
            cells.append(f"{close} of {len(leads)}, worst {min(leads):+.1f}".replace("-", "−"))
        rows.append((f"K = {bases}", *cells))
    return markdown(("", *(f"{count} groups" for count in groups)), rows)


def recall_backward() -> str:
    """How the gradient goes through EM, 6 groups and K = 16; "exact" is as shipped."""
    rows = []
    for mode in ("exact", "highway", "implicit", "none"):
        options = {} if mode == "exact" else {"backward": mode}
        found = recalled("recall.jsonl", 6, options).get(("hem", 16))
        rows.append((f'`backward="{mode}"`', median_worst(found)))
    return markdown(("", "6 groups"), rows)


def recall_images() -> str:
    found = recalled("recall_images.jsonl", None, {})
    labelled = recalled("recall_images.jsonl", None, {}, "labelled")
    majority = {row["majority"] for row in read_runs(RESULTS / "recall_images.jsonl")}
    names = {
        ("mean", None): "K = 1, a mean",
        ("emanet", 32): "EMANet's unit, K = 32",
        ("attention", None): "self-attention, O(N²)",
        ("hem", 32): "**as shipped, K = 32**",
    }
    rows = [("the majority", f"{majority.pop():.1f}", "")]
    for key, name in names.items():
        rows.append((name, median_worst(found.get(key)), median_worst(labelled.get(key))))
    return markdown(("unit", "state right", "and labelled as a thing"), rows)


def recall_cost() -> str:
    found = stored(BENCHMARKS / "recall_cost.json")
    names = {"attention": "self-attention", "hem 64": "K = 64", "hem 16": "K = 16"}
    rows = [
        (
            f"{row['positions']:,}",
            *(f"{row[name]['ms']:.0f} ms, {row[name]['mb']:.1f} MB" for name in names),
            *(f"{row[name]['attention takes']:.1f}×" for name in ("hem 64", "hem 16")),
        )
        for row in found["lengths"]
    ]
    head = ("positions", *names.values(), "self-attention takes, of K = 64", "of K = 16")
    clock = {"cpu": "Processor", "wall": "Wall"}[found["clock"]]
    threads = "one thread" if found["threads"] == 1 else f"{found['threads']} threads"
    return f"{markdown(head, rows)}\n{clock} time, {threads}, load {found['load']:.1f}.\n"


def gains() -> str:
    runs = read_runs()
    rows = []
    for each in COMPARISONS:
        plain, emanet = each.gains(runs, "plain"), each.gains(runs, "emanet")
        count = str(len(plain or emanet))
        if plain and emanet and len(plain) != len(emanet):
            count += f" ({len(emanet)})"
        rows.append((each.title, count, gain(plain), gain(emanet)))
    return markdown(("setting", "pairs", "− no unit", "− EMANet's unit"), rows)


def heads() -> str:
    runs = read_runs()

    def cells(comparison: Comparison, unit: str) -> tuple[str, str]:
        found = comparison.miou(runs, unit)
        if not found:
            return "", ""
        lead = differences(found, comparison.miou(runs, "plain"))
        return f"{mean(found.values())} ({len(found)})", "" if unit == "plain" else gain(lead)

    rows = [(NAMES[u], *cells(VOC_FROZEN, u), *cells(CAMVID_FROZEN, u)) for u in UNITS]
    return markdown(("unit", "VOC (seeds)", "− no unit", "CamVid (seeds)", "− no unit"), rows)


def films() -> str:
    runs = read_runs()
    units = ("plain", "emanet", "hemnet")
    found = {unit: CAMVID_FILMS.miou(runs, unit) for unit in units}
    rows = []
    for film in sorted({str(pair[0]) for pair in found["hemnet"]}):
        of_film = (mean(v for pair, v in found[u].items() if pair[0] == film) for u in units)
        rows.append((film, *of_film))
    return markdown(("film left out", *(name_of(unit) for unit in units)), rows)


def initial_gain() -> str:
    """The two ways to start a unit, each less the head without one."""
    runs = read_runs()
    unseen = replace(CAMVID_CROPS, title="CamVid, unseen film, small crops, SGD", films=True)
    rows = []
    for each in (VOC_FROZEN, CAMVID_FROZEN, CAMVID_RESNET, CAMVID_FILMS, CAMVID_CROPS, unseen):
        both = (replace(each, ours=unit).gains(runs, "plain") for unit in (PREVIOUS, "hemnet"))
        rows.append((each.title, *(f"{gain(found)} ({len(found)})" for found in both)))
    return markdown(("setting", "from 0.3, 10 times the rate", "from 0, 30 times the rate"), rows)


def small_crops() -> str:
    """By how fast the gain is learned: mIoU of each seed, gain, and the loss in training."""
    runs = read_runs()
    plain = CAMVID_CROPS.miou(runs, "plain")
    rows = []
    for unit, name in {
        "plain": "no unit",
        "emanet": "EMANet",
        "hemnet:gain_rate=100,gain=0.3": "HEMNet, gain from 0.3, 100 times the rate",
        PREVIOUS: "… 10 times",
        "hemnet:gain_rate=1,gain=0.3": "… common rate",
        "hemnet": "HEMNet, gain from 0, 30 times the rate",
    }.items():
        found = CAMVID_CROPS.miou(runs, unit)
        loss = CAMVID_CROPS.values(runs, unit, "loss").values()
        lead = "" if unit == "plain" else gain(differences(found, plain))
        rows.append((name, mean(found.values()), lead, mean(loss, 3)))
    return markdown(("unit", "mIoU, 3 seeds", "− no unit", "loss in training"), rows)


def controls() -> str:
    """Every unit in every setting of `controls.jsonl`, with paired differences and intervals."""
    settings: dict[str, dict[tuple[str, float], dict[Pair, float]]] = {}
    for run in read_runs(CONTROLS):
        if not run["holdout"]:  # where rates were chosen
            key = {k: v for k, v in run.items() if k not in MEASURED} | {"film": "leave_out" in run}
            units = settings.setdefault(json.dumps(key, sort_keys=True), {})
            pairs = units.setdefault((run["unit"], run["rate"]), {})
            pairs[run.get("leave_out"), run["seed"]] = run["miou"]
    parts = []
    for key, units in settings.items():
        bases = {name: found for (name, _), found in units.items()}
        rows = []
        for (unit, rate), found in units.items():
            gains = (
                "" if unit == base else gain(differences(found, bases.get(base, {})), interval=True)
                for base in ("plain", MEAN, "emanet")
            )
            rows.append(
                (name_of(unit), f"{rate:g}", f"{mean(found.values())} ({len(found)})", *gains)
            )
        columns = ("unit", "rate", "mIoU (runs)", "− no unit", "− global mean", "− EMANet")
        parts.append(f"{setting_name(json.loads(key))}\n\n{markdown(columns, rows)}")
    return "\n".join(parts)


def setting_name(setting: Run) -> str:
    trained = setting.get("freeze_stages") is not None or not (
        setting.get("frozen") or setting.get("window")
    )
    names = {"voc": "VOC part", "camvid": "CamVid"}
    parts = [names.get(setting["data"], setting["data"])]
    parts += ["a film never seen"] if setting["film"] else []
    parts += [setting["backbone"], "trained along" if trained else "frozen"]
    return f"**{', '.join(parts)}, {setting['steps']} steps**"


def backward() -> str:
    modes = stored(BENCHMARKS / "attention.json")["modes"]
    chosen = {(mode["mode"], mode["iterations"]): mode for mode in modes}
    rows = [
        (
            f'`"{name}"`',
            f"{chosen[name, 3]['step_ratio']:.2f}",
            f"{chosen[name, 3]['memory_mb']:.1f} MB",
            f"{chosen[name, 16]['memory_mb']:.1f} MB",
        )
        for name in ("autograd", "exact", "highway")
    ]
    columns = ("`backward`", "time, T = 3", "extra memory, T = 3", "extra memory, T = 16")
    return markdown(columns, rows)


def positions() -> str:
    rows = [
        (
            f"{row['positions']:,}",
            f"{row['step_ms']:.0f} ms",
            f"{row['memory_mb']:.0f} MB",
            f"{row['attention_of_em']:.0f}×" if row["attention_of_em"] else "",
        )
        for row in stored(BENCHMARKS / "attention.json")["lengths"]
    ]
    return markdown(("positions", "time", "extra memory", "self-attention takes"), rows)


def pipeline() -> str:
    rows = [
        (
            str(row["workers"]),
            f"{row['hemnet']:.0f}",
            f"{row['torchvision']:.0f}",
            f"{row['ratio']:.2f}",
        )
        for row in stored(BENCHMARKS / "data.json")["pipeline"]
    ]
    return markdown(("workers", "hemnet, images/s", "torchvision, images/s", "ratio"), rows)


def engines() -> str:
    rows = [
        (
            name,
            f"{1000 * row['seconds']:.0f} ms",
            f"{row['time_over_eager_hemnet']:.2f}",
            f"{row['time_over_own_eager']:.2f}",
        )
        for name, row in stored(BENCHMARKS / "inference.json")["engines"].items()
    ]
    return markdown(("network, engine", "time", "of eager HEMNet", "of its own eager"), rows)


def models() -> str:
    rows = [
        (
            name,
            f"{1000 * row['seconds']:.0f} ms",
            f"{row['gflops']:.0f}",
            f"{row['time_over_hemnet']:.2f}",
            f"{row['share_of_best_convolution']:.0%}",
        )
        for name, row in stored(BENCHMARKS / "models.json")["models"].items()
    ]
    columns = ("network", "time", "GFLOP", "of eager HEMNet", "of the best convolution's rate")
    return markdown(columns, rows)


def parts() -> str:
    rows = [
        (name, f"{1000 * row['seconds']:.0f} ms", f"{row['time']:.1%}", f"{row['flops']:.1%}")
        for name, row in stored(BENCHMARKS / "models.json")["parts"].items()
    ]
    return markdown(("part of HEMNet", "time", "of the time", "of the FLOPs"), rows)


def bars() -> str:
    """What was promised of whole networks, beside what was measured."""
    found = (
        stored(BENCHMARKS / "attention.json")["bars"] + stored(BENCHMARKS / "train.json")["bars"]
    )
    rows = [
        (row["what"], f"{row['measured']:.3f}", row["bar"], "yes" if row["met"] else "no")
        for row in found
    ]
    return markdown(("what", "measured", "bar", "met"), rows)


def units() -> str:
    found = stored(BENCHMARKS / "attention.json")["units"]
    rows = []
    for name in dict.fromkeys(row["unit"] for row in found):
        both = {row["layout"]: row for row in found if row["unit"] == name}
        keys = ("forward_ratio", "step_ratio", "memory_ratio")
        cells = (" / ".join(f"{both[layout][key]:.2f}" for layout in both) for key in keys)
        rows.append((name, *cells))
    columns = ("unit", "forward", "forward + backward", "peak memory in training")
    return markdown(columns, rows)


def over_relaxation() -> str:
    found = stored(RESULTS / "over_relaxation.json")
    every = {"photograph": "photograph", "model": "CamVid model"}
    names = {name: text for name, text in every.items() if name in found}
    rows = [
        (
            eta,
            *(f"{found[n]['step_sizes'][eta]['after_3']:.1%}" for n in names),
            *(f"{found[n]['step_sizes'][eta]['iterations_to_99']:g}" for n in names),
        )
        for eta in found["photograph"]["step_sizes"]
    ]
    three, all_ = "of the rise after 3 iterations", "iterations to 99%"
    columns = [f"{name}, {what}" for what in (three, all_) for name in names.values()]
    return markdown(("η", *columns), rows)


def scenes_context() -> str:
    names = {
        "local": "none: local",
        "pooling": "global mean",
        "attention": "self-attention, one layer",
        "highway EM": "highway EM, 16 bases",
    }
    rows = []
    for file in ("scenes_context.json", "scenes_context_2500.json"):
        found = stored(BENCHMARKS / file)
        for name, row in found["variants"].items():
            steps = found["settings"]["steps"]
            values = (row["local_miou"], row["context_miou"], row["state_accuracy"])
            label = names[name] + ("" if steps == 1000 else f", {steps} steps")
            rows.append((label, f"{row['parameters']:,}", *(f"{value:.1f}%" for value in values)))
    return markdown(
        ("context", "parameters", "IoU of ground and lamps", "IoU of things", "state"), rows
    )


def mosaics() -> str:
    names = {
        "windows": "windows",
        "windows, global bases": "windows, `--global-bases`",
        "at once": "the whole mosaic at once",
    }
    ways = stored(BENCHMARKS / "global_bases.json")["ways"]
    rows = [(names[k], f"{v['miou']:.1f}", f"{v['miou_of_things']:.1f}") for k, v in ways.items()]
    return markdown(("8 mosaics of 576×864, windows of 96", "mIoU", "mIoU of things"), rows)


def heads_on_scenes() -> str:
    found = stored(RESULTS / "compare.json")["rows"]
    rows = [
        (
            row["head"],
            *(f"{row[key]['mean']:.1f} ± {row[key]['sd']:.1f}" for key in ("miou", "context_miou")),
            f"{row['params'] / 1e6:.2f} M",
        )
        for row in sorted(found, key=lambda row: -row["miou"]["mean"])
    ]
    return markdown(("head", "mIoU", "mIoU, context classes", "parameters"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "evidence": evidence,
    "recall": recall,
    "recall_pairs": recall_pairs,
    "recall_backward": recall_backward,
    "recall_images": recall_images,
    "recall_cost": recall_cost,
    "gains": gains,
    "heads": heads,
    "films": films,
    "initial_gain": initial_gain,
    "small_crops": small_crops,
    "backward": backward,
    "positions": positions,
    "pipeline": pipeline,
    "engines": engines,
    "models": models,
    "parts": parts,
    "bars": bars,
    "units": units,
    "over_relaxation": over_relaxation,
    "scenes_context": scenes_context,
    "mosaics": mosaics,
    "heads_on_scenes": heads_on_scenes,
}
if CONTROLS.exists():
    TABLES["controls"] = controls


def fill(text: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    if not parser.parse_args().write:
        print("\n".join(f"{name}\n\n{table()}" for name, table in TABLES.items()))
        return
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            page.write_text(filled, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: tables written")


if __name__ == "__main__":
    main()
