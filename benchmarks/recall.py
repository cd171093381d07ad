"""Recall: a task that a mean over all positions cannot solve, and what solving it costs.

    python benchmarks/recall.py learn --out recall.jsonl [--units hem attention] [--groups 3 6 12]
    python benchmarks/recall.py table --out recall.jsonl
    python benchmarks/recall.py cost [--json FILE]

A sample is 128 points in a few groups. A point knows its group's key, a direction in 6 dimensions
drawn anew for every sample; three points of each group, its lamps, also know its state. All others
are asked for the state of their group. Every network has the same layers around its unit.
"Majority" is what the number of lamps of each state gives, all that a mean can say.

`learn` appends one line of JSON for every run and skips those that are in the file already, so it
can be stopped and started at will. Half a minute a run on one core; `--shard 0/2` and `1/2` share
the work between two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import yaml
from rich.table import Table
from torch import Tensor, nn

import hemnet
from common import Work, console, interleave, peak_memory, save
from hemnet.inspection.gradient_flow import model_gradient_flow
from hemnet.nn.plan import Plan

KEY, NOISE, LAMPS, POINTS = 6, 0.05, 3, 128
WIDTH, BATCH, RATE = 64, 32, 3e-3
STEPS = {3: 1000, 6: 1500, 12: 1500}
TEST_SAMPLES, TEST_SEED = 512, 99
LENGTHS = (1024, 2048, 4096, 8192, 16384)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Sample(NamedTuple):
    points: Tensor  # B,N,8: key, whether it is a lamp, the state shown (0 where it is none)
    state: Tensor  # B,N: of the point's group
    asked: Tensor  # B,N: whether it counts, which lamps do not


def draw(count: int, groups: int, generator: torch.Generator) -> Sample:
    keys = F.normalize(torch.randn(count, groups, KEY, generator=generator), dim=-1)
    states = torch.randint(0, 2, (count, groups), generator=generator)
    group = torch.randint(0, groups, (count, POINTS), generator=generator)
    lamps = LAMPS * groups
    group[:, :lamps] = torch.arange(groups).repeat(LAMPS)
    is_lamp = (torch.arange(POINTS) < lamps).expand(count, -1)
    key = keys.gather(1, group.unsqueeze(-1).expand(-1, -1, KEY))
    key = key + NOISE * torch.randn(key.shape, generator=generator)
    state = states.gather(1, group)
    shown = torch.where(is_lamp, 2.0 * state - 1, 0.0)
    return Sample(torch.cat((key, is_lamp.unsqueeze(-1), shown.unsqueeze(-1)), -1), state, ~is_lamp)


def test_samples(groups: int) -> Sample:
    return draw(TEST_SAMPLES, groups, torch.Generator().manual_seed(TEST_SEED))


def accuracy(sample: Sample, answers: Tensor) -> float:
    return 100 * float((answers == sample.state)[sample.asked].float().mean())


def majority(groups: int) -> float:
    sample = test_samples(groups)
    most = (sample.points[..., -1].sum(1, keepdim=True) >= 0).long()
    return accuracy(sample, most.expand_as(sample.state))


class SelfAttention(nn.Module):
    """One head over all positions, in the place and with the residual of the other units."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, 3 * (channels // 2), 1)
        self.outer = nn.Conv2d(channels // 2, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.inner(x).flatten(2).mT.unsqueeze(1)
        # B,1,N,C/2 each; in rows, as the kernel that never holds N·N numbers wants them
        parts = (part.contiguous() for part in flat.chunk(3, dim=-1))
        seen = F.scaled_dot_product_attention(*parts)
        return F.relu(x + self.norm(self.outer(seen.squeeze(1).mT.unflatten(2, x.shape[2:]))))


class EMANetWithGradient(hemnet.EMAttention):
    """EMANet's unit, its iterations part of the graph."""

    def __init__(self, channels: int, bases: int) -> None:
        super().__init__(channels, bases)
        self.conv_in.requires_grad_(True)

    def plan(self, iterations: int | None = None) -> Plan:
        return super().plan(iterations)._replace(backward="exact")


UNITS: dict[str, Callable[..., nn.Module]] = {
    "none": lambda bases: nn.Identity(),
    "mean": lambda bases, **options: hemnet.HighwayEMAttention(WIDTH, 1, **options),
    "hem": lambda bases, **options: hemnet.HighwayEMAttention(WIDTH, bases, **options),
    "emanet": lambda bases: hemnet.EMAttention(WIDTH, bases),
    "emanet with gradient": lambda bases: EMANetWithGradient(WIDTH, bases),
    "attention": lambda bases: SelfAttention(WIDTH),
}
WITHOUT_BASES = ("none", "mean", "attention")  # their figures do not depend on K


class Network(nn.Module):
    """Points B,N,8 → logits B,N,2: layers for each point alone, the unit between them."""

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.encode = _layers(KEY + 2, WIDTH)
        self.decode = _layers(WIDTH, 2)
        self.unit = unit

    def forward(self, points: Tensor) -> Tensor:
        features = self.encode(points).mT.unsqueeze(-1)  # B,C,N,1
        return self.decode(self.unit(features).squeeze(-1).mT)


def _layers(inputs: int, outputs: int) -> nn.Sequential:
    first, second = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(WIDTH, outputs))


class Case(NamedTuple):
    """What one run is; its line in the file begins with these."""

    unit: str
    options: dict[str, Any]
    bases: int | None
    groups: int | None  # None: `data.name: recall` with 2 to 12 groups (`recall_images.py`)
    seed: int
    steps: int

    def key(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)


def learn(case: Case, measure_at: Collection[int] = ()) -> dict[str, Any]:
    """Train and test once; `measure_at`: steps before which gradients are measured."""
    assert case.groups is not None
    start = time.perf_counter()
    torch.manual_seed(case.seed)
    unit = UNITS[case.unit](case.bases, **case.options)
    network, generator = Network(unit), torch.Generator().manual_seed(case.seed + 1)
    optimizer = torch.optim.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, case.steps)
    flow = []
    for step in range(case.steps):
        if step in measure_at:
            flow.append({"step": step, **gradients(network, case.groups)})
        sample = draw(BATCH, case.groups, generator)
        loss = loss_of(network, sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    sample = test_samples(case.groups)
    with torch.no_grad():
        found = accuracy(sample, network(sample.points).argmax(-1))
    health = str(unit.health()) if hasattr(unit, "health") else None
    row = {
        "accuracy": found,
        "health": health,
        "seconds": time.perf_counter() - start,
        "majority": majority(case.groups),
    }
    return row | ({"gradients": flow} if measure_at else {})


def loss_of(network: nn.Module, sample: Sample) -> Tensor:
    return F.cross_entropy(network(sample.points)[sample.asked], sample.state[sample.asked])


def gradients(network: nn.Module, groups: int) -> dict[str, list[float]]:
    """Mean absolute gradient that reaches the features by each iteration and path (Figure 3)."""
    sample = draw(BATCH, groups, torch.Generator().manual_seed(TEST_SEED))
    flow = model_gradient_flow(network, lambda model: loss_of(model, sample))
    paths = {"e_step": flow.e_step, "n_step": flow.n_step}
    return {name: grads.abs().mean((1, 2, 3)).tolist() for name, grads in paths.items()}


def all_cases(args: argparse.Namespace, groups: Iterable[int | None]) -> list[Case]:
    cases = [
        Case(
            unit,
            args.options if unit in ("hem", "mean") else {},
            None if unit in WITHOUT_BASES else bases,
            count,
            seed,
            args.steps or STEPS[count],
        )
        for seed in range(args.first_seed, args.first_seed + args.seeds)
        for count in groups
        for bases in args.bases
        for unit in args.units
    ]
    return list({case.key(): case for case in cases}.values())


def run_all(cases: Iterable[Case], path: Path, learn: Callable[[Case], dict[str, Any]]) -> None:
    """Append a line for every case that the file does not have."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {Case(*(row[name] for name in Case._fields)).key() for row in read(path)}
    for case in cases:
        if case.key() in done:
            continue
        row = case._asdict() | learn(case)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        console.print(
            f"{case.unit} {case.options or ''} K {case.bases} groups {case.groups or '2 to 12'} "
            f"seed {case.seed}: {row['accuracy']:.1f}% (majority {row['majority']:.1f}%, "
            f"{row['seconds']:.0f} s)", highlight=False, soft_wrap=True,
        )  # fmt: skip


def learn_all(args: argparse.Namespace) -> None:
    mine, shards = (int(part) for part in args.shard.split("/"))
    cases = all_cases(args, args.groups)[mine::shards]
    run_all(cases, args.out, lambda case: learn(case, args.measure_at))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def table(rows: list[dict[str, Any]]) -> None:
    """Median, worst and number of runs of everything that was learned."""
    majorities = {row["groups"]: row["majority"] for row in rows}
    found: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(dict)
    for row in rows:
        name = row["unit"], json.dumps(row["options"]), str(row["bases"] or "")
        found[name].setdefault(row["groups"], []).append(row["accuracy"])
    shown = Table("unit", "options", "K", title="Accuracy in percent: median, worst (runs)")
    groups = sorted(majorities, key=lambda count: count or 0)
    for count in groups:
        shown.add_column(f"{count or '2 to 12'} groups", justify="right")
    shown.add_row("majority", "", "", *(f"{majorities[count]:.1f}" for count in groups))
    for (unit, options, bases), by_groups in sorted(found.items()):
        cells = [
            f"{statistics.median(values):.1f}, {min(values):.1f} ({len(values)})"
            if (values := by_groups.get(count))
            else "–"
            for count in groups
        ]
        shown.add_row(unit, "" if options == "{}" else options, bases, *cells)
    console.print(shown)


def cost(args: argparse.Namespace) -> None:
    """Time and memory of one image, forward and backward, as positions grow."""
    units: dict[str, nn.Module] = {"mean": UNITS["mean"](1, **args.options)}
    units |= {f"hem {bases}": UNITS["hem"](bases, **args.options) for bases in args.bases}
    units["attention"] = SelfAttention(WIDTH)
    hem = [name for name in units if name.startswith("hem")]
    rows = []
    for positions in args.lengths:
        x = torch.randn(1, WIDTH, positions, 1, requires_grad=True)
        variants: dict[str, Work] = {
            name: lambda unit=unit, x=x: unit(x).sum().backward() for name, unit in units.items()
        }
        times = interleave(variants, args.rounds, f"N = {positions}", clock=CLOCKS[args.clock])
        row: dict[str, Any] = {"positions": positions}
        for name, work in variants.items():
            row[name] = {"ms": 1e3 * times.median(name), "mb": peak_memory(work) / 1e6}
        for name in hem:
            row[name]["attention takes"] = times.ratio("attention", name)
        rows.append(row)
    load = os.getloadavg()[0]
    shown = Table("positions", title=f"Forward and backward of one image, C={WIDTH}: ms, MB")
    for name in units:
        shown.add_column(name, justify="right")
    for name in hem:
        shown.add_column(f"attention ÷ {name}, time", justify="right")
    for row in rows:
        cells = [f"{row[name]['ms']:.1f}, {row[name]['mb']:.1f}" for name in units]
        ratios = [f"{row[name]['attention takes']:.1f}" for name in hem]
        shown.add_row(f"{row['positions']:,}", *cells, *ratios)
    console.print(shown)
    console.print(f"{args.clock} time, {args.threads} threads, load of the machine {load:.1f}")
    settings = {"options": args.options, "clock": args.clock, "threads": args.threads}
    save(args.json, settings | {"load": round(load, 1), "lengths": rows})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    actions = parser.add_subparsers(dest="action", required=True)
    subs = {name: actions.add_parser(name) for name in ("learn", "table", "cost")}
    for name in ("learn", "table"):
        subs[name].add_argument("--out", type=Path, default=Path("recall.jsonl"))
    for name in ("learn", "cost"):
        subs[name].add_argument(
            "--options", type=yaml.safe_load, default={}, metavar="YAML",
            help="of HighwayEMAttention, such as '{preset: paper, variance: auto}'",
        )  # fmt: skip
    sub = subs["learn"]
    sub.add_argument("--units", nargs="+", choices=UNITS, default=list(UNITS))
    sub.add_argument("--groups", nargs="+", type=int, choices=STEPS, default=list(STEPS))
    sub.add_argument("--bases", nargs="+", type=int, default=[16, 64])
    sub.add_argument("--seeds", type=int, default=5)
    sub.add_argument("--first-seed", type=int, default=0)
    sub.add_argument("--steps", type=int, help="(default: 1000 with 3 groups, else 1500)")
    sub.add_argument(
        "--measure-at", nargs="*", type=int, default=[], metavar="STEP",
        help="measure gradients by iteration and path before these steps",
    )  # fmt: skip
    sub.add_argument("--shard", default="0/1", help="part of the runs, such as 0/2")
    subs["cost"].add_argument("--bases", nargs="+", type=int, default=[16, 64])
    subs["cost"].add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    subs["cost"].add_argument("--rounds", type=int, default=7)
    subs["cost"].add_argument(
        "--clock", choices=CLOCKS, default="wall",
        help="cpu: processor time, which a busy machine changes less",
    )  # fmt: skip
    subs["cost"].add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", hemnet.BasesWarning)  # a collapse is among the results
    {"learn": learn_all, "table": lambda a: table(read(a.out)), "cost": cost}[args.action](args)


if __name__ == "__main__":
    main()
