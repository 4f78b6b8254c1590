"""One thread that writes to a store. Requests that wait at the same time share one durable transaction."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from esceme.errors import EscemeError
from esceme.memory.store import MemoryStore
from esceme.memory.store_database import StoreUnavailable

MAX_WAITING = 1000
"""Number of requests that may wait."""
MAX_GROUP = 64
"""Number of requests in one transaction."""
Job = Callable[[MemoryStore], int]
_Entry = tuple[Job, "Future[int]"]


class GroupWriter:
    """Runs functions that write to a store, one after the other, in a thread of its own."""

    def __init__(self, store: MemoryStore) -> None:
        """Start the thread; `close` ends it and closes the store."""
        self.store = store
        self._entries: queue.Queue[_Entry | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="group-writer", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait."""
        return self._entries.qsize()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> Future[int]:
        """Return the future result of a function. It is set when all that the function wrote is durable."""
        future: Future[int] = Future()
        try:
            self._entries.put_nowait((job, future))
        except queue.Full:
            raise StoreUnavailable("too many requests wait to be written; try again later") from None
        return future

    def close(self) -> None:
        """Write the queued observations, end the thread and close the store."""
        self._entries.put(None)
        self._thread.join()
        self.store.close()

    def _run(self) -> None:
        while (entry := self._entries.get()) is not None:
            group = [entry]
            while len(group) < MAX_GROUP and not self._entries.empty():
                if (entry := self._entries.get()) is None:
                    self._entries.put(None)
                    break
                group.append(entry)
            self._write([item for item in group if item[1].set_running_or_notify_cancel()])

    def _write(self, group: list[_Entry]) -> None:
        """Run the functions of a group; a future that was cancelled is not in it."""
        try:
            with self.store.database.writing():
                results = [job(self.store) for job, _ in group]
        except Exception as error:
            if len(group) == 1 or not isinstance(error, EscemeError) or isinstance(error, StoreUnavailable):
                for _, future in group:
                    future.set_exception(error)
            else:  # one request is refused, and its group undone: write each by itself
                for entry in group:
                    self._write([entry])
            return
        for (_, future), result in zip(group, results, strict=True):
            future.set_result(result)
