"""Outcome files: what a task leaves in the stage of its claim. Arrow writes them where the messages were delivered.

A file gets its name when its task has finished, so the stage never lists half a file. A task that runs again waits for its earlier attempt,
if that still lives, and removes what it had left: the attempt journal knows the same ends, and they are written again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from airflow_poison.store import disk
from airflow_poison.store.disk import named, why
from airflow_poison.store.table.files import moved_path
from airflow_poison.values.errors import ClaimLostError, ServerSessionError, StoreUnreachableError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.file_modes import PRIVATE
from airflow_poison.values.schema import SubQueue, message_schema

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq

_GROUP_ROWS = 20_000
_GROUP_BYTES = 32 * 1024 * 1024
_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.05


class OutcomeWriter:
    """Writes the outcome rows of one task, a file for each partition. Memory stays at one row group for each.

    A file falls due as a whole, so what waits in ``postponed`` without a due time (spec DMP-10) gets a file of its own.

    :param out: the folder ``out`` of the claim's stage.
    :param task: names the task, the same for each of its attempts.
    """

    def __init__(self, out: Path, task: str) -> None:
        self._out, self._task = out, task
        self._parts: dict[tuple[str, int, bool], _Part] = {}
        self._lock = -1

    def __enter__(self) -> Self:
        with named(str(self._out)):
            self._lock = self._locked()
            for leftover in self._out.glob(f"*/*/task-{self._task}-*.parquet"):
                leftover.unlink()
        return self

    def write(self, rows: pa.Table) -> None:
        """Add outcome rows (``table_schema()``); ``sub_queue`` and ``move_count`` say where to. Raises StoreUnreachableError."""
        with named(str(self._out)):
            self._write(rows)

    def _write(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        places = rows.group_by(["sub_queue", "move_count"]).aggregate([]).to_pylist()
        for place in places:
            sub_queue, move_count = place["sub_queue"], place["move_count"]
            mask = pc.and_(pc.equal(rows["sub_queue"], sub_queue), pc.equal(rows["move_count"], move_count))
            here = (rows if len(places) == 1 else rows.filter(mask)).select(message_schema().names)
            if sub_queue != SubQueue.POSTPONED:
                self._part(sub_queue, move_count).add(here)
                continue
            never = pc.is_null(here["due_at"])
            for due, part in ((True, here.filter(pc.invert(never))), (False, here.filter(never))):
                if part.num_rows:
                    self._part(sub_queue, move_count, due=due).add(part)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            reach("store.outcomes.before_names")
            self._close(keep=kind is None)
        except FileNotFoundError as error:  # a later holder of the claim has renamed the stage
            raise ClaimLostError(
                f"The stage folder {str(self._out)!r} is gone: this try was given up by its driver. What the task wrote there changes nothing."
            ) from error
        except OSError as error:
            self._close(keep=False)
            raise StoreUnreachableError(f"The stage folder {str(self._out)!r} cannot be written: {why(error)}.") from error
        finally:
            os.close(self._lock)

    def _close(self, *, keep: bool) -> None:
        for part in self._parts.values():
            part.close(keep=keep)
            reach("store.outcomes.after_name")

    def _locked(self) -> int:
        """Return a descriptor whose lock every attempt of the task takes; the kernel lets go of it when its holder dies."""
        self._out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._out / f".task-{self._task}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        if disk.lock(descriptor, _WAIT_SECONDS, _POLL_SECONDS):
            return descriptor
        os.close(descriptor)
        raise ServerSessionError(
            f"An earlier attempt of task {self._task} still writes to {str(self._out)!r}. End that process, then run the task again."
        )

    def _part(self, sub_queue: str, move_count: int, *, due: bool = True) -> _Part:
        place = (sub_queue, move_count, due)
        if place not in self._parts:
            self._parts[place] = _Part(self._out / moved_path(f"task-{self._task}-{uuid4().hex}.parquet", sub_queue, move_count))
        return self._parts[place]


class _Part:
    """The file of one partition, under a hidden name until it is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._hidden = path, path.with_name(f".{path.name}")
        self._waiting: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows; written when there is enough for a row group."""
        self._waiting.append(rows)
        if sum(table.num_rows for table in self._waiting) >= _GROUP_ROWS or sum(table.nbytes for table in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def close(self, *, keep: bool) -> None:
        """Finish the file and give it its name, or remove it."""
        if keep:
            self._flush()
        if self._writer is None:
            return
        if keep:
            self._writer.close()
            self._hidden.rename(self._path)
        else:
            with suppress(OSError):  # its footer is not needed, and there may be no space for it
                self._writer.close()
            self._hidden.unlink(missing_ok=True)

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._hidden, message_schema())
        self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting = []
