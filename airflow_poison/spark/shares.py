"""What a task of the receive stage does: which rows of the claimed files it delivers, how it reads them, and what ends it.

Tasks read and write Parquet themselves, with Arrow, instead of letting the JVM decode rows and hand them over: reading was measured four
times as fast on messages of 1 KB, where it costs more than most handlers (docs/explanation/speed.md). Spark decides where tasks run, runs
them again when one fails, sorts where order is promised, and says when all have ended.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from airflow_poison.delivery.progress import forwarding
from airflow_poison.delivery.recovered import ALONE
from airflow_poison.delivery.stage import deliver_alone, deliver_partition
from airflow_poison.store.stage import OUT, OutcomeWriter
from airflow_poison.values.errors import SparkJobError
from airflow_poison.values.libraries import np, pa, pc, pq
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.store.files import DataFile


TASK_ROW = "files array<string>"
"""The row of a task: the files that the driver has to fetch, where it does not see them."""
FEWEST_ROWS = 250
"""A task is worth its start from about so many messages on (tens of milliseconds)."""
BATCH_ROWS, BATCH_BYTES = 16_384, 16 * 1024 * 1024
"""A batch has so many messages at most, and fewer where they are large: what a task holds in memory. Larger ones save little more."""

LOOK_SECONDS = 1.0
GRACE_SECONDS = 20.0
"""How long a task that was shut out may still work: a share that is nearly done is done, and nothing of it is delivered again. The later holder
waits three times as long."""
SHUT_OUT = 75
"""The exit code of a worker that ended itself."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of one file.

    :param path: below the table.
    :param start: the first row, from 0.
    """

    path: str
    move_count: int
    start: int
    rows: int


def plan_shares(files: Sequence[DataFile], tasks: int) -> list[list[Part]]:
    """Divide the rows evenly: consecutive rows, in the order of the files, at most ``tasks`` shares."""
    return divided([Part(file.path, file.move_count, 0, file.rows) for file in files], tasks)


def parts_of(files: Sequence[DataFile], rows: NDArray[np.intp], most: int) -> list[Part] | None:
    """Return rows of files as parts, which are as long as they can be; None where there are more than so many.

    :param rows: numbers of rows, from 0, as if the files were one behind the other.
    """
    begins, rows = np.cumsum([0, *(file.rows for file in files)])[:-1], np.sort(rows)
    of = np.searchsorted(begins, rows, side="right") - 1
    firsts = np.flatnonzero((np.diff(rows, prepend=-2) != 1) | (np.diff(of, prepend=-1) != 0))
    if len(firsts) > most:
        return None
    starts, lengths = rows[firsts] - begins[of[firsts]], np.diff(firsts, append=len(rows))
    return [
        Part(files[number].path, files[number].move_count, start, length)
        for number, start, length in zip(of[firsts].tolist(), starts.tolist(), lengths.tolist(), strict=True)
    ]


def divided(parts: Sequence[Part], tasks: int) -> list[list[Part]]:
    """Divide the rows of parts evenly, in their order, into at most ``tasks`` shares."""
    size = max(FEWEST_ROWS, -(-sum(part.rows for part in parts) // tasks))
    shares: list[list[Part]] = [[]]
    room = size
    for part in parts:
        start, end = part.start, part.start + part.rows
        while start < end:
            if not room:
                shares.append([])
                room = size
            rows = min(room, end - start)
            shares[-1].append(replace(part, start=start, rows=rows))
            start += rows
            room -= rows
    return shares


class Fence:
    """Ends a task whose driver does not rule it any more: watches, while its block runs, whether the claim is still its driver's.

    A Spark Connect server goes on with a job when its client dies, and an executor may be cut off from its driver. When a later holder has
    taken the claim over, their journal's folder has another name; such a task may finish what it is about to, and its process ends after that.

    :param folder: of the journals.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._left = folder, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="poison-fence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._left.wait(LOOK_SECONDS):
            if not os.path.isdir(self._folder) and not self._left.wait(GRACE_SECONDS):  # noqa: PTH112  (every second)
                sys.stderr.write(f"{self._folder} is shut out: a later holder of the claim goes on. This worker ends.\n")
                sys.stderr.flush()
                os._exit(SHUT_OUT)


class Site(Protocol):
    """Where the tasks of a pass work: in the folder of their driver, or each in that of its own node. Picklable."""

    def here(self, path: str) -> str:
        """Return where a claimed file lies for the task, by its path below the table."""

    def working(self, job: StageJob, task: str) -> AbstractContextManager[StageJob]:
        """Enter with what a task is given, in terms of its site; what it then writes lies beside the folder of the journals."""

    def left(self, task: str) -> Sequence[str]:
        """Return what the driver has to fetch of what a task that has ended has left, as paths below the table."""


@dataclass(frozen=True, slots=True)
class SharedSite:
    """The folder of the table, which the driver and all tasks see.

    :param root: the folder.
    """

    root: str

    def here(self, path: str) -> str:
        """Return its place in the folder."""
        return f"{self.root}/{path}"

    @contextmanager
    def working(self, job: StageJob, task: str) -> Iterator[StageJob]:
        """Work until the claim is not the driver's any more."""
        del task
        with Fence(job.journal_folder):
            yield job

    def left(self, task: str) -> Sequence[str]:
        """Return nothing: the driver sees it."""
        del task
        return ()


def deliver_share(site: Site, job: StageJob, task: str, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Deliver the messages of one task and write what remains into the claim's stage; return one row for Spark: the files to fetch."""
    from pathlib import Path

    with site.working(job, task) as here:
        out = Path(here.journal_folder).with_name(OUT)
        with forwarding(here.journal_folder, task), OutcomeWriter(out, task) as writer:
            for rows in deliver_partition(here, task, batches):
                writer.write(pa.Table.from_batches([rows]))
    return row_of(site.left(task))


def deliver_only(site: Site, job: StageJob, files: Sequence[DataFile]) -> pa.RecordBatch:
    """Deliver the messages of ``job.only``, one at a time; return one row for Spark: the files to fetch."""
    with site.working(job, ALONE) as here, forwarding(here.journal_folder, ALONE):
        alone = _read_only(job.only, site, files)
        deliver_alone(here, (alone.sort_by("lookup_id") if job.parks else alone).to_batches())
    return row_of(site.left(ALONE))


def row_of(files: Sequence[str]) -> pa.RecordBatch:
    """Return a task's row for Spark (``TASK_ROW``): the files that the driver has to fetch."""
    return pa.record_batch([pa.array([list(files)], pa.list_(pa.string()))], names=["files"])


def _read_only(lookup_ids: Sequence[int], site: Site, files: Sequence[DataFile]) -> pa.Table:
    """Read some messages, in queue order; Arrow passes over row groups that have none of them."""
    wanted, found = pc.field("lookup_id").isin(list(lookup_ids)), []
    for file in files:
        if any(file.min_lookup_id <= number <= file.max_lookup_id for number in lookup_ids):
            rows = pq.read_table(
                site.here(file.path), columns=message_schema().names, filters=wanted, partitioning=None, page_checksum_verification=True
            )
            found.append(rows.cast(message_schema()).append_column("move_count", pa.array(np.full(rows.num_rows, file.move_count, np.int32))))
    return pa.concat_tables(found).combine_chunks().sort_by([("priority", "descending"), ("lookup_id", "ascending")])


UNREAD = "poison: claimed files cannot be read"


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Return a context in which a claimed file is read. Raises SparkJobError where that fails: no message is behind it."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise SparkJobError(unread(f"{path}: {' '.join(str(error).split()).rstrip('.')}")) from error


def unread(why: str) -> str:
    """Return the text of an error about claimed files, by which ``UNREAD`` knows it wherever it was raised."""
    return f"{UNREAD}: {why}. `airflow poison check` lists the damage"


def read_share(site: Site, parts: Sequence[Part], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a share as batches; memory stays at a few of them.

    :param columns: of ``message_schema()``; None: all of them, and ``move_count``.
    Raises SparkJobError for a file that cannot be read.
    """
    for part in parts:
        yield from _read(site, part, columns)


def _read(site: Site, part: Part, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:

    names = message_schema().names if columns is None else [*columns]
    with reading(path := site.here(part.path)), pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups, before, first, size, read = [], 0, None, 0, 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            rows = group.num_rows
            if before < part.start + part.rows and before + rows > part.start:
                groups.append(number)
                size, read = size + group.total_byte_size, read + rows
                first = before if first is None else first
            before += rows
        skip, left = part.start - (first or 0), part.rows
        fitting = max(1, min(BATCH_ROWS, BATCH_BYTES * read // max(size, 1)))
        for batch in file.iter_batches(batch_size=fitting, row_groups=groups, columns=names):
            wanted = batch.slice(skip, left)
            skip = max(0, skip - batch.num_rows)
            left -= wanted.num_rows
            if wanted.num_rows:
                cells: dict[str, pa.Array[Any]] = {name: wanted.column(name).cast(message_schema().field(name).type) for name in names}
                if columns is None:
                    cells["move_count"] = pa.array(np.full(wanted.num_rows, part.move_count, np.int32))
                yield pa.record_batch(cells)
