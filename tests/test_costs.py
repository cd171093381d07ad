"""Costs: against counts by hand, and against the paper's Table 3."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import hemnet
from hemnet.cli import costs as command
from hemnet.errors import UserError
from hemnet.models.costs import PAPER_ROWS, LiveBytes, count, on_meta, paper_table, peak_bytes


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, float]]:
    return paper_table()


def test_every_parameter_figure_prints_as_the_papers(table: dict[str, dict[str, float]]) -> None:
    assert list(table) == [row.name for row in PAPER_ROWS]
    for row in PAPER_ROWS:
        decimals = len(row.params.partition(".")[2])
        assert f"{table[row.name]['params_mi']:.{decimals}f}" == row.params


def test_flops_are_the_papers(table: dict[str, dict[str, float]]) -> None:
    for name, row in table.items():
        ratio = row["gflops"] / row["paper_gflops"]
        if name == "deeplabv3plus":  # known not to agree, and said so
            assert not row["gflops_agree"]
            assert ratio > 1.1
        else:
            assert abs(ratio - 1) <= (0.001 if name == "resnet101" else 0.01)
            assert row["gflops_agree"]


def test_memory_is_the_papers_where_its_rule_is_known(table: dict[str, dict[str, float]]) -> None:
    assert {name for name, row in table.items() if row["memory_agree"]} == {"resnet101", "psanet"}


def make(name: str, channels: int = 512) -> hemnet.Segmenter:
    return on_meta(partial(hemnet.create_model, name, 21, "test_resnet", channels=channels))


@pytest.mark.parametrize("name", ["hemnet", "emanet"])
@pytest.mark.parametrize("size", [64, 2048])  # the second is computed in tiles
def test_em_products_are_counted(name: str, size: int) -> None:
    model = make(name)
    costs = count(model, (size, size))
    positions = (size // 8 + 1) ** 2
    # The first convolution: on all positions, or before and after each of 3 iterations on 64 bases.
    mapped = min(positions, 2 * 3 * 64) * 512**2
    # The masses N_k may be summed by a product with ones: 3 of 7·512 parts.
    if model.head.attention.initial_bases == "image":  # candidates, and 64 products with them
        candidates = min(positions, 256)
        mapped += candidates * 512**2 + 64 * candidates * 512
    expected = 2 * (7 * positions * 64 * 512 + mapped)
    assert costs.matmul_flops == pytest.approx(expected, rel=0.001)
    model.head.attention.absorbs = False
    computed = count(model, (size, size))
    saved = 2 * positions * 512**2 - (costs.matmul_flops - computed.matmul_flops)
    assert computed.flops - costs.flops == pytest.approx(saved, rel=0.001)
    assert saved > 0 or size == 64


def test_attention_over_all_positions_is_counted() -> None:
    costs = count(make("nonlocal"), (249, 249))  # 32 features a side
    assert costs.matmul_flops == 2 * 2 * 1024**2 * 256


def test_a_decoder_costs_what_its_convolutions_cost() -> None:
    plain, decoded = (
        on_meta(partial(hemnet.create_model, "hemnet", 21, "test_resnet", 16, 32, **options))
        for options in ({}, {"decoder": 128})
    )
    inputs = decoded.backbone.channels[decoded.head.level]
    detail, mix, classes = inputs * 48, 9 * (256 + 48) * 128, 128 * 21
    before, after = (count(model, (257, 385)) for model in (plain, decoded))
    norms = 2 * (48 + 128)
    assert after.params - before.params == detail + mix + norms + classes - 256 * 21
    fine, coarse = 65 * 97, 17 * 25  # positions at strides 4 and 16
    added = fine * (detail + mix + classes) - coarse * 256 * 21
    assert after.multiply_adds - before.multiply_adds == added


def test_costs_grow_with_the_batch_and_need_no_memory() -> None:
    model, size = make("hemnet"), (4096, 4096)
    one, two = count(model, size), count(model, size, batch=2)
    assert two.params == one.params
    assert two.flops == 2 * one.flops
    inference, training = peak_bytes(model, size), peak_bytes(model, size, training=True)
    assert training > inference > 4 * 21 * 4096**2
    assert peak_bytes(model, size, 2, True) == pytest.approx(2 * training, rel=0.01)


def test_memory_alive_follows_what_is_freed() -> None:
    layers = nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(5)), nn.ReLU(inplace=True))
    x = torch.zeros(1, 4, 16, 16)
    size = x.numel() * 4
    with torch.no_grad(), LiveBytes() as alive:
        y = layers(x)
    assert alive.peak == 2 * size  # input and output of a layer, the first input is not ours
    assert alive.now == size
    del y
    assert alive.now == 0
    with LiveBytes() as alive:
        kept = layers(x)
    assert kept.requires_grad
    assert alive.peak == 5 * size  # every layer's input is kept


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(arguments))


class TestCommand:
    def test_prints_and_writes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "costs.json"
        small = ("--backbone", "test_resnet", "--size", "33x65", "--num-classes", "4")
        run("--model", "hemnet", "fcn", *small, "--json", str(path))
        printed = capsys.readouterr().out
        assert "1×3×33×65" in printed
        rows = json.loads(path.read_text())
        assert list(rows) == ["hemnet", "fcn"]
        assert rows["fcn"]["flops"] == 2 * rows["fcn"]["multiply_adds"]
        assert f"{rows['hemnet']['params'] / 1e6:.2f}" in printed

    def test_counts_options_of_the_head(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        small = ("--backbone", "test_resnet", "--size", "33", "--json", str(tmp_path / "c.json"))
        run(*small)
        plain = json.loads((tmp_path / "c.json").read_text())["hemnet"]
        run(*small, "--option", "decoder=12", "eval_iterations=null")
        assert "stride 8, decoder=12, eval_iterations=None" in capsys.readouterr().out
        decoded = json.loads((tmp_path / "c.json").read_text())["hemnet"]
        assert decoded["params"] != plain["params"]

    def test_prints_the_papers_table(
        self,
        tmp_path: Path,
        table: dict[str, dict[str, float]],
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("hemnet.models.costs.paper_table", lambda: table)
        run("--paper", "--json", str(tmp_path / "t.json"))
        printed = capsys.readouterr().out
        assert "142.6 ≠" in printed
        assert "10.6 ✓" in printed
        rows = json.loads((tmp_path / "t.json").read_text())
        keys = {"params_mi", "gflops", "paper_params_mi", "paper_gflops"}
        assert all(keys <= row.keys() for row in rows.values())

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--size", "big"),
            ("--size", "0x5"),
            ("--batch", "0"),
            ("--model", "unet"),
            ("--paper", "--model", "fcn"),
            ("--paper", "--option", "decoder=12"),
            ("--option", "decoder"),
            ("--option", "channels=12"),
            ("--option", "bases=[}"),
            ("--option", "step=1"),
            ("--backbone", "test_resnet", "--json", "pyproject.toml/x.json"),
        ],
    )
    def test_mistakes_are_the_users(self, arguments: tuple[str, ...]) -> None:
        with pytest.raises(UserError):
            run(*arguments)
