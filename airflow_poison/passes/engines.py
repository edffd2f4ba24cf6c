"""Engines: carry a receive stage out, on Spark or in this very process; ``SupervisedEngine`` lets the pass keep its claim meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc

from airflow_poison.delivery.handlers import HandlerRef, InPlaceOrder, Transformation
from airflow_poison.delivery.stage import StageJob, deliver_alone, deliver_partition, exceptions_of
from airflow_poison.dialogs.transaction import AS_ARRIVED, Place
from airflow_poison.values.errors import ReceiveStoppedError, SettingError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import table_schema

if TYPE_CHECKING:
    from airflow_poison.outputs.output import Output
    from airflow_poison.outputs.row_files import FileOfRows
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.failures import Failure


class Engine(Protocol):
    """Runs the receive stage over the files of a claim and leaves its rows in the claim's stage. A pass makes one, and uses it for all its claims."""

    @property
    def local(self) -> bool:
        """Whether all its processes run on this machine, and end with this one."""
        ...

    def prepare(self, table: QueueTable, handler: HandlerRef | Transformation, outputs: Sequence[Output] = ()) -> None:
        """See whether it can deliver, before anything is claimed. Raises ExecutorError, SettingError.

        :param outputs: where the rows go that a handler returns, with the columns that are known.
        """
        ...

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim, in the job's order; with ``job.only`` just these, and no row is left for them.

        :param keep_alive: renews the claim; called every few seconds. What it raises (ClaimLostError) ends the run.
        """
        ...

    def in_place(self, order: InPlaceOrder) -> RowsInPlace:
        """Return rows that are to be transformed where they are. Raises SettingError where there is no Spark."""
        ...


class RowsInPlace(Protocol):
    """Rows that are transformed where they are.

    :ivar schema: their columns, as DDL; empty: they cannot be transformed, for what ``why`` says.
    :ivar landed: files with the rows that land, below the order's place.
    :ivar is_there: whether they are where the output is: in its object store.
    :ivar counts: of rows (``COUNTS``); empty: all of them have to become messages.
    :ivar named: the failures of the rows that ``failing`` has yielded, in its order, where they have failed alone, or the transformation itself names
        them; else None.
    """

    schema: str
    why: str
    is_there: bool
    landed: list[FileOfRows]
    named: list[Failure | None]
    counts: Mapping[str, int]

    def run(self) -> str:
        """Transform them; return why all of them have to become messages; empty: only those that fail."""
        ...

    def failing(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fail."""
        ...

    def all_rows(self, folder: Path) -> Iterator[pa.RecordBatch]:
        """Yield all rows, which are written to a folder meanwhile."""
        ...

    def discard(self) -> None:
        """Remove what was written."""
        ...


class LocalEngine:
    """Runs the stage in this process: one task, no JVM. For tests, small queues and the memory store."""

    local = True

    def prepare(self, table: QueueTable, handler: HandlerRef | Transformation, outputs: Sequence[Output] = ()) -> None:
        """There is nothing to make ready: the handler has been checked in this process. Raises SettingError for a transformation."""
        del outputs
        if isinstance(handler, Transformation):
            raise SettingError("transform", handler.name, f"a handler of messages here: queue {table.name!r} is received from without Spark")

    def in_place(self, order: InPlaceOrder) -> RowsInPlace:
        """Raise SettingError: there is no Spark."""
        raise SettingError("source", order.transformation.name, "a session of Spark (spark=...), which transforms rows in place")

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
        table.bring(claim.files)
        read = pa.concat_tables([table.read(file) for file in claim.files])
        if job.only:
            read = read.filter(pc.is_in(read["lookup_id"], pa.array(job.only, pa.int64())))
        ordered = read.sort_by("lookup_id") if job.parks else _in_receive_order(read, exceptions_of(job))
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


# Supervised, so that the claim is kept meanwhile ---------------------------------------------------------------------


SECONDS = 1.0


class SupervisedEngine:
    """Runs an engine on a thread of its own, while the caller's thread renews the claim and can be interrupted.

    When the claim is lost or the caller is interrupted, the engine learns it with its next beat, and the run ends; what the thread still does it
    does until its batch, or the process, ends. What it had journalled counts for the pass that finishes the claim.

    :param engine: makes what delivers, once, on such a thread: a Spark that is started there leaves the interrupts of the process alone.
    :param seconds: between two beats.
    :param patience: how many seconds an engine has to end when it is asked to.
    """

    def __init__(self, engine: Callable[[], Engine] = LocalEngine, *, seconds: float = SECONDS, patience: float = 0) -> None:
        self._make, self._seconds, self._patience = engine, seconds, patience
        self._made: Engine | None = None

    @property
    def local(self) -> bool:
        """Whether all processes of the engine run on this machine."""
        self._supervise(self._engine)
        return self._engine().local

    def prepare(self, table: QueueTable, handler: HandlerRef | Transformation, outputs: Sequence[Output] = ()) -> None:
        """Make the engine, and let it see whether it can deliver. Raises what it raises."""
        self._supervise(lambda: self._engine().prepare(table, handler, outputs))

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim. Raises what the engine raises, and what ``keep_alive`` raises."""
        left = threading.Event()

        def check() -> None:
            if left.is_set():
                raise ReceiveStoppedError.of(claim.key)

        self._supervise(lambda: self._engine().run(table, claim, job, keep_alive=check), keep_alive, left)

    def in_place(self, order: InPlaceOrder) -> RowsInPlace:
        """Make the engine, and return what it does. Raises what it raises."""
        self._supervise(self._engine)
        return self._engine().in_place(order)

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
