"""The heartbeat of a pass: keeps its claim while a Spark action runs, and cancels the action's jobs when that fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.core.spark.jobs import Watched

SECONDS = 1.0
LAST_SECONDS = 10.0
"""How long a block that is interrupted waits until its jobs are cancelled."""


class Heartbeat:
    """Beats while its block runs, in a thread of its own. A block that is interrupted has its jobs cancelled.

    Whatever cancels does so on that thread: the block's own may have been interrupted in the middle of a call to Spark.

    :param watched: the block's Spark jobs.
    :param keep_alive: called with every beat; what it raises ends the jobs and stands in ``lost`` then.
    :param report: called with every beat that kept the claim.
    """

    def __init__(self, watched: Watched, keep_alive: Callable[[], None], report: Callable[[], None]) -> None:
        self._watched, self._keep_alive, self._report = watched, keep_alive, report
        self._stopped, self._interrupted = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="poison-heartbeat", daemon=True)
        self.lost: Exception | None = None

    def __enter__(self) -> Self:
        self._watched.begin()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._interrupted = kind is not None
        self._stopped.set()
        self._thread.join(LAST_SECONDS if self._interrupted else None)
        self._watched.end()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(SECONDS):
                if self.lost is None:
                    self._beat()
                if self.lost is not None:
                    self._watched.cancel()  # with every beat: the job may not have begun
            if self._interrupted:
                self._watched.cancel()
        finally:
            self._watched.hang_up()

    def _beat(self) -> None:
        try:
            self._keep_alive()
        except Exception as error:  # noqa: BLE001  (whatever it is ends the run: the engine raises it)
            self.lost = error
        else:
            self._report()
