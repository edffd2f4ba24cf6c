"""Tasks on nodes that share no folder with their driver: each works in the folder of its own node, and the object store is between them.

Claimed files are fetched there. Journals stay there, and are shared in pieces as everywhere over an object store, so that a pass that takes over
knows what the tasks of a lost node had in hand. What remains of the messages becomes objects when its task ends, and the task's row names them:
nothing is listed, and what an attempt has left that does not count is never looked at.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast
from uuid import uuid4

from airflow_poison.delivery.journal import columns_beside
from airflow_poison.delivery.outage import OUTAGE_FILE
from airflow_poison.delivery.progress import FOLDER as OUTPUT
from airflow_poison.delivery.recovered import RecoveredAttempts
from airflow_poison.delivery.returned import LearnedColumns
from airflow_poison.spark.shares import GRACE_SECONDS, SHUT_OUT, TASK_ROW, plan_shares, read_share, row_of
from airflow_poison.store.data_files import STAGE
from airflow_poison.store.disk import on_node
from airflow_poison.store.objects import side_by_side
from airflow_poison.store.stage import BEGUN, JOURNAL, OUT
from airflow_poison.values.errors import ServerSessionError, SettingError, StoreUnreachableError
from airflow_poison.values.libraries import pq
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.outputs.output import Output
    from airflow_poison.store.bucket_folder import BucketFolder
    from airflow_poison.store.files import Claim, DataFile
    from airflow_poison.store.queue_table import QueueTable

EVERY = 5.0
"""Seconds between two looks of a task at what others have shared, and at whether its claim is still its driver's."""
DATA_KEPT, STAGES_KEPT = 24 * 3600.0, 7 * 24 * 3600.0
"""For so many seconds a node keeps what tasks have fetched, and what they have left."""


def check_outputs(outputs: Iterable[Output]) -> None:
    """Raise SettingError for outputs whose columns the tasks would have to agree upon."""
    for output in outputs:
        if output.columns is None or output.evolve:
            raise SettingError(
                f"output {output.name!r}",
                "evolve=True" if output.evolve else "without columns",
                "a table that is there, or output_schema, and no evolve: tasks on nodes that share no folder learn no columns from rows",
            )


@dataclass(frozen=True, slots=True)
class NodeSite:
    """The folder of the node that a task runs on.

    :param folder: of the table; the node's where it arrives.
    :param root: the folder of the driver's node.
    :param holder: the folder of the claim's holder, below the table.
    """

    folder: BucketFolder
    root: str
    holder: str

    @classmethod
    def of(cls, table: QueueTable, claim: Claim) -> Self:
        """Return the site of the tasks of a claim's holder. Raises ClaimLostError."""
        return cls(cast("BucketFolder", table.folder), table.root, str(Path(table.stage(claim)).relative_to(table.root)))

    # The driver's side

    def announce(self, job: StageJob) -> None:
        """Make objects of the tasks' orders in files."""
        paths: list[str | Path] = [*columns_beside(Path(job.journal_folder)), *filter(None, (job.dialogs,))]
        if job.recovered is not None:
            files = RecoveredAttempts.files(Path(job.recovered))
            rows = [Path(path) for path in json.loads(files[-1].read_text())]
            paths += (*files, *rows, *(path for folder in {each.parent for each in rows} for path in columns_beside(folder)))
        self.folder.share([self._below(path) for path in paths])

    def fetch(self, job: StageJob, files: Sequence[str]) -> None:
        """Bring to the driver's node what the tasks have left: what ended them all, and their journals where something depends on these now."""
        side_by_side(self.folder.here, files)
        verdict = f"{self.holder}/{JOURNAL}/{OUTAGE_FILE}"
        if job.only or (job.detection is not None and self.folder.objects.is_there(verdict)):
            self.folder.gather(self.holder, self.holder)

    def frame(self, spark: SparkSession, files: Sequence[DataFile], tasks: int) -> DataFrame:
        """Return the rows of claimed files, read where the tasks run: Spark itself may know no file system for the object store."""
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import IntegerType

        shares = plan_shares(files, tasks)

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column("id").to_numpy():
                    yield from read_share(self, shares[number])

        schema = from_arrow_schema(message_schema(), prefer_timestamp_ntz=False).add("move_count", IntegerType())
        return spark.range(0, len(shares), 1, len(shares)).mapInArrow(read, schema=schema)

    def keep(self, frame: DataFrame, folder: Path) -> None:
        """Write the rows of a frame into files where the tasks run, and bring these to the driver's node.

        :param folder: where they are to lie there.
        """
        written_by_tasks(frame, self.folder, self._below(folder))

    def _below(self, path: str | Path) -> str:
        return str(Path(path).relative_to(self.root))

    # The task's side

    def here(self, path: str) -> str:
        """Return the copy of a claimed file on this node; it is fetched where there is none."""
        return str(self.folder.here(path))

    @contextmanager
    def working(self, job: StageJob, task: str) -> Iterator[StageJob]:
        """Make this node ready for the claim's holder.

        Raises ClaimLostError, ServerSessionError for a task that another node has begun, and StoreUnreachableError where the node's folder fails.
        """
        self.folder.check_not_shut_out(self.holder)
        journals = Path(self.folder.root, self.holder, JOURNAL)
        with on_node(self.folder.root, self.folder.uri):
            _sweep(Path(self.folder.root))
            journals.mkdir(parents=True, exist_ok=True)
            if not job.closed:  # then nothing is delivered
                self._refuse_begun(journals, task)
            arrived = self._arrived(job)
            with _Signals(self.folder, self.holder, [self._below(path) for path in _signals(job)]):
                yield arrived

    def left(self, task: str) -> Sequence[str]:
        """Make objects of what remains of the task's messages, and of its handlers' output; return their names."""
        own = Path(self.folder.root, self.holder)
        found = [*Path(own, OUT).glob(f"*/*/task-{task}-*.parquet"), *Path(own, OUTPUT).glob(f"{task}-*.jsonl")]
        names = [str(path.relative_to(self.folder.root)) for path in found]
        self.folder.share(names)
        return names

    def _arrived(self, job: StageJob) -> StageJob:
        """Return the task's order in terms of this node, with all files that it names."""
        self.folder.fetch(f"{self.holder}/{BEGUN}")
        if job.dialogs is not None:
            self.folder.fetch(self._below(job.dialogs))
        rows = [] if job.recovered is None else self._fetch_recovered(Path(job.recovered))
        for folder in {job.journal_folder, *(os.path.dirname(path) for path in rows)}:  # noqa: PTH120  (plain strings)
            for output in job.outputs:
                self.folder.fetch(self._below(LearnedColumns(Path(folder)).path(output.name)))

        def here(path: str | None) -> str | None:
            return path and str(Path(self.folder.root, self._below(path)))

        journals = str(here(job.journal_folder))
        return replace(
            job,
            journal_folder=journals,
            recovered=here(job.recovered),
            dialogs=here(job.dialogs),
            stop_file=here(job.stop_file),
            detection=job.detection and replace(job.detection, folder=journals),
        )

    def _fetch_recovered(self, recovered: Path) -> list[str]:
        """Fetch what earlier tries have done, with the rows that their messages returned; return where these are on the driver's node."""
        *files, listed = RecoveredAttempts.files(recovered)
        for path in files:
            self.folder.fetch(self._below(path))
        rows: list[str] = json.loads(self.folder.objects.get(self._below(listed)) or b"[]")
        self.folder.keep(self._below(listed), json.dumps([self.here(self._below(path)) for path in rows]).encode())
        return rows

    def _refuse_begun(self, journals: Path, task: str) -> None:
        """Raise ServerSessionError when an earlier attempt of the task has begun elsewhere: what it had in hand is judged when all have ended."""
        begun = f"{self.holder}/{JOURNAL}/{task}-"
        is_own = any(journals.glob(f"{task}-*.journal"))
        if not is_own and any(each.path.startswith(begun) for each in self.folder.objects.list(f"{self.holder}/{JOURNAL}/")):
            raise ServerSessionError(
                f"Task {task} of this pass has begun on another node, which is lost, or where it failed (Spark's log says which). Nothing is lost, "
                "no message is charged: run the Airflow task again, it goes on with what every node has reported."
            )


def written_by_tasks(frame: DataFrame, folder: BucketFolder, below: str) -> list[Path]:
    """Write the rows of a frame into files where its tasks run, and bring these to the driver's node; return them in the order of the rows.

    :param below: where they lie, below the table.
    Raises FileNotFoundError when one was removed meanwhile.
    """
    names = frame.columns

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield row_of(_written((batch.rename_columns(names) for batch in batches), folder, below))

    numbered = frame.toDF(*map(str, range(len(names))))  # to mapInArrow a dot in a name is a path
    rows = numbered.mapInArrow(write, schema=TASK_ROW).collect()
    return side_by_side(folder.here, [name for row in rows for name in row["files"]])


def _written(batches: Iterable[pa.RecordBatch], folder: BucketFolder, below: str) -> Sequence[str]:
    """Make an object of batches; return its name, none where there is no row."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return ()
    name = f"{below}/{uuid4().hex}.parquet"
    place = Path(folder.root, name)
    with on_node(folder.root, folder.uri):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with pq.ParquetWriter(place, first.schema) as writer:
                for batch in chain([first], filled):
                    writer.write_batch(batch)
            folder.share([name])
        finally:
            place.unlink(missing_ok=True)
    return (name,)


def _signals(job: StageJob) -> Iterator[str]:
    """Yield the files by which tasks are asked to end."""
    if job.stop_file is not None:
        yield job.stop_file
    if job.detection is not None:
        yield f"{job.journal_folder}/{OUTAGE_FILE}"


class _Signals:
    """Carries signals between nodes while its block runs, both ways; ends a task whose driver does not rule it any more (see ``Fence``).

    :param names: of the files, below the table.
    """

    def __init__(self, folder: BucketFolder, holder: str, names: Sequence[str]) -> None:
        self._folder, self._holder, self._names = folder, holder, names
        self._known: set[str] = set()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="poison-signals", daemon=True)

    def __enter__(self) -> Self:
        self._forward()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        self._forward()

    def _forward(self) -> None:
        for name in self._names:
            here = Path(self._folder.root, name)
            if name in self._known:
                continue
            if here.exists():
                self._folder.objects.put(name, here.read_bytes())
            elif (content := self._folder.objects.get(name)) is not None:
                self._folder.keep(name, content)
            else:
                continue
            self._known.add(name)

    def _watch(self) -> None:
        while not self._left.wait(EVERY):
            with suppress(StoreUnreachableError, OSError):  # the next look, or the task's own requests, will see
                self._forward()
                if self._folder.is_shut_out(self._holder) and not self._left.wait(GRACE_SECONDS):
                    sys.stderr.write(f"{self._holder} is shut out: a later holder of the claim goes on. This worker ends.\n")
                    sys.stderr.flush()
                    os._exit(SHUT_OUT)


def _sweep(root: Path) -> None:
    """Remove what earlier passes have left on this node a while ago; data files are fetched again where they are needed."""
    now = time.time()
    for pattern, kept in (("sub_queue=*/*/*", DATA_KEPT), (f"{STAGE}/**/*", STAGES_KEPT)):
        for path in root.glob(pattern):
            with suppress(OSError):
                if path.is_file() and now - path.stat().st_mtime > kept:
                    path.unlink()
