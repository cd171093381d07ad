"""Heads, data sets and formats are named once; help and documents follow."""

import re
from pathlib import Path

import pytest

import hemnet
from hemnet import cli
from hemnet.data.annotation_formats import READERS
from hemnet.models import convert

ROOT = Path(__file__).parents[1]


def help_of(*words, capsys):
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    return " ".join(capsys.readouterr().out.split())


def test_help_lists_the_registries(capsys):
    datasets = ", ".join(hemnet.data.list_datasets())
    assert f"data sets: {datasets}" in help_of("data", capsys=capsys)
    text = help_of("train", capsys=capsys)
    assert f"data sets: {datasets}" in text
    assert f"models: {', '.join(hemnet.list_models())}" in text


def test_commands_offer_what_the_library_reads():
    from hemnet.cli.convert import SOURCES
    from hemnet.cli.data import FORMATS

    assert tuple(READERS) == FORMATS
    assert tuple(convert.SOURCES) == SOURCES


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_documents_name_models_and_data_sets_that_exist(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"model\.name[ :=]+(\w+)", text)
    named += re.findall(r'hemnet\.create_model\(\s*"(\w+)"', text)
    assert set(named) <= set(hemnet.list_models())
    named = re.findall(r"data\.name[ :=]+(\w+)", text) + re.findall(r'open_dataset\("(\w+)"', text)
    assert set(named) <= set(hemnet.data.list_datasets())
