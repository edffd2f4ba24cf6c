"""What the driver of a pass tells while it runs: the lines of its handlers, and how far it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_poison.core.delivery.log_forwarding import ForwardedLog
from airflow_poison.core.delivery.sessions.tries import JournalProgress, Progress

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = 10.0
"""Seconds between two lines of a pass that gets on."""
AT_LEAST_EVERY = 60.0
"""Seconds between two lines of one that does not."""


class Telling:
    """Tells of a pass while its block runs.

    :param journal_folder: of the claim's holder.
    :param messages: of the claim.
    :param progress: told a line now and then.
    :param seconds: what time it is, in seconds that never go back.
    """

    def __init__(
        self, journal_folder: str, queue: str, messages: int, progress: Callable[[str], None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._output = ForwardedLog(journal_folder, queue)
        self._journals = JournalProgress(Path(journal_folder))
        self._queue, self._messages, self._progress, self._seconds = queue, messages, progress, seconds
        self._began = self._told_at = seconds()
        self._told = 0

    def beat(self) -> None:
        """Hand on what handlers have printed; say how far the pass is when it is time to."""
        self._output.drain()
        now = self._seconds()
        if now - self._told_at < EVERY:
            return
        found = self._journals.look()
        percent = 100 * found.done // max(1, self._messages)
        if percent > self._told or now - self._told_at >= AT_LEAST_EVERY:
            self._told, self._told_at = percent, now
            self._progress(_line(self._queue, self._messages, found, percent, now - self._began))

    def beating(self, keep_alive: Callable[[], None]) -> Callable[[], None]:
        """Return what keeps a claim and then tells."""

        def beat() -> None:
            keep_alive()
            self.beat()

        return beat

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Hand on the rest."""
        self._output.drain()


def _line(queue: str, messages: int, found: Progress, percent: int, seconds: float) -> str:
    return (
        f"queue {queue}: {found.done:,} of {messages:,} messages ({percent} %) after {seconds:.0f} s: {found.settled:,} settled, "
        f"{found.ended:,} rolled back for good, {found.rollbacks:,} rollbacks"
    )
