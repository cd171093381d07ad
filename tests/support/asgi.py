"""Requests to the explorer without a socket."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from PIL import Image

from hemnet.app.answers import Answers
from hemnet.app.routes import make_app

KEY = "0123456789abcdef" * 2
HOME = (b"host", b"127.0.0.1:7860")
JSON_TYPE = (b"content-type", b"application/json")
IMAGE_TYPE = (b"content-type", b"application/octet-stream")
FILE = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}
VIEW: dict[str, Any] = {
    "session": KEY, "iterations": None, "step_size": None, "shown": None, "bases": [1], "x": 1,
    "y": 2,
}  # fmt: skip
Headers = Sequence[tuple[bytes, bytes]]


class Answer:
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.status: int = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of a refusal, which is one line of text and nothing else."""
        assert 400 <= self.status < 500, (self.status, self.body)
        assert list(self.json) == ["error"]
        assert "\n" not in self.json["error"]
        assert "Traceback" not in self.json["error"]
        return str(self.json["error"])


async def send(
    app: Any, method: str, path: str, pieces: Sequence[bytes] = (), headers: Headers = (HOME,)
) -> Answer:
    place, _, query = path.partition("?")
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": place, "root_path": "",
        "raw_path": place.encode(), "query_string": query.encode("latin-1"), "scheme": "http",
        "headers": list(headers), "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 7860),
    }  # fmt: skip
    waiting, messages = list(pieces) or [b""], []

    async def receive() -> dict[str, Any]:
        if not waiting:
            return {"type": "http.disconnect"}
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def keep(message: dict[str, Any]) -> None:
        messages.append(message)

    await app(scope, receive, keep)
    return Answer(messages)


def ask(here: Answers, *args: Any, **options: Any) -> Answer:
    return asyncio.run(send(make_app(here), *args, **options))


def post(here: Answers, path: str, fields: Any, *more: tuple[bytes, bytes]) -> Answer:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return ask(here, "POST", path, [body], headers=(HOME, JSON_TYPE, *more))


def upload(here: Answers, content: bytes, name: str = "x.png") -> Answer:
    path = "/image?" + urlencode({"session": KEY, "name": name})
    return ask(here, "POST", path, [content], headers=(HOME, IMAGE_TYPE))


def png(width: int = 32, height: int = 24) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, "PNG")
    return buffer.getvalue()
