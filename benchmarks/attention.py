"""Speed and memory of highway EM and its units, beside plain autograd and full self-attention.

    python benchmarks/attention.py [--json FILE] [--rounds 15] [--quick] [--units]

Everything is measured on the function (`highway_em` + `r_step`, gradients to x and bases) at
B = 2, C = 512, 65×65 positions, K = 64, float32, all cores, unless a table says otherwise.
Memory is what tensors take above the output and the gradient of x, which nobody can avoid.
GFLOP/s count useful multiply-adds: 2T+1 products of N·K·C forward, two more for each of them
backward (of which "highway" needs T+1 in all); what is computed twice to save memory does not
count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

import hemnet
from common import Work, console, interleave, matmul_gflops, peak_memory, save

BATCH, CHANNELS, POSITIONS, BASES = 2, 512, 65 * 65, 64
MODES = ("autograd", "exact", "highway", "none")
SQUARE = 2048  # side of the plain matrix multiply that marks the machine's ceiling
LENGTHS = (1024, 4096, 16384, 65536, 262144)


class Problem:
    """Features, bases and an incoming gradient, and what can be done with them."""

    def __init__(self, positions: int = POSITIONS, batch: int = BATCH) -> None:
        generator = torch.Generator().manual_seed(0)
        centre = torch.randn(batch, 1, CHANNELS, generator=generator)
        self.x = torch.randn(batch, positions, CHANNELS, generator=generator).add_(centre)
        self.x.requires_grad_()
        self.bases = F.normalize(torch.randn(BASES, CHANNELS, generator=generator), dim=-1)
        self.bases.requires_grad_()
        self.grad = torch.randn(batch, positions, CHANNELS, generator=generator)

    @property
    def product(self) -> float:
        """GFLOP of one product of N·K·C."""
        return 2 * self.x.shape[0] * self.x.shape[1] * CHANNELS * BASES / 1e9

    def rebuilt(self, mode: str, iterations: int) -> Tensor:
        result = hemnet.highway_em(self.x, self.bases, iterations, backward=mode)
        return hemnet.r_step(result.responsibilities, result.bases)

    def forward(self, mode: str, iterations: int) -> Work:
        @torch.no_grad()
        def work() -> None:
            self.rebuilt(mode, iterations)

        return work

    def step(self, mode: str, iterations: int) -> Work:
        def work() -> None:
            self.x.grad = self.bases.grad = None
            out = self.rebuilt(mode, iterations)
            if out.requires_grad:
                out.backward(self.grad)

        return work

    def self_attention(self) -> Work:
        def work() -> None:
            self.x.grad = None
            x = self.x.unsqueeze(1)
            F.scaled_dot_product_attention(x, x, x).squeeze(1).backward(self.grad)

        return work

    def memory(self, work: Work, backward: bool = True) -> float:
        """Megabytes above the output and, with a backward pass, the gradient of x."""
        self.x.grad = self.bases.grad = None
        size = self.x.numel() * self.x.element_size()
        extra = peak_memory(work) - (2 * size if backward else size)
        self.x.grad = self.bases.grad = None
        return extra / 1e6


def useful_products(mode: str, iterations: int) -> int:
    """Products of N·K·C that a forward and backward pass cannot do without."""
    forward = 2 * iterations + 1
    return {"none": forward, "highway": forward + iterations + 1}.get(mode, 3 * forward)


def square() -> Work:
    a, b = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    return lambda: a @ b


def modes(rounds: int) -> dict[str, Any]:
    """Time and memory of every backward mode over the iterations."""
    problem, rows = Problem(), []
    for iterations in (1, 3, 8, 16):
        variants: dict[str, Work] = {"matmul": square()}
        for mode in MODES:
            variants[f"{mode} forward"] = problem.forward(mode, iterations)
            variants[f"{mode} step"] = problem.step(mode, iterations)
        times = interleave(variants, rounds, f"T = {iterations}")
        ceiling = matmul_gflops(times, "matmul", SQUARE)
        useful = (2 * iterations + 1) * problem.product
        for mode in MODES:
            forward, step = f"{mode} forward", f"{mode} step"
            rows.append(
                {
                    "iterations": iterations,
                    "mode": mode,
                    "forward_ms": 1e3 * times.median(forward),
                    "step_ms": 1e3 * times.median(step),
                    "step_ratio": times.ratio(step, "autograd step"),
                    "step_to_exact": times.ratio(step, "exact step"),
                    "memory_mb": problem.memory(problem.step(mode, iterations), mode != "none"),
                    "forward_gflops": useful / times.median(forward),
                    "forward_of_matmul": useful
                    / (2 * SQUARE**3 / 1e9)
                    / times.ratio(forward, "matmul"),
                    "step_gflops": useful_products(mode, iterations)
                    * problem.product
                    / times.median(step),
                    "matmul_gflops": ceiling,
                }
            )
    table = Table(title=f"Backward modes, B={BATCH} C={CHANNELS} N={POSITIONS} K={BASES}")
    for name in ("T", "backward", "forward ms", "forward+backward ms", "of autograd"):
        table.add_column(name, justify="right")
    for name in ("extra MB", "forward GFLOP/s", "step GFLOP/s", "matmul GFLOP/s"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row["iterations"]),
            str(row["mode"]),
            *(f"{row[key]:.1f}" for key in ("forward_ms", "step_ms")),
            f"{row['step_ratio']:.2f}",
            f"{row['memory_mb']:.1f}",
            *(f"{row[key]:.0f}" for key in ("forward_gflops", "step_gflops", "matmul_gflops")),
            end_section=row["mode"] == MODES[-1],
        )
    console.print(table)
    return {"modes": rows}


def lengths(rounds: int, longest: int) -> dict[str, Any]:
    """Time and memory per position as the image grows, beside full self-attention."""
    rows: list[dict[str, Any]] = []
    chosen = [n for n in LENGTHS if n <= longest]
    for positions in chosen:
        reference, problem = Problem(4096), Problem(positions)
        variants = {"4k": reference.step("exact", 3), "em": problem.step("exact", 3)}
        attention = positions <= 16384  # four times the positions, sixteen times the time
        if attention:
            variants["attention"] = problem.self_attention()
        times = interleave(variants, max(3, rounds // 5), f"N = {positions}", warm_up=1)
        per_position = 4096 / positions
        row = {
            "positions": positions,
            "step_ms": 1e3 * times.median("em"),
            "time_per_position": times.ratio("em", "4k") * per_position,
            "memory_mb": problem.memory(variants["em"]),
            "memory_per_position": problem.memory(variants["em"])
            / reference.memory(variants["4k"])
            * per_position,
            "attention_of_em": times.ratio("attention", "em") if attention else None,
            "attention_ms": 1e3 * times.median("attention") if attention else None,
        }
        rows.append(row)
    table = Table(title="Growing images, T=3, exact; per position relative to 4k positions")
    for name in ("positions", "ms", "time per position", "extra MB", "memory per position"):
        table.add_column(name, justify="right")
    for name in ("self-attention ms", "× EM"):
        table.add_column(name, justify="right")
    for row in rows:
        none = row["attention_ms"] is None
        table.add_row(
            f"{row['positions']:,}",
            f"{row['step_ms']:.0f}",
            f"{row['time_per_position']:.2f}",
            f"{row['memory_mb']:.1f}",
            f"{row['memory_per_position']:.2f}",
            "not run" if none else f"{row['attention_ms']:.0f}",
            "–" if none else f"{row['attention_of_em']:.1f}",
        )
    console.print(table)
    return {"lengths": rows}


REFERENCE = "EMAttention, convolution computed"


def forward_of(module: torch.nn.Module, x: Tensor) -> Work:
    @torch.no_grad()
    def work() -> None:
        module.eval()(x)

    return work


def step_of(module: torch.nn.Module, x: Tensor, grad: Tensor) -> Work:
    def work() -> None:
        x.grad = None
        module.train()(x).backward(grad)

    return work


def units(rounds: int) -> dict[str, Any]:
    """Units as modules, in both memory layouts, beside EMANet's with its convolution computed."""

    def unit(bases: int, preset: str = "paper") -> torch.nn.Module:
        return hemnet.HighwayEMAttention(CHANNELS, bases=bases, preset=preset)

    rows: list[dict[str, Any]] = []
    for layout in ("channels_last", "contiguous"):
        made = {
            REFERENCE: hemnet.EMAttention(CHANNELS),
            "EMAttention": hemnet.EMAttention(CHANNELS),
        }
        made[REFERENCE].absorbs = False
        made |= {f"paper, K = {count}": unit(count) for count in (8, 16, 64)}
        made |= {"recommended, K = 64": unit(64, "recommended")}
        x, grad = torch.randn(2, BATCH, CHANNELS, 65, 65)
        if layout == "channels_last":
            x, grad = (t.contiguous(memory_format=torch.channels_last) for t in (x, grad))
        x.requires_grad_()
        forward: dict[str, Work] = {}
        step: dict[str, Work] = {}
        for name, module in made.items():
            forward[name], step[name] = forward_of(module, x), step_of(module, x, grad)
        times = interleave(forward, rounds, f"forward, {layout}")
        steps = interleave(step, rounds, f"forward + backward, {layout}")
        memory = {name: peak_memory(work) / 1e6 for name, work in step.items()}
        rows += [
            {
                "unit": name,
                "layout": layout,
                "forward_ms": 1e3 * times.median(name),
                "forward_ratio": times.ratio(name, REFERENCE),
                "step_ms": 1e3 * steps.median(name),
                "step_ratio": steps.ratio(name, REFERENCE),
                "memory_mb": memory[name],
                "memory_ratio": memory[name] / memory[REFERENCE],
            }
            for name in made
        ]
    table = Table(title=f"Units, relative to {REFERENCE}")
    for name in ("layout", "unit", "forward", "forward + backward", "peak memory in training"):
        table.add_column(name, justify="right")
    for row in rows:
        ratios = [f"{row[key]:.2f}" for key in ("forward_ratio", "step_ratio", "memory_ratio")]
        table.add_row(row["layout"], row["unit"], *ratios)
    console.print(table)
    return {"units": rows}


def bars(result: dict[str, Any]) -> dict[str, Any]:
    """What was promised, beside what was measured."""

    def row(mode: str, iterations: int) -> dict[str, Any]:
        rows = result["modes"]
        return next(r for r in rows if (r["mode"], r["iterations"]) == (mode, iterations))

    def memory(iterations: int) -> float:
        return row("exact", iterations)["memory_mb"] / row("autograd", iterations)["memory_mb"]

    grown = [r for r in result["lengths"] if r["positions"] >= 4096]
    measured = [
        ("exact of autograd, time, T=3", row("exact", 3)["step_ratio"], 0.85, "≤"),
        ("exact of autograd, memory, T=3", memory(3), 0.35, "≤"),
        ("exact of autograd, memory, T=16", memory(16), 0.20, "≤"),
        ("highway of exact, time, T=3", row("highway", 3)["step_to_exact"], 0.75, "≤"),
        ("forward of a matrix multiply, T=3", row("exact", 3)["forward_of_matmul"], 0.70, "≥"),
        ("time per position, worst", max(r["time_per_position"] for r in grown), 1.3, "≤"),
        ("memory per position, worst", max(r["memory_per_position"] for r in grown), 1.3, "≤"),
    ]
    limits = {"channels_last": (0.74, 1.6, 0.80), "contiguous": (0.80, 1.9, 0.95)}
    for found in (r for r in result["units"] if r["unit"] == "paper, K = 64"):
        for key, limit in zip(("forward", "step", "memory"), limits[found["layout"]], strict=True):
            what = f"unit's {key} of EMANet's with its convolution, {found['layout']}"
            measured.append((what, found[f"{key}_ratio"], limit, "≤"))
    table = Table(title="Bars")
    for name in ("what", "measured", "bar", "met"):
        table.add_column(name, justify="left" if name == "what" else "right")
    rows = []
    for what, value, bar, relation in measured:
        met = value <= bar if relation == "≤" else value >= bar
        rows.append({"what": what, "measured": value, "bar": f"{relation} {bar}", "met": met})
        table.add_row(what, f"{value:.3f}", f"{relation} {bar}", "yes" if met else "no")
    console.print(table)
    return {"bars": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="few rounds, images up to 16k")
    parser.add_argument("--units", action="store_true", help="the units alone")
    args = parser.parse_args()
    rounds = 5 if args.quick else args.rounds
    if args.units:
        save(args.json, units(rounds))
        return
    result = modes(rounds)
    result |= lengths(rounds, 16384 if args.quick else LENGTHS[-1])
    result |= units(rounds)
    result |= bars(result)
    save(args.json, result)


if __name__ == "__main__":
    main()
