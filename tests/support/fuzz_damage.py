"""Damage for tests/fuzz.py: bytes, texts, JSON values and image files that are not sound."""

from __future__ import annotations

import copy
import io
import random
import struct
from typing import Any

import numpy as np
from PIL import Image

HUGE = "9" * 400
TEXTS = ["", " ", ".", "..", "/", "~", "-", "²", "٣", "a\0b", "x" * 5000, "a/" * 2500, HUGE]
TEXTS += [
    "1e999",
    "nan",
    "-1",
    "0",
    "1",
    "null",
    "true",
    "[]",
    "{}",
    "*",
    "[",
    "%s",
    "$HOME",
    "a,b",
]
TEXTS += [
    "/dev/zero",
    "/dev/null",
    "/etc/hostname",
    "../../x",
    "\udcff\udcfe",
    "\n",
    "\t",
    "ä" * 130,
]
TEXTS += ["http://127.0.0.1:9/x", "user/model", "3:4", "1:void", "0:0,0:1", "0x10", "1_000", "inf"]
VALUES: list[Any] = [None, True, False, 0, 1, -1, 3, 255, 256, 65536, 2**31, 10**9, 10**30, 10**400]
VALUES += [
    0.5,
    -0.5,
    1e-300,
    1e300,
    float("inf"),
    float("nan"),
    [],
    {},
    [[]],
    [0],
    [None],
    {"a": 1},
]
VALUES += TEXTS
NUMBERS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 8_323_124]
KINDS = ("PNG", "JPEG", "TIFF", "GIF", "BMP", "PPM", "WEBP", "JPEG2000", "AVIF")
NOT_PROMISED = ("DDS", "PCX", "TGA", "ICO", "SGI", "EPS", "PDF", "QOI", "MSP", "IM")


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Changed, cut, lengthened or overwritten with numbers, mostly in its head."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        if not data:
            break
        place = rng.randrange(min(len(data), 300) if rng.random() < 0.6 else len(data))
        way = rng.randrange(7)
        if way == 0:
            data[place] = rng.randrange(256)
        elif way == 1:
            data[place] ^= 1 << rng.randrange(8)
        elif way == 2:
            form = rng.choice("<>") + rng.choice("HI")
            number = rng.choice(NUMBERS) & (0xFFFF if form[1] == "H" else 0xFFFFFFFF)
            new = struct.pack(form, number)
            data[place : place + len(new)] = new
        elif way == 3 and rng.random() < 0.5:
            del data[place:]
        elif way == 4:
            del data[place : place + rng.randrange(1, 9)]
        elif way == 5:
            other = rng.randrange(len(data))
            data[place:place] = data[other : other + rng.randrange(1, 64)]
        else:
            data[place : place + rng.randrange(1, 33)] = bytes(rng.randrange(1, 33))
    return bytes(data)


def damaged_value(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value with some of its parts replaced, left out or added."""
    found = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = _changed(rng, found)
    return found


def _changed(rng: random.Random, value: Any) -> Any:
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    if not keys or rng.random() < 0.03:
        return copy.deepcopy(rng.choice(VALUES))
    key = rng.choice(keys)
    way = rng.random()
    if way < 0.08:
        del value[key]
    elif way < 0.12 and isinstance(value, dict):
        value[rng.choice(TEXTS)] = rng.choice(VALUES)
    else:
        value[key] = _changed(rng, value[key])
    return value


def damaged_text(rng: random.Random, text: str) -> str:
    """Some words or lines replaced, doubled or left out."""
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(lines))
        words = lines[place].split(" ")
        way = rng.randrange(6)
        if way < 3:
            words[rng.randrange(len(words))] = rng.choice(TEXTS)
            lines[place] = " ".join(words)
        elif way == 3:
            lines.insert(place, rng.choice(lines))
        elif way == 4 and len(lines) > 1:
            del lines[place]
        else:
            lines[place] = rng.choice(
                ["[", "{", "&a [*a]", "? ", "---", "%", "!!python/none", "\t"]
            )
    return "\n".join(lines)


def image(rng: random.Random, kind: str | None = None) -> bytes:
    """A small picture in any mode of a kind of file, whole."""
    kind = kind or rng.choice(KINDS)
    size = rng.choice([(1, 1), (24, 32), (40, 17)])
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (*size, 3), np.uint8)
    picture = Image.fromarray(pixels)
    options: dict[str, Any] = {}
    if kind == "TIFF":
        picture = picture.convert(
            rng.choice(["RGB", "L", "1", "P", "RGBA", "CMYK", "F", "I", "LAB"])
        )
        known = [None, "tiff_lzw", "tiff_adobe_deflate", "packbits"]
        known += ["group3", "group4"] if picture.mode == "1" else []
        known += ["jpeg"] if picture.mode in ("RGB", "L") else []
        options["compression"] = rng.choice(known)
    elif kind == "PNG":
        picture = picture.convert(rng.choice(["RGB", "L", "1", "P", "RGBA", "LA", "I"]))
    elif kind == "JPEG":
        picture = picture.convert(rng.choice(["RGB", "L", "CMYK"]))
        options["progressive"] = rng.random() < 0.5
    elif kind == "GIF":
        options = {"save_all": True, "append_images": [picture.rotate(180)]}
    elif kind in ("MSP", "XBM"):
        picture = picture.convert("1")
    buffer = io.BytesIO()
    if kind == "QOI":
        return b"qoif" + struct.pack(">IIBB", 24, 32, 3, 0) + rng.randbytes(200)
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def odd_image(rng: random.Random) -> bytes:
    """Damaged mostly; sometimes whole, of another kind, or no picture at all."""
    way = rng.random()
    if way < 0.05:
        return image(rng)
    if way < 0.12:
        return damaged(rng, image(rng, rng.choice(NOT_PROMISED)))
    if way < 0.15:
        return rng.randbytes(rng.choice([0, 1, 10, 1000]))
    return damaged(rng, image(rng))
