"""Bind a socket and serve the app until it is interrupted."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import webbrowser
from contextlib import suppress

from hemnet.app.guard import Asgi, is_loopback
from hemnet.errors import UserError


def listen(host: str, port: int | None, default: int = 7860) -> socket.socket:
    """A listening socket; without a port, the first free one from `default` on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason: OSError | None = None
    for number in [port] if port is not None else [*range(default, default + 20), 0]:
        place = socket.socket(family)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((host, number))
            place.listen(128)  # from here on the port is ours
            return place
        except (OSError, OverflowError) as error:
            place.close()
            reason = error if isinstance(error, OSError) else OSError(str(error))
    text = reason and (reason.strerror or reason)
    raise UserError(f"cannot listen on {host}, port {port or default}: {text}.")


def serve(app: Asgi, place: socket.socket, open_browser: bool = False) -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    host, port = place.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(f"HEMNet explorer: {address}  (Ctrl-C ends it)", flush=True)
            if not is_loopback(host):
                print("Other computers can reach it, and it asks no one for a password.")
            if open_browser:
                threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()

    _quiet_libraries()
    # Both ways of ending it leave by this function, so that the temporary folder goes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = uvicorn.Config(
        app, log_level="error", timeout_graceful_shutdown=1, ws="none", lifespan="off"
    )
    with suppress(KeyboardInterrupt):
        Server(config).run([place])


def _quiet_libraries() -> None:
    """Silence what C decoders (libtiff) print about damaged uploads, but not our own log."""
    try:
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
    except OSError:  # started without a standard error
        pass
