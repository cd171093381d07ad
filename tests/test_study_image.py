"""Highway EM on a photograph, drawn."""

import itertools
import json
from pathlib import Path

import pytest
from PIL import Image

from hemnet.study import photograph as image


def test_pictures_and_a_bound_that_never_falls(tmp_path: Path) -> None:
    image.main([str(tmp_path / "a" / "b")])
    curves = json.loads((tmp_path / "a/b/elbo.json").read_text())
    assert len(curves) == len(image.STEP_SIZES)
    for values in curves.values():
        assert all(later >= earlier for earlier, later in itertools.pairwise(values))
    for name in ("iterations.png", "elbo.png"):
        with Image.open(tmp_path / "a/b" / name) as picture:
            assert picture.width > 500


@pytest.mark.parametrize("option", [("--bases", "0"), ("--step-size", "2")])
def test_refuses(option: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exit_info:
        image.main([str(tmp_path), *option])
    assert exit_info.value.code == 2
