"""A pass in this process that somebody attends to: its claim is kept alive however long a handler takes, and it can be interrupted."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING

from airflow_poison.core.errors import ReceiveStoppedError
from airflow_poison.core.passes.engine import LocalEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.delivery.stage import StageJob
    from airflow_poison.core.passes.engine import Engine
    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.queue_table import QueueTable

SECONDS = 1.0


class AttendedEngine:
    """Runs an engine on a thread of its own, while the caller's thread renews the claim and can be interrupted.

    When the claim is lost or the caller is interrupted, the engine is told with its next beat, and the run ends; what the thread still does it
    does until its batch, or the process, ends. What it had journalled counts for whoever finishes the claim.

    :param engine: makes what delivers, once, on such a thread: a Spark that is started there leaves the interrupts of the process alone.
    :param seconds: between two beats.
    :param patience: how many seconds an engine that is told to end has to do so.
    """

    def __init__(self, engine: Callable[[], Engine] = LocalEngine, *, seconds: float = SECONDS, patience: float = 0) -> None:
        self._make, self._seconds, self._patience = engine, seconds, patience
        self._made: Engine | None = None

    @property
    def local(self) -> bool:
        """Whether all processes of the engine run on this machine."""
        self._attend(self._engine)
        return self._engine().local

    def prepare(self, table: QueueTable, handler: HandlerRef) -> None:
        """Make the engine, and let it see whether it can deliver. Raises what it raises."""
        self._attend(lambda: self._engine().prepare(table, handler))

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim. Raises what the engine raises, and what ``keep_alive`` raises."""
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise ReceiveStoppedError(f"The pass {claim.key} was left. Its claim stays: run it again, it goes on where it stopped.")

        self._attend(lambda: self._engine().run(table, claim, job, keep_alive=check), keep_alive, left)

    def _engine(self) -> Engine:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _attend(self, work: Callable[[], object], beat: Callable[[], None] = lambda: None, left: threading.Event | None = None) -> None:
        """Do something on a thread of its own. Raises what it raises, and what the beat raises.

        :param left: set when the caller goes away; the work then has ``patience`` seconds to end.
        """
        ended, raised = threading.Event(), list[BaseException]()

        def do() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (raised again on the caller's thread)
                raised.append(error)
            finally:
                ended.set()

        threading.Thread(target=copy_context().run, args=(do,), name="poison-deliver", daemon=True).start()
        try:
            while not ended.wait(self._seconds):
                beat()
        except BaseException:
            if left is not None:
                left.set()
                ended.wait(self._patience)
            raise
        if raised:
            raise raised[0]
