"""The HTTP interface: numbers and lists of numbers as JSON, an image as the body of a request.

No request can name a file or an address. Every field is checked before it is used. A bad request
gets {"error": "one sentence"} and a status of 4xx.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hemnet.app.answers import MOST_SHOWN, Answers, Query
from hemnet.app.guard import Asgi, Guard
from hemnet.app.page import FILES, make_page
from hemnet.errors import UserError

SMALL = 20_000  # bytes of a JSON body, at most
PATIENCE = 60.0  # seconds for a body to arrive
MOST_WAITING = 32  # requests in the queue
KEY = re.compile(r"[0-9a-f]{32}")
Result = TypeVar("Result")


class BadRequestError(Exception):
    """A request that the page would not have sent. `code` is the HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Routes:
    """The HTTP routes. One computation at a time, and a bounded queue."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.page = answers, make_page(answers)
        self.turn: CapacityLimiter | None = None  # made by the event loop that serves
        self.waiting = 0

    def app(self) -> Starlette:
        app = Starlette(
            routes=[
                Route("/", self.show, methods=["GET"]),
                *(Route(f"/{name}", self.file, methods=["GET"]) for name in FILES),
                Route("/class-map", self.class_map, methods=["GET"]),
                Route("/sample", self.sample, methods=["POST"]),
                Route("/image", self.image, methods=["POST"]),
                Route("/view", self.view, methods=["POST"]),
                Route("/leave", self.leave, methods=["POST"]),
            ],
            exception_handlers={
                HTTPException: lambda _, error: _refusal(error.status_code, error.detail),
                BadRequestError: lambda _, error: _refusal(error.code, str(error)),
                ClientDisconnect: lambda *_: _refusal(400, "the request ended early"),
                UserError: lambda _, error: _refusal(422, str(error)),
                OSError: lambda _, error: _refusal(503, f"the server's disk: {error.strerror}"),
            },
        )
        app.router.redirect_slashes = False  # 404 instead
        return app

    async def show(self, request: Request) -> Response:
        return Response(self.page, media_type="text/html")

    async def file(self, request: Request) -> Response:
        content, kind = FILES[request.scope["path"].removeprefix("/")]
        return Response(content, media_type=kind)

    async def class_map(self, request: Request) -> Response:
        async with self._admitted():
            key = session_key(request.query_params.get("session"))
            name, content = await self._run(lambda: self.answers.class_map(key))
            attached = {"content-disposition": f'attachment; filename="{name}"'}
            return Response(content, media_type="image/png", headers=attached)

    async def sample(self, request: Request) -> Response:
        async with self._admitted():
            fields = await read_fields(request, "session", "sample")
            key, number = session_key(fields["session"]), whole("sample", fields["sample"])
            return JSONResponse(asdict(await self._run(lambda: self.answers.sample(key, number))))

    async def image(self, request: Request) -> Response:
        async with self._admitted():
            key = session_key(request.query_params.get("session"))
            name = request.query_params.get("name", "")
            if not 0 < len(name) <= 1000:
                raise BadRequestError(
                    400, "name: expected the name of the file, up to 1000 characters"
                )
            expect_type(request, "application/octet-stream")
            content = await read_body(request, self.answers.limits.bytes)
            found = await self._run(lambda: self.answers.upload(key, name, content))
            return JSONResponse(asdict(found))

    async def view(self, request: Request) -> Response:
        async with self._admitted():
            names = ("session", "iterations", "step_size", "shown", "bases", "x", "y")
            fields = await read_fields(request, *names)
            key, query = session_key(fields["session"]), read_query(fields)
            return JSONResponse(asdict(await self._run(lambda: self.answers.view(key, query))))

    async def leave(self, request: Request) -> Response:
        """The page is closed."""
        fields = await read_fields(request, "session")
        self.answers.sessions.end(session_key(fields["session"]))
        return Response(status_code=204)

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        if self.waiting >= MOST_WAITING:
            raise BadRequestError(503, "the explorer is busy: try again in a moment")
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def _run(self, work: Callable[[], Result]) -> Result:
        if self.turn is None:
            self.turn = CapacityLimiter(1)
        return await to_thread.run_sync(work, limiter=self.turn)


def make_app(answers: Answers, loopback: bool = True) -> Asgi:
    """The explorer as an ASGI application behind its guard."""
    return Guard(Routes(answers).app(), loopback)


async def read_body(request: Request, most: int) -> bytes:
    """The body, refused above `most` bytes even if no length was announced."""
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequestError(400, "content-length: expected a number")
    too_large = BadRequestError(413, f"too large: the limit is {most / 1e6:g} MB")
    if len(length) > 18 or int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise BadRequestError(408, "the request took too long to arrive") from None
    return bytes(body)


async def read_fields(request: Request, *names: str) -> dict[str, Any]:
    """A JSON object with exactly these fields."""
    expect_type(request, "application/json")
    body = await read_body(request, SMALL)
    try:
        fields = json.loads(body.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadRequestError(400, "the body is not valid JSON") from None
    if not isinstance(fields, dict) or set(fields) != set(names):
        raise BadRequestError(400, f"expected a JSON object with {', '.join(names)}")
    return fields


def expect_type(request: Request, kind: str) -> None:
    """Browsers send these types across sites only after a preflight, which is never allowed."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != kind:
        raise BadRequestError(415, f"content-type: expected {kind}")


def read_query(fields: dict[str, Any]) -> Query:
    bases, step_size = fields["bases"], fields["step_size"]
    if not isinstance(bases, list) or len(bases) > MOST_SHOWN:
        raise BadRequestError(400, f"bases: expected a list of at most {MOST_SHOWN} numbers")
    if step_size is not None and not (_is(float | int, step_size) and 0 < step_size <= 1):
        raise BadRequestError(400, "step_size: expected a number above 0, at most 1, or null")
    iterations, shown, x, y = (
        None if fields[name] is None else whole(name, fields[name])
        for name in ("iterations", "shown", "x", "y")
    )
    if (x is None) != (y is None):
        raise UserError("a pixel has two coordinates: give both x and y.")
    return Query(
        iterations,
        step_size,
        shown,
        [whole("bases", basis) for basis in bases],
        None if x is None or y is None else (x, y),
    )


def whole(name: str, value: object) -> int:
    if not (isinstance(value, int) and _is(int, value) and abs(value) <= 1_000_000_000):
        raise BadRequestError(400, f"{name}: expected a whole number")
    return value


def session_key(value: object) -> str:
    if not isinstance(value, str) or not KEY.fullmatch(value):
        raise BadRequestError(400, "session: expected 32 hexadecimal digits")
    return value


def _is(kind: Any, value: object) -> bool:
    """`isinstance`, but True and False are no numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _refusal(code: int, text: str) -> Response:
    # Unread parts of the body would be taken for the next request.
    return JSONResponse({"error": text}, code, {"connection": "close"} if code != 422 else None)
