"""Label files of every kind become uint8 class ids with 255 for void."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hemnet.data.class_lists import colour_map
from hemnet.data.labels import VOID, LabelEncoding, decode_values, raw_values, read_label
from hemnet.errors import DataError, UserError

VALUES = np.array([[0, 1, 2], [2, 1, 255]], np.uint8)
PALETTE = colour_map(3)


def coloured(values=VALUES, palette=PALETTE, void=(224, 224, 192)):
    table = np.array([*palette, *[void] * (256 - len(palette))], np.uint8)
    return Image.fromarray(table[values])


def with_palette(values=VALUES):
    picture = Image.fromarray(values)
    picture.putpalette([c for colour in colour_map(256) for c in colour])
    return picture


FORMS = {
    "grey": Image.fromarray(VALUES),
    "palette": with_palette(),
    "16 bit": Image.fromarray(VALUES.astype(np.uint16)),
    "RGB colours": coloured(),
    "RGBA colours": coloured().convert("RGBA"),
    "grey saved as RGB": Image.fromarray(VALUES).convert("RGB"),
    "grey with alpha": Image.fromarray(VALUES).convert("LA"),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_read_alike(tmp_path, form):
    FORMS[form].save(tmp_path / "label.png")
    mask = read_label(tmp_path / "label.png", LabelEncoding(3, colours=PALETTE))
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, VALUES)


def test_two_colour_image_is_two_classes(tmp_path):
    Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1").save(tmp_path / "l.png")
    np.testing.assert_array_equal(read_label(tmp_path / "l.png", LabelEncoding(2)), [[0, 1]])


def test_label_map_renumbers_16_bit_values(tmp_path):
    Image.fromarray(np.array([[0, 1000, 40000]], np.uint16)).save(tmp_path / "l.png")
    encoding = LabelEncoding(2, {0: VOID, 1000: 0, 40000: 1})
    np.testing.assert_array_equal(read_label(tmp_path / "l.png", encoding), [[VOID, 0, 1]])


def test_label_map_may_give_255_a_class(tmp_path):
    Image.fromarray(np.array([[0, 255]], np.uint8)).save(tmp_path / "l.png")
    np.testing.assert_array_equal(
        read_label(tmp_path / "l.png", LabelEncoding(2, {0: 0, 255: 1})), [[0, 1]]
    )


@given(
    st.dictionaries(st.integers(0, 255), st.sampled_from([0, 1, 2, VOID]), min_size=1),
    st.integers(0, 2**32),
)
def test_table_is_the_map(mapping, seed):
    values = np.random.default_rng(seed).choice(list(mapping), (4, 5)).astype(np.uint8)
    found = LabelEncoding(3, mapping).table.take(values)
    np.testing.assert_array_equal(found, np.vectorize(mapping.get)(values))


def test_values_outside_the_classes_are_named(tmp_path):
    Image.fromarray(np.array([[0, 7, 7]], np.uint8)).save(tmp_path / "bad.png")
    with pytest.raises(DataError, match=r"bad\.png: label values 7 .* 0 to 2 or 255.*label map"):
        read_label(tmp_path / "bad.png", LabelEncoding(3))
    mask, unknown = decode_values(raw_values(tmp_path / "bad.png"), LabelEncoding(3))
    assert unknown == {"7": 2}
    np.testing.assert_array_equal(mask, [[0, VOID, VOID]])


def test_colours_outside_the_palette_are_named(tmp_path):
    coloured(void=(1, 2, 3)).save(tmp_path / "bad.png")
    with pytest.raises(DataError, match="#010203"):
        read_label(tmp_path / "bad.png", LabelEncoding(3, colours=PALETTE))


@pytest.mark.parametrize("content", [b"", b"no image at all"])
def test_broken_files_name_themselves(tmp_path, content):
    (tmp_path / "broken.png").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.png"):
        read_label(tmp_path / "broken.png", LabelEncoding(3))
    with pytest.raises(DataError, match=r"gone\.png: No such file"):
        read_label(tmp_path / "gone.png", LabelEncoding(3))


def test_truncated_file_names_itself(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 3, (64, 64), np.uint8)).save(
        tmp_path / "whole.png"
    )
    data = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "half.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"half\.png"):
        read_label(tmp_path / "half.png", LabelEncoding(3))


@pytest.mark.parametrize(
    "arguments", [(0,), (256,), (3, {0: 3}), (3, {70000: 0}), (3, {0: -1})], ids=str
)
def test_impossible_codings_are_refused(arguments):
    with pytest.raises(UserError):
        LabelEncoding(*arguments)


def test_voc_colour_map():
    # The published colours of background, aeroplane, bicycle, person, tvmonitor and void.
    colours = colour_map(256)
    picks = [colours[i] for i in (0, 1, 2, 15, 20, 255)]
    expected = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (192, 128, 128), (0, 64, 128), (224, 224, 192)]
    assert picks == expected
    assert len(set(colours)) == 256
