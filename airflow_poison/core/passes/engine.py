"""Engines: what carries a receive stage out, Spark or this very process, and how one is supervised so that its claim is kept meanwhile."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.core.conversations.dialog_state import AS_ARRIVED, Place
from airflow_poison.core.delivery.stage import StageJob, deliver_alone, deliver_partition, exceptions_of
from airflow_poison.core.errors import ReceiveStoppedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import table_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.queue_table import QueueTable


class Engine(Protocol):
    """Runs the receive stage over the files of a claim and leaves its rows in the claim's stage. A pass makes one, and uses it for all its claims."""

    @property
    def local(self) -> bool:
        """Whether all its processes run on this machine, and end with this one."""
        ...

    def prepare(self, table: QueueTable, handler: HandlerRef) -> None:
        """See whether it can deliver, before anything is claimed. Raises ExecutorError."""
        ...

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim, in the job's order; with ``job.only`` just these, and no row is left for them.

        :param keep_alive: renews the claim; called every few seconds. What it raises (ClaimLostError) ends the run.
        """
        ...


class LocalEngine:
    """Runs the stage in this process: one task, no JVM. For tests, small queues and the memory store."""

    local = True

    def prepare(self, table: QueueTable, handler: HandlerRef) -> None:
        """There is nothing to make ready: the handler has been checked in this process."""

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim in queue order."""
        batches = self._batches(table, claim, job, keep_alive)
        if job.only:
            deliver_alone(job, batches)
            return
        rows = pa.Table.from_batches(deliver_partition(job, "0", batches), table_schema())
        reach("pass.deliver.before_staging")
        table.stage_table(claim, rows)
        reach("pass.deliver.after_staging")

    @staticmethod
    def _batches(table: QueueTable, claim: Claim, job: StageJob, keep_alive: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        read = pa.concat_tables([table.read(file) for file in claim.files])
        if job.only:
            read = read.filter(pc.is_in(read["lookup_id"], pa.array(job.only, pa.int64())))
        ordered = _in_receive_order(read, exceptions_of(job))
        for batch in ordered.drop_columns(["sub_queue"]).combine_chunks().to_batches(max_chunksize=4096):
            keep_alive()
            yield batch


def _in_receive_order(rows: pa.Table, exceptions: Mapping[int, Place]) -> pa.Table:
    """Sort messages as they are received: by priority, then by arrival, but for those that overtake others of their dialog (spec SB-41)."""
    if not exceptions:
        return rows.sort_by([("priority", "descending"), ("lookup_id", "ascending")])
    ids = cast("list[int]", rows["lookup_id"].to_pylist())
    places = [exceptions.get(number, Place(number, AS_ARRIVED)) for number in ids]
    placed = rows.append_column("anchor", pa.array([place.anchor for place in places], pa.int64()))
    placed = placed.append_column("precedence", pa.array([place.precedence for place in places], pa.int32()))
    ordered = placed.sort_by([("priority", "descending"), ("anchor", "ascending"), ("precedence", "ascending"), ("lookup_id", "ascending")])
    return ordered.drop_columns(["anchor", "precedence"])


# Supervised ------------------------------------------------------------------------------------------------------------


SECONDS = 1.0


class SupervisedEngine:
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
        self._supervise(self._engine)
        return self._engine().local

    def prepare(self, table: QueueTable, handler: HandlerRef) -> None:
        """Make the engine, and let it see whether it can deliver. Raises what it raises."""
        self._supervise(lambda: self._engine().prepare(table, handler))

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim. Raises what the engine raises, and what ``keep_alive`` raises."""
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise ReceiveStoppedError(f"The pass {claim.key} was left. Its claim stays: run it again, it goes on where it stopped.")

        self._supervise(lambda: self._engine().run(table, claim, job, keep_alive=check), keep_alive, left)

    def _engine(self) -> Engine:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _supervise(self, work: Callable[[], object], beat: Callable[[], None] = lambda: None, left: threading.Event | None = None) -> None:
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
