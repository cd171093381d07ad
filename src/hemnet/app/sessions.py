"""State of each user, dropped least recently used first when memory runs out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from hemnet.app.explore import Explorer, OpenImage
from hemnet.errors import UserError
from hemnet.inspection.em_trace import EMTrace

MOST = 1000  # sessions, however small
Settings = tuple[int | None, float | None]  # iterations and step size; None: the model's own
OWN: Settings = (None, None)


@dataclass
class Session:
    """One user's image, with the model's own EM on it and the last one asked for."""

    image: OpenImage
    own: EMTrace | None = None
    settings: Settings = OWN
    trace: EMTrace | None = None

    def solve(self, explorer: Explorer, settings: Settings = OWN) -> EMTrace:
        if self.own is None:
            self.own = explorer.solve(self.image)
        if settings == OWN:
            return self.own
        if self.trace is None or self.settings != settings:
            self.trace, self.settings = explorer.solve(self.image, *settings), settings
        return self.trace


class Sessions:
    """Sessions by key; the least recently used are dropped first."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._all: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, key: str | None, image: OpenImage) -> Session:
        """Open a new image in place of the user's previous one."""
        if not key:
            raise UserError("this request belongs to no page: open the explorer in a browser.")
        session = Session(image)
        with self._lock:
            self._all.pop(key, None)
            self._all[key] = session
            total = sum(other.image.bytes for other in self._all.values())
            while len(self._all) > 1 and (total > self.memory or len(self._all) > MOST):
                _, oldest = self._all.popitem(last=False)
                total -= oldest.image.bytes
        return session

    def get(self, key: str | None) -> Session:
        with self._lock:
            session = self._all.get(key or "")
            if session is None:
                raise UserError(
                    "there is no image here any more: other users needed the memory, or the "
                    "explorer was started anew. Choose an image again."
                )
            self._all.move_to_end(key or "")
            return session

    def end(self, key: str | None) -> None:
        with self._lock:
            self._all.pop(key or "", None)
