"""What each user looks at: kept apart by session, and forgotten when it becomes too much."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from hemnet.app.explore import Explorer, Seen, Solution
from hemnet.errors import UserError

MOST = 1000  # sessions, however small
Wish = tuple[int | None, float | None]  # iterations and step size; None: the model's own


@dataclass
class Session:
    """One user's image, and the EM solved last on it beside the model's own."""

    seen: Seen
    own: Solution | None = None
    wish: Wish = (None, None)
    solution: Solution | None = None

    def solve(self, explorer: Explorer, wish: Wish) -> Solution:
        if self.own is None:
            self.own = explorer.solve(self.seen)
        if self.solution is None or self.wish != wish:
            self.solution = self.own if wish == (None, None) else explorer.solve(self.seen, *wish)
            self.wish = wish
        return self.solution


class Sessions:
    """Session key → session; the ones that were used longest ago go first."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._all: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, key: str | None, seen: Seen) -> Session:
        """A new image of a user, instead of the one before."""
        if not key:
            raise UserError("this request belongs to no page: open the explorer in a browser.")
        session = Session(seen)
        with self._lock:
            self._all.pop(key, None)
            self._all[key] = session
            total = sum(other.seen.bytes for other in self._all.values())
            while len(self._all) > 1 and (total > self.memory or len(self._all) > MOST):
                _, oldest = self._all.popitem(last=False)
                total -= oldest.seen.bytes
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
