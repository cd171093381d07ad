"""The table in docs/data.md agrees with the catalog."""

import re

from hemnet.data import dataset_info, list_datasets
from support import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


def test_catalog_table_is_the_catalog():
    table = PAGE.split("## The catalog")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[0].strip("`") for row in rows] == list_datasets()
    for name, splits, classes, _ in rows:
        info = dataset_info(name.strip("`"))
        if info.classes:
            assert int(classes.split()[0]) == len(info.classes)
        if "the same" not in splits:
            numbers = [
                int(n.replace(",", "")) for n in re.findall(r" (\d[\d,]*\d)(?![\dk])", splits)
            ]
            assert numbers == [size for size in info.splits.values() if size is not None]
