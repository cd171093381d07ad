"""The explorer's HTTP interface without a socket: what it answers, refuses and survives."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from PIL import Image

from support.asgi import (
    FILE,
    HOME,
    IMAGE_TYPE,
    JSON_TYPE,
    KEY,
    VIEW,
    Answer,
    ask,
    png,
    post,
    send,
    upload,
)

pytest.importorskip("starlette")

import hemnet.app.routes as routes
from hemnet.app.answers import MOST_SHOWN, Answers
from hemnet.app.guard import Guard, host_name, is_loopback
from hemnet.app.limits import Limits
from hemnet.app.routes import SMALL, make_app
from hemnet.errors import UserError
from support.explorers import answers, explorer
from support.tiny_data import head_of_a_png


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    found = answers(tmp_path_factory.mktemp("app"))
    found.limits = Limits(bytes=100_000, pixels=1_000_000, side=100)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(here: Answers) -> Iterator[None]:
    yield
    assert not list(here.folder.iterdir())


# What it answers


def test_an_image_and_its_view_and_class_map(here: Answers) -> None:
    found = upload(here, png(), "mine & yours.png")
    assert found.status == 200
    assert found.json["size"] == [32, 24]
    assert "mine &amp; yours.png: 32×24 pixels" in found.json["status"]
    view = post(here, "/view", VIEW | {"iterations": 5, "step_size": 0.2, "bases": [2, 1]})
    assert (view.json["iterations"], view.json["bases"]) == (5, [2, 1])
    assert "Pixel (1, 2)" in view.json["bars"]
    classes = ask(here, "GET", f"/class-map?session={KEY}")
    assert classes.headers["content-disposition"] == 'attachment; filename="mine_yours_classes.png"'
    with Image.open(io.BytesIO(classes.body)) as image:
        assert image.size == (32, 24)
    assert post(here, "/leave", {"session": KEY}).status == 204
    assert "Choose an image again" in post(here, "/view", VIEW).error
    assert "Choose an image again" in ask(here, "GET", f"/class-map?session={KEY}").error


def test_the_page_and_its_files(here: Answers) -> None:
    page = ask(here, "GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert b"$" not in page.body
    for name, kind in (("page.js", "text/javascript"), ("style.css", "text/css")):
        file = ask(here, "GET", f"/{name}")
        assert file.status == 200
        assert file.headers["content-type"].startswith(kind)
    assert ask(here, "HEAD", "/").status == 200


def test_a_model_without_em_has_a_page_that_says_so(tmp_path: Path) -> None:
    these = answers(tmp_path, "fcn")
    page = ask(these, "GET", "/").body.decode()
    assert '<section id="em-part" hidden>' in page
    assert "has no EM unit" in page
    look = post(these, "/sample", {"session": KEY, "sample": 0}).json
    assert "data:image/" in look["stage"]
    assert look["view"]["maps"] == look["view"]["chart"] == ""


def test_names_from_a_model_cannot_write_html(tmp_path: Path) -> None:
    these = Answers(explorer(), Limits(), tmp_path)
    config = replace(these.explorer.model.config, backbone='"><script>alert(1)</script>')
    these.explorer.model.config = config
    assert "<script>alert" not in ask(these, "GET", "/").body.decode()
    assert "<b>road" not in post(these, "/sample", {"session": KEY, "sample": 0}).body.decode()


# Files on the server cannot be named


@pytest.mark.parametrize("field", ["bases", "x", "iterations", "step_size", "shown", "session"])
@pytest.mark.parametrize("path", ["/etc/hostname", "/dev/zero", "http://127.0.0.1:1/x.png"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_reference_to_a_file_is_refused(
    here: Answers, field: str, path: str, wrapped: bool
) -> None:
    upload(here, png())
    reference = FILE | {"path": path}
    answer = post(here, "/view", VIEW | {field: [reference] if wrapped else reference})
    assert answer.status == 400
    assert answer.error.startswith(f"{field}: expected")


@pytest.mark.parametrize("path", ["/etc/hostname", "/dev/zero", "../../secret.txt", "a\0b", "..."])
def test_the_name_of_an_upload_is_only_displayed(here: Answers, path: str) -> None:
    assert upload(here, png(), path).status == 200
    assert upload(here, b"not an image", path).status == 422
    assert post(here, "/image", FILE | {"path": path}).status in (400, 415)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/gradio_api/queue/join",
            "/gradio_api/upload",
            "/gradio_api/file=/etc/passwd",
            "/config",
        ),
        *(
            "/file=/etc/passwd",
            "/../../etc/passwd",
            "//etc/passwd",
            "/page.js/../page.py",
            "/page.py",
        ),
        *(
            "/page.html",
            "/docs",
            "/openapi.json",
            "/page.js/",
            "/image/",
            "",
            "/\0",
            "/view\n",
            "/page.js\n",
        ),
    ],
)
def test_nothing_else_is_there(here: Answers, path: str) -> None:
    for method in ("GET", "POST"):
        assert ask(here, method, path).status == 404
        assert ask(here, method, path).error


# Who may ask


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("[::1].evil.com", "[::1]evil.com", "[::1]:80.evil.com", "[::1", "::1", "[]", "[::1%lo]"),
        *("", " ", "127.0.0.1:", "127.0.0.1:80:80", "127.0.0.1:999999", "127.0.0.1:x", "127.1"),
        *("user@127.0.0.1", "127.0.0.1@evil.com", "127.0.0.1/evil", "127.0.0.1#", "0.0.0.0"),
        *("[::2]", "[1:2]", "10.0.0.1", "2130706433", "localhost,evil.com", "127.0.0.1\\evil"),
        *("ⅼocalhost", "localhost\x00", "localhost:80 "),
    ],
)
def test_foreign_and_malformed_hosts_are_refused(here: Answers, host: str) -> None:
    headers = [(b"host", host.encode())]
    answer = ask(here, "GET", "/", headers=headers)
    assert answer.status in (400, 403)
    assert answer.error.startswith("host: ")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7860", "127.0.0.1:1", "[::1]", "[::1]:9"])
def test_its_own_hosts_are_answered(here: Answers, host: str) -> None:
    assert ask(here, "GET", "/", headers=[(b"host", host.encode())]).status == 200


def test_open_to_others_it_still_wants_a_sound_host(here: Answers) -> None:
    app = make_app(here, loopback=False)
    for host in (b"[::1].evil.com", b"", b"a b", b"a@b", b"[", b"x" * 300):
        assert asyncio.run(send(app, "GET", "/page.js", headers=[(b"host", host)])).status == 400
    for host in (b"server.lan:7860", b"192.168.1.7", b"[fe80::1]:80"):
        assert asyncio.run(send(app, "GET", "/page.js", headers=[(b"host", host)])).status == 200


@pytest.mark.parametrize(
    "header",
    [
        (b"origin", b"https://evil.example"),
        (b"origin", b"null"),
        (b"origin", b"http://127.0.0.1:1"),  # another program of this computer
        (b"origin", b"http://[::1"),
        (b"origin", b"http://127.0.0.1:7860@evil.example"),
        (b"origin", b"file://127.0.0.1:7860"),
        (b"origin", b""),
        (b"sec-fetch-site", b"cross-site"),
        (b"sec-fetch-site", b"same-site"),
        (b"sec-fetch-site", b"nonsense"),
    ],
)
def test_other_sites_may_only_link_to_the_page(here: Answers, header: tuple[bytes, bytes]) -> None:
    path = f"/image?session={KEY}&name=x.png"
    refused = [
        ask(here, "POST", path, [png()], headers=(HOME, IMAGE_TYPE, header)),
        post(here, "/sample", {"session": KEY, "sample": 0}, header),
        post(here, "/view", VIEW, header),
        post(here, "/leave", {"session": KEY}, header),
        ask(here, "GET", f"/class-map?session={KEY}", headers=(HOME, header)),
        ask(here, "GET", "/page.js", headers=(HOME, header)),
    ]
    for answer in refused:
        assert answer.status == 403
        assert "another site" in answer.error
        assert "access-control-allow-origin" not in answer.headers
    assert ask(here, "GET", "/", headers=(HOME, header)).status == 200


def test_its_own_page_may_ask(here: Answers) -> None:
    own = ((b"origin", b"http://127.0.0.1:7860"), (b"sec-fetch-site", b"same-origin"))
    assert post(here, "/sample", {"session": KEY, "sample": 0}, *own).status == 200


def test_headers_that_appear_twice(here: Answers) -> None:
    for header in (HOME, (b"host", b"evil.example"), JSON_TYPE):
        answer = post(here, "/view", VIEW, header)
        assert answer.status == 400
        assert "appears twice" in answer.error


def test_in_a_space(here: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face shows it inside its own page, under a name that it tells."""
    monkeypatch.setenv("SPACE_HOST", "me-explorer.hf.space")
    app = make_app(here, loopback=False)
    host, inner = (b"host", b"me-explorer.hf.space"), (b"host", b"10.1.2.3:7860")
    own, foreign = (
        (b"origin", b"https://me-explorer.hf.space"),
        (b"origin", b"https://you.hf.space"),
    )
    framed = asyncio.run(send(app, "GET", "/", headers=[host, (b"sec-fetch-site", b"cross-site")]))
    assert framed.status == 200
    assert (
        "frame-ancestors 'self' https://huggingface.co" in framed.headers["content-security-policy"]
    )
    body = [json.dumps({"session": KEY, "sample": 0}).encode()]

    def status(*headers: tuple[bytes, bytes]) -> int:
        return asyncio.run(send(app, "POST", "/sample", body, (JSON_TYPE, *headers))).status

    assert [status(host, own), status(inner, own)] == [200, 200]
    assert [status(host, foreign), status(inner, foreign)] == [403, 403]


def test_addresses_of_this_computer() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "192.168.1.7", "::", "localhost.evil.example", "", "127.0.0.1 "):
        assert not is_loopback(host)
    assert host_name("[0:0::1]:80") == "::1"
    assert host_name("[::1].evil.com") is None


def test_websockets_and_methods_are_refused(here: Answers) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "x"):
        assert ask(here, method, "/").status == 405
    assert ask(here, "POST", "/").status == 405
    assert ask(here, "GET", "/view").error
    sent: list[dict[str, Any]] = []

    async def keep(message: dict[str, Any]) -> None:
        sent.append(message)

    guard: Any = Guard(None, True)  # type: ignore[arg-type]
    asyncio.run(guard({"type": "websocket", "headers": []}, None, keep))
    assert sent == [{"type": "websocket.close", "code": 1008}]


# How much may be sent


@pytest.mark.parametrize("announced", [True, False])
def test_bodies_end_at_the_limit(here: Answers, announced: bool) -> None:
    def status(path: str, size: int, kind: tuple[bytes, bytes]) -> int:
        pieces = [bytes(size // 2), bytes(size - size // 2)]
        length = [(b"content-length", str(size).encode())] if announced else []
        return ask(here, "POST", path, pieces, headers=[HOME, kind, *length]).status

    most = here.limits.bytes
    image = f"/image?session={KEY}&name=x.png"
    assert status(image, most, IMAGE_TYPE) == 422  # no image, and not too large
    assert status(image, most + 1, IMAGE_TYPE) == 413
    for path in ("/view", "/sample", "/leave"):
        assert status(path, SMALL, JSON_TYPE) == 400
        assert status(path, SMALL + 1, JSON_TYPE) == 413


@pytest.mark.parametrize("length", [b"-5", b"abc", b"1e3", b"", b"+1", b"1 2", b"\xb2"])
def test_lengths_that_are_no_numbers(here: Answers, length: bytes) -> None:
    assert "content-length" in post(here, "/view", VIEW, (b"content-length", length)).error
    assert post(here, "/view", VIEW, (b"content-length", b"9" * 5000)).status == 413


def test_bombs_are_refused(here: Answers) -> None:
    answer = upload(here, head_of_a_png(60_000, 60_000), "bomb.png")
    assert (answer.status, "60000×60000 pixels" in answer.error) == (422, True)


def test_a_client_that_leaves_or_lingers(here: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a request, then nothing: the connection ends, or stays silent."""
    monkeypatch.setattr(routes, "PATIENCE", 0.05)

    def status(receive: Callable[[], Any]) -> int:
        messages: list[dict[str, Any]] = []

        async def keep(message: dict[str, Any]) -> None:
            messages.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/view", "query_string": b"",
            "headers": [HOME, JSON_TYPE],
        }  # fmt: skip
        asyncio.run(make_app(here)(scope, receive, keep))  # type: ignore[arg-type]
        return Answer(messages).status

    async def leaves() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def lingers() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    assert (status(leaves), status(lingers)) == (400, 408)


def test_a_queue_that_is_full(here: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_WAITING", 3)
    app, body = make_app(here), json.dumps({"session": KEY, "sample": 0}).encode()

    async def all_at_once() -> list[int]:
        several = [send(app, "POST", "/sample", [body], (HOME, JSON_TYPE)) for _ in range(5)]
        return [answer.status for answer in await asyncio.gather(*several)]

    assert sorted(asyncio.run(all_at_once())) == [200, 200, 200, 503, 503]


def test_a_full_disk_is_said(here: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/secret/place")

    monkeypatch.setattr(Path, "write_bytes", full)
    answer = upload(here, png())
    assert answer.status == 503
    assert answer.json == {"error": "the server's disk: No space left on device"}


# Malformed requests


@pytest.mark.parametrize("kind", [
    b"multipart/form-data; boundary=" + b"x" * 5000, b"text/plain", b"", b"application/json5",
    b"application/x-www-form-urlencoded", b"multipart/form-data", b"\xff\xfe", b"application/json/",
])  # fmt: skip
def test_other_types_are_not_read(here: Answers, kind: bytes) -> None:
    for path in (f"/image?session={KEY}&name=x", "/view", "/sample", "/leave"):
        answer = ask(here, "POST", path, [b"--x\r\n"], headers=(HOME, (b"content-type", kind)))
        assert answer.status == 415
        assert answer.error.startswith("content-type: expected")


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"null",
            b"5",
            b'"x"',
            b"\xff\xfe",
            b"{}",
            b"[" * 15_000,
            b"\xef\xbb\xbf{}",
        ),
        *(b'{"session": "' + KEY.encode() + b'"}', b'{"a":' * 3000 + b"1" + b"}" * 3000),
        *(json.dumps(VIEW | {"more": 1}).encode(), json.dumps([VIEW]).encode()),
        *(json.dumps(VIEW).replace("1", "NaN").encode(), json.dumps(VIEW).encode("utf-16")),
        *(json.dumps(VIEW).replace("null", "9" * 5000, 1).encode(),),
    ],
)
def test_bodies_that_make_no_sense(here: Answers, body: bytes) -> None:
    for path in ("/view", "/sample"):
        answer = post(here, path, body)
        assert answer.status == 400
        assert "JSON" in answer.error


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("session", [None, 5, "", "x", KEY[:-1], KEY + "0", KEY.upper() + "G", [KEY], "../" * 8]),
        ("iterations", ["3", 3.5, True, [], {}, 10**10, "NaN"]),
        ("step_size", ["0.5", 0, -1, 1.5, True, [], {}, 1e308]),
        ("shown", ["1", 1.5, False, [], {}]),
        ("bases", [None, 1, "1", {}, ["1"], [None], [1.5], [True], [[1]], [1] * (MOST_SHOWN + 1)]),
        ("x", ["1", 1.5, True, [], {}]),
        ("y", ["1", 0.5, True, [], {}]),
    ],
)
def test_wrong_types_are_named(here: Answers, field: str, values: list[Any]) -> None:
    upload(here, png())
    for value in values:
        answer = post(here, "/view", VIEW | {field: value})
        assert answer.status == 400
        assert answer.error.startswith(f"{field}: expected")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, "expected a number"),
        ({"iterations": 1_000_000_000}, "expected a number"),
        ({"bases": [6]}, "bases 1 to 5"),
        ({"bases": [0]}, "bases 1 to 5"),
        ({"x": 32}, "outside the image"),
        ({"y": -1}, "outside the image"),
        ({"x": None}, "give both x and y"),
    ],
)
def test_values_that_make_no_sense(here: Answers, change: dict[str, Any], message: str) -> None:
    upload(here, png())
    answer = post(here, "/view", VIEW | change)
    assert answer.status == 422
    assert message in answer.error


@pytest.mark.parametrize("sample", [-1, 6, "0", None, 1.5, True, [0], {}, FILE])
def test_samples_that_do_not_exist(here: Answers, sample: Any) -> None:
    assert post(here, "/sample", {"session": KEY, "sample": sample}).error


@pytest.mark.parametrize(
    "query",
    [
        *("", "session=", f"session={KEY}", f"name=x&session={KEY[1:]}", "%%%=%zz&&&=", "=" * 999),
        *(f"session={KEY}&name=" + "x" * 1001, "session=\xff&name=\x80"),
    ],
)
def test_queries_that_make_no_sense(here: Answers, query: str) -> None:
    answer = ask(here, "POST", f"/image?{query}", [png()], headers=(HOME, IMAGE_TYPE))
    assert answer.status == 400
    assert answer.error


# Thousands of requests, each wrong in its own way


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    choices: list[Callable[[], Any]] = [
        lambda: rng.choice([None, True, False, "", "NaN", 0, -1, 1, 0.5, 1e308, -0.0, 2**63, KEY]),
        lambda: rng.randrange(-20, 200),
        lambda: "".join(chr(rng.randrange(1, 0x10FFFF)) for _ in range(rng.randrange(6))),
        lambda: rng.choice([FILE, [FILE], {"url": "http://127.0.0.1/"}, "/dev/zero", "../x"]),
    ]
    if depth < 3:
        choices += [
            lambda: [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))],
            lambda: {f"k{i}": odd_value(rng, depth + 1) for i in range(rng.randrange(3))},
        ]
    return rng.choice(choices)()


def odd_body(rng: random.Random, path: str) -> bytes:
    fields: dict[str, Any] = VIEW if path == "/view" else {"session": KEY, "sample": 0}
    if path == "/leave":
        fields = {"session": "f" * 32}
    changed = dict(fields)
    for name in rng.sample(list(fields), rng.randrange(len(fields) + 1)):
        changed[name] = odd_value(rng)
    if rng.random() < 0.1:
        changed[rng.choice(["", "path", "__proto__", "\ud800"])] = odd_value(rng)
    body = json.dumps(changed).encode()
    if path == "/image":
        body = png(rng.randrange(1, 9), rng.randrange(1, 9))
    if rng.random() < 0.3:  # damage
        damaged = bytearray(body)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        body = bytes(damaged[: rng.choice([None, None, rng.randrange(len(damaged) + 1)])])
    return body


def odd_headers(rng: random.Random, path: str) -> list[tuple[bytes, bytes]]:
    headers = [HOME, IMAGE_TYPE if path == "/image" else JSON_TYPE]
    odd = [
        (b"host", b"[::1].evil.com"), (b"origin", b"http://evil.example"), (b"origin", b"//[["),
        (b"sec-fetch-site", b"cross-site"), (b"content-length", b"-1"), (b"cookie", b"\xff" * 99),
        (b"content-type", b"multipart/form-data; boundary=" + b"-" * 5000), (b"range", b"bytes=-"),
        (b"content-encoding", b"gzip"), (b"x-forwarded-host", b"evil"), (b"expect", b"x"),
    ]  # fmt: skip
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        headers[rng.randrange(len(headers))] = rng.choice(odd)
        headers.append(rng.choice(odd))
    return headers


def odd_query(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return urlencode(
            {"session": KEY, "name": rng.choice(["x.png", "/dev/zero", "é\n", "a" * 999])}
        )
    return "".join(chr(rng.randrange(33, 256)) for _ in range(rng.randrange(60))).replace("#", "")


def test_thousands_of_odd_requests(
    here: Answers, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(20)
    app = make_app(here)
    paths = ["/view", "/sample", "/image", "/leave", "/class-map", "/", "/page.js", "/nothing"]
    counts: dict[int, int] = {}

    async def ask_all() -> None:
        for _ in range(4000):
            path = rng.choices(paths, [8, 2, 4, 1, 1, 1, 1, 1])[0]
            method = rng.choices(["POST", "GET", "HEAD", "PUT"], [20, 3, 1, 1])[0]
            body, headers = odd_body(rng, path), odd_headers(rng, path)
            cut = rng.randrange(len(body) + 1)
            place = f"{path}?{odd_query(rng)}"
            work = send(app, method, place, [body[:cut], body[cut:]], headers)
            answer = await asyncio.wait_for(work, 20)
            counts[answer.status] = counts.get(answer.status, 0) + 1
            if answer.status >= 400:
                assert answer.error
            assert b"/etc/hostname" not in answer.body

    asyncio.run(ask_all())
    assert max(counts) < 500
    for status in (200, 204, 400, 403, 404, 405, 415, 422):  # every kind was met
        assert counts.get(status, 0) > 5, counts
    assert not caplog.records
    assert "".join(capfd.readouterr()) == ""
    assert upload(here, png()).status == 200  # and it still works


def test_user_errors_are_refusals(here: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise UserError("this is said.")

    monkeypatch.setattr(here, "sample", fail)
    answer = post(here, "/sample", {"session": KEY, "sample": 0})
    assert (answer.status, answer.error) == (422, "this is said.")


def test_step_sizes_of_each_iteration_can_be_kept(here: Answers, tmp_path: Path) -> None:
    one = ask(here, "GET", "/").body.decode()
    assert re.search(r'id="keep" class="tick" hidden><input type="checkbox">', one)
    these = answers(tmp_path, step_size=[0.9, 0.4, 0.2])
    several = ask(these, "GET", "/").body.decode()
    assert re.search(r'id="keep" class="tick"><input type="checkbox" checked>', several)
    assert "own step sizes: 0.9, 0.4, 0.2" in several
