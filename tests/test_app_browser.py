"""`hemnet app` in a real browser: upload, sliders, press, download, mistakes, phone, keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import hemnet
from support import app_server
from support.command_line import run
from support.special import SPECIAL
from support.tiny_data import head_of_a_png

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser
WAIT = 60_000  # milliseconds; a slow machine is no mistake
PHONE = {"width": 390, "height": 844}


def miss(reason: str) -> None:
    if SPECIAL["browser"].required:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    place = app_server.find_browser()
    if place is None:
        miss("no Chromium or Chrome on this machine: the page was not looked at")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        miss("playwright is not installed: the page was not looked at")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=place)
        yield found
        found.close()


@pytest.fixture(scope="module")
def desk(browser: Browser, server: app_server.Server) -> Iterator[tuple[Page, list[str]]]:
    """A page that stays open, and what the browser complains about."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda what: complaints.append(f"{what.url}: {what.failure}"))
    yield opened(page, server), complaints
    context.close()


@pytest.fixture
def page(desk: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page with the first sample and the model's own settings, as when it was opened."""
    found, complaints = desk
    if "scene 1" in status(found).inner_text():  # so that it can be seen to come back
        found.locator("[data-sample='1']").click()
        expect_text(status(found), "scene 2: 160×128 pixels")
    found.locator("[data-sample='0']").click()
    expect_text(status(found), "scene 1: 160×128 pixels")
    waits(found, "() => document.querySelectorAll('#maps figure').length == 8")
    yield found
    assert not [text for text in complaints if "ERR_ABORTED" not in text]


def opened(page: Page, server: app_server.Server) -> Page:
    page.set_default_timeout(WAIT)
    page.goto(server.url)
    page.locator(".stage .photo").wait_for()
    page.locator("#maps figure").first.wait_for()
    return page


def give(page: Page, path: Path) -> None:
    page.locator("#upload input[type=file]").set_input_files(path)


def status(page: Page) -> Locator:
    return page.locator("#status")


def waits(page: Page, script: str, argument: object = None) -> None:
    page.wait_for_function(script, arg=argument)


def expect_text(place: Locator, pattern: str) -> str:
    """Waits until a place shows a text."""
    place.filter(has_text=re.compile(pattern, re.IGNORECASE)).first.wait_for()
    return place.inner_text()


def turn(page: Page, name: str, value: float) -> None:
    """A slider, by its number field."""
    field = page.locator(f"#{name} input[type=number]")
    field.fill(str(value))
    field.press("Enter")


def picture(path: Path, width: int, height: int, seed: int = 0) -> Path:
    cells = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC).save(path)
    return path


def maps(page: Page) -> list[str]:
    return page.locator("#maps img").evaluate_all("all => all.map(one => one.src)")


def test_shows_an_image_at_once_and_asks_no_one_else(
    browser: Browser, server: app_server.Server
) -> None:
    page = browser.new_context().new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    opened(page, server)
    page.wait_for_timeout(500)
    others = [url for url in asked if not url.startswith((server.url, "data:", "blob:"))]
    assert not others
    assert {url.removeprefix(server.url) for url in asked if url.startswith(server.url)} == {
        *("/", "/page.js", "/style.css", "/sample")
    }
    assert "hemnet on test_resnet" in page.locator("#header").inner_text()
    assert "scene 1: 160×128 pixels" in status(page).inner_text()
    assert page.locator("#legend li").count() > 1
    assert page.locator("#maps figure").count() == 2 + 6
    assert page.locator("#chart circle").count() == 4  # before the first iteration, and three
    page.context.close()


def test_upload_again_and_again(page: Page, tmp_path: Path) -> None:
    give(page, picture(tmp_path / "first.png", 96, 64))
    expect_text(status(page), r"first\.png: 96×64 pixels")
    ratio = page.locator(".stage").evaluate("e => e.clientWidth / e.clientHeight")
    assert ratio == pytest.approx(96 / 64, rel=0.02)
    give(page, picture(tmp_path / "second.jpg", 64, 80))
    expect_text(status(page), r"second\.jpg: 64×80 pixels")


def test_a_file_can_be_dropped(page: Page, tmp_path: Path) -> None:
    content = list(picture(tmp_path / "x.png", 70, 50).read_bytes())
    carried = page.evaluate_handle(
        """bytes => { const t = new DataTransfer();
        t.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
        return t; }""",
        content,
    )
    page.locator("#upload button").first.dispatch_event("drop", {"dataTransfer": carried})
    expect_text(status(page), r"dropped\.png: 70×50 pixels")


def test_opacity_without_the_server(page: Page) -> None:
    tint = page.locator(".stage .tint")
    assert float(tint.evaluate("e => getComputedStyle(e).opacity")) == pytest.approx(0.6)
    turn(page, "opacity", 0.25)
    waits(page, "() => getComputedStyle(document.querySelector('.tint')).opacity == 0.25")


def test_sliders_solve_em_again(page: Page) -> None:
    before = maps(page)
    turn(page, "iterations", 8)
    waits(page, "() => document.querySelectorAll('#chart circle').length == 9")
    expect_text(page.locator("#chart"), "the model's own: η 0.5, 3 iterations")
    assert page.locator("#shown input[type=range]").get_attribute("max") == "8"
    slider = page.locator("#shown input[type=range]")
    slider.focus()
    slider.press("ArrowLeft")  # from the third to the second iteration
    expect_text(page.locator("#chart"), "shown: 2")
    earlier = maps(page)
    assert earlier[0] == before[0]  # the features are what they are
    assert earlier[1:] != before[1:]
    turn(page, "step", 0.1)
    expect_text(page.locator("#chart"), "η 0.1, 8 iterations")
    page.locator("#reset").click()
    waits(page, "() => document.querySelectorAll('#chart circle').length == 4")
    expect_text(page.locator("#chart"), "shown: 3")
    assert maps(page) == before


def test_bases_can_be_chosen(page: Page) -> None:
    chosen = page.locator("#bases .token")
    names = page.locator("#maps figcaption b").all_inner_texts()
    assert len(names) == 8
    chosen.first.locator(".token-remove").click()
    waits(page, "() => document.querySelectorAll('#maps figure').length == 7")
    assert page.locator("#maps figcaption b").all_inner_texts() == names[:2] + names[3:]
    removed = names[2].removeprefix("basis ")
    page.get_by_label("Basis to add").select_option(removed)
    page.locator("#bases .more").click()
    waits(page, "name => document.querySelectorAll('#maps b')[7]?.innerText == name", names[2])
    page.locator("#bases .clear").click()
    expect_text(page.locator("#maps"), "Choose bases")
    assert chosen.count() == 0


def test_press_a_pixel_and_the_same_by_keyboard(page: Page) -> None:
    stage = page.locator(".stage")
    size = stage.bounding_box()
    stage.click(position={"x": size["width"] * 0.25, "y": size["height"] * 0.5})
    text = expect_text(page.locator("#bars"), r"Pixel \((39|40|41), (63|64|65)\)")
    assert "basis" in text
    x, y = (page.get_by_label(name, exact=True) for name in "xy")
    assert x.input_value() in ("39", "40", "41")
    mark = stage.locator(".cross")
    assert mark.is_visible()
    assert page.locator("#maps .cross").first.is_visible()
    x.fill("5")
    y.fill("7")
    y.press("Enter")
    expect_text(page.locator("#bars"), r"Pixel \(5, 7\)")
    left = mark.evaluate("e => e.offsetLeft / e.parentElement.clientWidth")
    assert left == pytest.approx(5.5 / 160, abs=0.02)
    page.locator("#adopt").click()
    first = page.locator("#bars .name").first.inner_text()
    waits(page, "name => document.querySelectorAll('#maps b')[2]?.innerText == name", first)


def test_mistakes_are_said_and_forgotten(page: Page, tmp_path: Path) -> None:
    photo = page.locator(".stage .photo").get_attribute("src")
    text = tmp_path / "text.png"
    text.write_text("no picture at all")
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(head_of_a_png(60_000, 60_000))
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(picture(tmp_path / "whole.jpg", 90, 70).read_bytes()[:600])
    for path, words in (
        (text, r"text\.png: not an image"),
        (bomb, r"60000×60000 pixels: the limit is 50 megapixels"),
        (cut, r"Cannot read the image cut\.jpg"),
    ):
        give(page, path)
        expect_text(page.locator("#status [role=alert]"), words)
        assert page.locator(".stage .photo").get_attribute("src") == photo  # as it was
    page.get_by_label("x", exact=True).fill("5000")
    page.get_by_label("y", exact=True).fill("3")
    page.locator("#explain").click()
    expect_text(page.locator("#bars [role=alert]"), "outside the image: x goes from 0 to 159")
    page.get_by_label("x", exact=True).fill("")
    page.locator("#explain").click()
    expect_text(page.locator("#bars [role=alert]"), "give both x and y")
    give(page, picture(tmp_path / "good.png", 60, 60))
    expect_text(status(page), r"good\.png: 60×60 pixels")
    assert not page.locator("[role=alert]:visible").count()


def test_files_that_are_too_large_or_no_images(page: Page, tmp_path: Path) -> None:
    large = tmp_path / "large.bmp"
    Image.new("RGB", (600, 400)).save(large)  # 0.7 MB; the server was started with 0.5
    give(page, large)
    expect_text(page.locator("#status [role=alert]"), r"file size exceeds the limit of 0\.5 MB")
    script = tmp_path / "script.py"
    script.write_text("print()")
    give(page, script)
    expect_text(page.locator("#status [role=alert]"), r"script\.py: not an image")


def test_the_class_map_is_the_one_predict_writes(
    page: Page, server: app_server.Server, tmp_path: Path
) -> None:
    path = picture(tmp_path / "sky.png", 96, 64, seed=3)
    give(page, path)
    expect_text(status(page), r"sky\.png: 96×64 pixels")
    with page.expect_download() as waiting:
        page.locator("#download").click()
    found = waiting.value
    assert found.suggested_filename == "sky_classes.png"
    assert run("predict", str(server.model), str(path), "--out", str(tmp_path / "out")) == 0
    content = Path(found.path()).read_bytes()
    assert content == (tmp_path / "out/classes/sky.png").read_bytes()
    with Image.open(found.path()) as image:
        expected = hemnet.from_pretrained(server.model).predict(path)
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), expected)


def test_two_users_do_not_mix(browser: Browser, server: app_server.Server, tmp_path: Path) -> None:
    pages = [opened(browser.new_context().new_page(), server) for _ in range(2)]
    sizes = [(96, 64), (64, 112)]
    for page, (w, h) in zip(pages, sizes, strict=True):  # at the same time, without waiting
        give(page, picture(tmp_path / f"of{w}.png", w, h, seed=w))
    for page, (w, h) in zip(pages, sizes, strict=True):
        expect_text(status(page), rf"of{w}\.png: {w}×{h} pixels")
    for page, count in zip(pages, (5, 12), strict=True):
        turn(page, "iterations", count)
    for page, count in zip(pages, (5, 12), strict=True):
        waits(page, "n => document.querySelectorAll('#chart circle').length == n + 1", count)
    assert maps(pages[0]) != maps(pages[1])
    for page, (w, h) in zip(pages, sizes, strict=True):
        page.get_by_label("x", exact=True).fill(str(w - 1))
        page.get_by_label("y", exact=True).fill(str(h - 1))
        page.locator("#explain").click()
        expect_text(page.locator("#bars"), rf"Pixel \({w - 1}, {h - 1}\)")
        with page.expect_download() as waiting:
            page.locator("#download").click()
        with Image.open(waiting.value.path()) as image:
            assert image.size == (w, h)
        page.context.close()


def test_phone(browser: Browser, server: app_server.Server) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = opened(context.new_page(), server)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for name in ("#upload", ".stage", "#opacity", "#download", "#explain", "#maps", "#chart svg"):
        box = page.locator(name).first.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
    assert page.locator(".stage").bounding_box()["width"] > 0.8 * PHONE["width"]
    small = page.evaluate(
        """() => [...document.querySelectorAll('main *')]
        .filter(e => e.checkVisibility() && !e.closest('svg')
          && [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()))
        .filter(e => parseFloat(getComputedStyle(e).fontSize) < 11.5).map(e => e.outerHTML)"""
    )
    assert small == []
    page.locator(".stage").tap()
    expect_text(page.locator("#bars"), r"Pixel \(\d+, \d+\)")
    context.close()


def test_keyboard_alone(page: Page) -> None:
    """Every control is reached by Tab, in the order of the page, and works."""
    page.locator("#upload button").first.focus()
    seen: list[str] = []
    for _ in range(60):
        place = page.evaluate(
            """() => { const e = document.activeElement;
            return e.dataset.sample ?? e.closest('#upload, #opacity, #download, #explain, #shown,'
              + '#iterations, #step, #reset, #bases')?.id ?? e.ariaLabel ?? ''; }"""
        )
        if place and (not seen or seen[-1] != place):
            seen.append(place)
        if place == "bases":
            break
        page.keyboard.press("Tab")
    wanted = ["upload", "0", "5", "opacity", "download", "explain", "shown", "step", "bases"]
    places = [seen.index(name) for name in wanted]
    assert places == sorted(places)
    page.locator("[data-sample='2']").focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("Enter")
    expect_text(status(page), "scene 3: 160×128 pixels")


def test_text_stands_out(page: Page, browser: Browser, server: app_server.Server) -> None:
    """Contrast of at least 4.5 : 1, as WCAG asks for, in the light and in the dark."""
    dark = opened(browser.new_context(color_scheme="dark").new_page(), server)
    backs = [p.evaluate("getComputedStyle(document.body).backgroundColor") for p in (page, dark)]
    assert [sum(map(int, re.findall(r"\d+", back))) > 380 for back in backs] == [True, False]
    for one in (page, dark):
        one.locator(".stage").click()
        one.locator("#bars .bars").wait_for()
        assert weak_texts(one) == []
    dark.context.close()


def weak_texts(page: Page) -> list[list[object]]:
    """Contrast and first words of texts that hardly differ from what is behind them."""
    weak: list[list[object]] = page.evaluate(
        """() => {
        const numbers = text => text.match(/[\\d.]+/g).map(Number);
        const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92
          : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
        const behind = e => { for (; e; e = e.parentElement) {
          const c = numbers(getComputedStyle(e).backgroundColor);
          if (c.length == 3 || c[3] > .99) return c.slice(0, 3); } return [255, 255, 255]; };
        return [...document.querySelectorAll('main p, main li, main h1, main h2, main h3, main b,'
          + 'main label span, main figcaption, main button')]
        .filter(e => e.checkVisibility() && e.innerText?.trim() && !e.disabled)
        .map(e => { const a = light(numbers(getComputedStyle(e).color).slice(0, 3));
          const b = light(behind(e));
          return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.innerText.slice(0, 40)]; })
        .filter(([ratio]) => ratio < 4.5); }"""
    )
    return weak


@pytest.mark.parametrize("validations", [1, 2, 50])
@pytest.mark.parametrize("width", [390, 1280])
def test_reports_of_short_and_long_runs(
    browser: Browser, tmp_path: Path, validations: int, width: int
) -> None:
    """Letters of one size, pictures large enough to be looked at, nothing beside the page."""
    from hemnet.report import write_report
    from support.report_runs import SCENES, make_run

    folder = make_run(tmp_path / "run", metrics=False)
    health = {"ratio": 3.0, "spread": 0.5, "entropy": 1.0, "in_use": 0.75}
    iou = dict.fromkeys(SCENES.info.classes, 5.0)
    lines: list[dict[str, object]] = []
    for step in range(1, 2 * validations + 1):
        lines.append({"kind": "train", "step": step, "loss": 2.0 / step, "health": health})
        if step % 2 == 0:
            scores = {"miou": 9.0, "iou": iou, "pixel_accuracy": 50.0}
            lines.append({"kind": "validation", "step": step, **scores})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(write_report(folder, SCENES).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    letters = page.evaluate(
        "[...document.querySelectorAll('.chart text')].map(t => t.getBoundingClientRect().height)"
    )
    assert letters
    assert min(letters) > 8
    assert max(letters) < 24
    panels = page.evaluate(
        "[...document.querySelectorAll('.panels img')].map(p => p.getBoundingClientRect().width)"
    )
    assert min(panels) > 140
    page.close()
