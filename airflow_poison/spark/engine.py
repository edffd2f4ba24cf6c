"""Runs the receive stage of a claim on Spark.

Handlers: one Spark job, whose tasks read the claimed files, deliver, and write what remains into the claim's stage. Transformations: the messages
are read, transformed in units, and settled; their results go to the outputs.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.delivery.journal import Journal
from airflow_poison.delivery.landing_rows import MOST_ROWS, landing_frame
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.delivery.rows import BatchEntry
from airflow_poison.delivery.stage import Order, exceptions_of, sized
from airflow_poison.delivery.unit_counts import LARGEST_BODY, open_ids, settled
from airflow_poison.delivery.units import UnitDelivery, UnitRules
from airflow_poison.dialogs.transaction import AS_ARRIVED
from airflow_poison.sources.frames import reader
from airflow_poison.spark.executors import Executors
from airflow_poison.spark.function import check, expected
from airflow_poison.spark.in_place import InPlace, NotInPlaceError
from airflow_poison.spark.jobs import is_connect, readable_error
from airflow_poison.spark.messages import BATCH_ROWS, chosen, types_kept
from airflow_poison.spark.nodes import NodeSite, check_outputs
from airflow_poison.spark.session import check_running
from airflow_poison.spark.shares import TASK_ROW, SharedSite, deliver_only, deliver_share, plan_shares, read_share
from airflow_poison.spark.units import SparkUnits
from airflow_poison.store.objects import side_by_side
from airflow_poison.store.stage import OutcomeWriter
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import LOOKUP_ID, message_schema
from airflow_poison.values.texts import counted, literal_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_poison.delivery.handlers import HandlerRef, InPlaceOrder
    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.outputs.output import Output
    from airflow_poison.rules.policy import Policy
    from airflow_poison.spark.jobs import Jobs, Watched
    from airflow_poison.spark.shares import Site
    from airflow_poison.store.files import Claim, DataFile
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.errors import PoisonError


T = TypeVar("T")
LARGE = 100_000
"""From so many messages on, each core gets two tasks, so that no core waits long for the last one; fewer messages are not worth a second start."""
HEARTBEAT_SECONDS = 1.0
STANDS_STILL_SECONDS = 60.0
"""For so much longer than a message may take does a job in place read and write no row before it is cancelled: executors report every ten seconds,
and a Python function is given 10,000 rows at once."""
LAST_SECONDS = 10.0
"""How long a block that is interrupted waits until its jobs are cancelled."""


class Heartbeat:
    """Keeps the claim of a pass while a block runs a Spark action, from a thread of its own. A block that is interrupted has its jobs cancelled.

    Whatever cancels does so on that thread: the block's own may have been interrupted in the middle of a call to Spark.

    :param watched: the block's Spark jobs.
    :param keep_alive: called with every beat; what it raises ends the jobs and stands in ``lost`` then.
    :param report: called with every beat that kept the claim.
    """

    def __init__(self, watched: Watched, keep_alive: Callable[[], object], report: Callable[[], None]) -> None:
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
            while not self._stopped.wait(HEARTBEAT_SECONDS):
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


class SparkEngine:
    """Delivers on Spark, in every task of the job (or in one, where order is promised).

    :param spark: the session, classic or of Spark Connect.
    :param progress: called with a line whenever another task of the stage has ended.
    :param parallelism: how many tasks a pass has; None: as many as run at the same time.
    :raises SparkJobError: the session has ended.
    """

    def __init__(self, spark: SparkSession, progress: Callable[[str], None] = lambda _line: None, *, parallelism: int | None = None) -> None:
        if not is_connect(spark):
            check_running(spark)
        self._spark = spark
        self._progress = progress
        self._executors = Executors(spark, parallelism)

    @property
    def local(self) -> bool:
        """Whether all tasks run on this machine, and end with this process."""
        return self._executors.jobs.local

    def ship(self, py_files: Sequence[str]) -> None:
        """Let executors import from files of this machine."""
        self._executors.ship(py_files)

    def prepare(self, table: QueueTable, handler: HandlerRef | Transformation, outputs: Sequence[Output] = ()) -> None:
        """See to it that the executors have what a pass needs there. Raises ExecutorError, SettingError; nothing has to be claimed before.

        A transformation is called here, without messages. Raises TransformError.
        """
        if isinstance(handler, Transformation):
            self._executors.make_ready(table.folder)
            self._progress(f"queue {table.name}: calling transform={handler.name} without messages")
            check(self._spark, handler, outputs)
        else:
            if table.node and not self.local:
                check_outputs(outputs)
            self._executors.make_ready(table.folder, handler)

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        """Deliver every message of the claim. A lost claim cancels the job and raises ClaimLostError."""
        site = NodeSite.of(table, claim) if table.node and not self.local else None
        if table.node and (job.transform is not None or site is None):
            side_by_side(table.folder.here, [file.path for file in claim.files])
        if job.transform is not None:
            transform_claim(self._spark, self._executors.jobs, table, claim, job, site=site, keep_alive=keep_alive, report=self._progress)
            return
        self.prepare(table, job.handler, job.outputs)
        if site is None:
            self._watched(self._job(SharedSite(table.root), claim, job).write.format("noop").mode("overwrite").save, table, claim, keep_alive)
            return
        site.announce(job)
        rows = self._watched(self._job(site, claim, job).collect, table, claim, keep_alive)
        site.fetch(job, [name for row in rows for name in row["files"]])

    def in_place(self, order: InPlaceOrder) -> InPlace:
        """Return rows that are to be transformed where they are."""
        jobs = self._executors.jobs

        def watched(action: Callable[[], object]) -> bool:
            mine = jobs.watch(f"poison-{uuid.uuid4().hex}", f"Transform rows in place for {order.queue.uri}", interrupts=True)
            since, at = time.monotonic(), mine.moved()

            def beat() -> None:
                nonlocal since, at
                order.check_stopped()
                if (now := mine.moved()) is None or now != at:
                    since, at = time.monotonic(), now
                elif time.monotonic() - since > order.limit + STANDS_STILL_SECONDS:
                    raise NotInPlaceError(f"no row was read or written for {time.monotonic() - since:.0f} s: one may hang")

            with Heartbeat(mine, beat, lambda: None) as heartbeat:
                try:
                    action()
                except Exception:
                    await_tasks(mine)
                    if heartbeat.lost is None:
                        raise
            if heartbeat.lost is not None:
                raise heartbeat.lost
            return mine.repeated()

        def await_tasks(mine: Watched) -> None:
            """Wait for tasks of jobs that have failed: one may write still."""
            until = time.monotonic() + LAST_SECONDS
            while not is_connect(self._spark) and mine.works() and time.monotonic() < until:
                time.sleep(0.02)

        return InPlace(self._spark, order, watched, lambda: self._executors.make_ready(order.queue))

    def _job(self, site: Site, claim: Claim, job: StageJob) -> DataFrame:
        """Return the Spark job whose tasks deliver, with a row for each of them."""
        if job.only:
            return self._alone(site, claim, job)
        return (self._side_by_side if job.order is Order.NONE else self._in_order)(site, claim, job)

    def _side_by_side(self, site: Site, claim: Claim, job: StageJob) -> DataFrame:
        """Return the job whose tasks each read, deliver and write their own share."""
        tasks = 1 if job.singly else self._executors.parallelism() * (2 if claim.messages >= LARGE else 1)
        shares = plan_shares(claim.files, tasks)

        def deliver(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column("id").to_numpy():
                    yield deliver_share(site, job, str(number), read_share(site, shares[number]))

        return self._spark.range(0, len(shares), 1, len(shares)).mapInArrow(deliver, schema=TASK_ROW)

    def _alone(self, site: Site, claim: Claim, job: StageJob) -> DataFrame:
        """Return the job of one task that delivers a few messages of the claim."""
        files = claim.files

        def deliver(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield deliver_only(site, job, files)

        return self._spark.range(0, 1, 1, 1).mapInArrow(deliver, schema=TASK_ROW)

    def _in_order(self, site: Site, claim: Claim, job: StageJob) -> DataFrame:
        """Return the job that delivers in order; Spark sorts, on disk where memory is short.

        In queue order it has one task; else each of its tasks delivers some conversation groups, every one in its order.
        """
        from pyspark import TaskContext
        from pyspark.sql import functions as f

        frame = self._read(site, claim)
        if job.order is Order.QUEUE:
            frame = self._in_receive_order(frame, job, 1)
        else:
            alone = f.concat(f.lit("#"), f.col("lookup_id").cast("string"))
            group = f.coalesce(f.nullif(f.col("group_id"), f.lit("")), f.nullif(f.col("conversation_id"), f.lit("")), alone)
            frame = self._in_receive_order(frame, job, self._executors.parallelism(), group)

        def deliver(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None, "runs in a task"
            yield deliver_share(site, job, str(context.partitionId()), batches)

        return frame.mapInArrow(deliver, schema=TASK_ROW)

    def _in_receive_order(self, frame: DataFrame, job: StageJob, tasks: int, *together: Column) -> DataFrame:
        """Divide messages among tasks, each in the order of its receives.

        :param together: what messages of the same task share.
        """
        exceptions = exceptions_of(job)
        if job.parks:
            return frame.repartition(tasks, *together).sortWithinPartitions(frame["lookup_id"].asc())
        if not exceptions:
            return frame.repartition(tasks, *together).sortWithinPartitions(frame["priority"].desc(), frame["lookup_id"].asc())
        from pyspark.sql import functions as f

        columns = frame.columns
        places = self._spark.createDataFrame(
            [(lookup_id, *place) for lookup_id, place in exceptions.items()], "lookup_id long, anchor long, precedence int"
        )
        placed = frame.join(f.broadcast(places), "lookup_id", "left").repartition(tasks, *together)
        anchor, precedence = f.coalesce(f.col("anchor"), f.col("lookup_id")), f.coalesce(f.col("precedence"), f.lit(AS_ARRIVED))
        return placed.sortWithinPartitions(f.col("priority").desc(), anchor.asc(), precedence.asc(), f.col("lookup_id").asc()).select(*columns)

    def _read(self, site: Site, claim: Claim) -> DataFrame:
        """Return the claimed rows; the partition values come from the log, since explicit paths give none."""
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.types import from_arrow_schema

        if isinstance(site, NodeSite):
            return site.frame(self._spark, claim.files, self._executors.parallelism())
        schema = from_arrow_schema(message_schema(), prefer_timestamp_ntz=False)
        frame: DataFrame | None = None
        for move_count, files in groupby(sorted(claim.files, key=lambda file: file.move_count), key=lambda file: file.move_count):
            paths = [literal_path(site.here(file.path)) for file in files]
            part = reader(self._spark).schema(schema).parquet(*paths).withColumn("move_count", f.lit(move_count).cast("int"))
            frame = part if frame is None else frame.unionAll(part)
        assert frame is not None, "a claim has at least one file"
        return frame

    def _watched(self, action: Callable[[], T], table: QueueTable, claim: Claim, keep_alive: Callable[[], None]) -> T:
        """Run a Spark action while the claim is kept alive; the action is cancelled when that fails, or when this thread is interrupted.

        Raises what a task raised when it is an error of ours, SparkJobError for other failures of the job.
        """
        watched = self._executors.jobs.watch(f"poison-{claim.key}-{uuid.uuid4().hex[:8]}", f"Receive from queue {table.name}")
        heartbeat = Heartbeat(watched, keep_alive, self._reporter(table, claim, watched))
        failed: PoisonError | None = None
        with heartbeat:
            try:
                found = action()
            except Exception as error:  # noqa: BLE001  (raised below, without the JVM's stack traces)
                failed = readable_error(error, claim.key)
        if heartbeat.lost is not None:
            raise heartbeat.lost
        if failed is not None:
            keep_alive()  # raises ReceiveStoppedError when a stop was asked for
            table.stage(claim)  # raises ClaimLostError when a later holder has shut the tasks out
            raise failed
        return found

    def _reporter(self, table: QueueTable, claim: Claim, watched: Watched) -> Callable[[], None]:
        """Return the callback for every task that has ended."""
        reported = {-1}

        def report() -> None:
            progress = watched.progress()
            if progress is not None and progress.done not in reported:
                reported.add(progress.done)
                self._progress(f"queue {table.name}: {claim.messages:,} messages, task {progress.done} of {progress.tasks} done")

        return report


RESULTS = "results"
"""The folder of a stage where results are kept."""
_TASK = "frames"
_MOST_SIDE_BY_SIDE = 8
_READ = ("lookup_id", "priority", "expires_at", "abort_count")


def transform_claim(
    spark: SparkSession,
    jobs: Jobs,
    table: QueueTable,
    claim: Claim,
    job: StageJob,
    *,
    site: NodeSite | None = None,
    keep_alive: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    """Deliver a claim's messages to a transformation: its results stand in the stage then, and what remains of the messages.

    Once an outage is found, nothing does.

    :param site: where tasks work that do not see the table's folder; None: they do.
    """
    assert job.transform is not None, "it has one"
    stage = Path(table.stage(claim))
    folder = stage / RESULTS
    shutil.rmtree(folder, ignore_errors=True)
    messages = _messages(table.root, claim.files, job.policy, with_errors=job.detection is not None)
    ids = messages.column(LOOKUP_ID).to_numpy()
    recovered = RecoveredAttempts.load(Path(job.recovered)) if job.recovered else RecoveredAttempts()
    limit = job.policy.effective_transaction_timeout.total_seconds()
    units = SparkUnits(
        spark, jobs, table, claim, lookup_ids=ids, transformation=job.transform, folder=folder, limit=limit, outputs=job.outputs, site=site
    )
    cores = jobs.cores()
    rules = UnitRules(
        side_by_side=1 if cores is None else max(2, min(cores, _MOST_SIDE_BY_SIDE)),  # a server resolves temporary views when a job runs
        mixes_rows=job.transform.mixes_rows,
    )
    name, began = f"queue {table.name}", time.monotonic()

    def say(line: str) -> None:
        report(f"{name}: {line}")

    def alive(batch: pa.RecordBatch) -> pa.RecordBatch:
        keep_alive()
        return batch

    say(f"transforming {counted(claim.messages, 'message')}")
    with Journal(Path(job.journal_folder), _TASK, forced=True, share=job.share) as journal, expected(spark), types_kept(spark):
        outcome = UnitDelivery(job, messages, units, journal, recovered=recovered, rules=rules, report=say).run(keep_alive)
        if job.detection is not None and job.detection.found:
            return  # the claim is settled anew, without what failed so
        say(f"{counted(claim.messages, 'message')} transformed in {counted(outcome.units, 'unit')} and {time.monotonic() - began:.1f} s")
        reach("frames.outcome.before")
        with OutcomeWriter(stage / "out", _TASK) as writer:
            some = map(alive, chosen(table.root, claim.files, open_ids(job, outcome)))
            messages_left = sized(some, BATCH_ROWS)  # each batch that is settled costs the same, however small
            for rows in settled(job, outcome, recovered, messages_left, _results(job, units)):
                keep_alive()
                writer.write(pa.Table.from_batches([rows]))
        reach("frames.outcome.after")


def _results(job: StageJob, units: SparkUnits) -> Iterator[pa.Table]:
    """Yield what was made of the messages that settle, as rows of the partition ``_output``."""
    outputs = {output.name: output for output in job.outputs}
    for name, batch in units.results(MOST_ROWS) if outputs else ():
        yield landing_frame(job, outputs[name], batch, job.clock.now())


def _messages(root: str, files: Sequence[DataFile], policy: Policy, *, with_errors: bool) -> pa.RecordBatch:
    """Return what decisions about messages depend on, in the order of the files' rows; bodies only where they are too large to be handed over.

    :param with_errors: their last failures, too: they identify poison that comes back from an outage.
    """
    with_properties = policy.reads_properties
    tables = []
    for file in files:
        columns = [*_READ, *(["properties"] if with_properties else ()), *(["last_error"] if with_errors else ())]
        rows = pq.read_table(f"{root}/{file.path}", columns=columns, partitioning=None, page_checksum_verification=True)
        if not with_properties:
            rows = rows.append_column(message_schema().field("properties"), pa.nulls(rows.num_rows, message_schema().field("properties").type))
        bodies = (
            _large_bodies(f"{root}/{file.path}", policy)
            if policy.unreadable(BatchEntry.of_size(LARGEST_BODY))
            else pa.nulls(rows.num_rows, pa.binary())
        )
        rows = rows.append_column(pa.field("body", pa.binary()), bodies)
        tables.append(rows.append_column("move_count", pa.array(np.full(rows.num_rows, file.move_count, np.int32))))
    found = pa.concat_tables(tables).combine_chunks()
    return found.to_batches()[0]


def _large_bodies(path: str, policy: Policy) -> pa.ChunkedArray[Any]:
    """Return the bodies that the policy does not let be handed over, null for all others."""
    pieces: list[pa.Array[Any]] = []
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(columns=["body"]):
            sizes = pc.binary_length(cast("Any", batch.column("body"))).to_pylist()
            refused = [policy.unreadable(BatchEntry.of_size(size or 0)) is not None for size in sizes]
            pieces.append(pc.if_else(pa.array(refused, pa.bool_()), batch.column("body"), pa.scalar(None, pa.binary())))
    return pa.chunked_array(pieces, pa.binary())
