"""Errors of a transformation's Python functions, which Spark's workers catch in the tasks that ask for it.

A task asks with a local property that names a folder. Each row for which a function raises is noted there, and the task goes on with the next row:
one task finds all of its culprits, and its worker is not lost. What such a task makes of these rows, and of those that a function was given with
them, is wrong, and is not kept.

A function sees what it always sees. Only behind an error it is called again, with parts of the rows it was given, to see which row it was.
"""

from __future__ import annotations

import json
import os
import traceback
from contextlib import contextmanager, suppress
from itertools import count
from math import isqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

NOTES = "poison.python_errors"
"""The local property: the folder of the notes."""
LOOKUP_ID = "lookup_id"  # values.schema imports pyarrow, which a worker may never need


class PythonErrors(NamedTuple):
    """What one function of one task has noted.

    :param rows: how many rows it was given.
    :param errors: tracebacks by lookup id where the function was given them, else by place among its rows.
    :param spoiled: the first and the number of rows that a function was given at once, of which one raised; their results are null.
    :param exact: all others are as if nothing had raised.
    """

    rows: int
    named: bool
    errors: dict[int, str]
    spoiled: list[list[int]]
    exact: bool


def all_noted(folder: str) -> list[tuple[int, PythonErrors]]:
    """Return the notes of all tasks with the numbers of their partitions."""
    return [(int(path.name.partition(".")[0]), _read(path)) for path in sorted(Path(folder).iterdir())]


def _read(path: Path) -> PythonErrors:
    found = json.loads(path.read_bytes())
    return PythonErrors(**{**found, "errors": {int(row): text for row, text in found["errors"].items()}})


@contextmanager
def errors_noted(context: Any) -> Iterator[str]:
    """Have errors of Python functions noted, while the block runs, by tasks of the calling thread; yield the folder of the notes.

    :param context: of a Spark that runs on this machine.
    """
    with TemporaryDirectory(prefix="poison-errors-") as folder:
        context.setLocalProperty(NOTES, folder)
        try:
            yield folder
        finally:
            with suppress(Exception):  # the JVM may be gone; what ended the block says so
                context.setLocalProperty(NOTES, None)


class Notes:
    """The errors of one function in one task.

    :ivar rows: how many rows the function has been given.
    :ivar spoiled: see ``PythonErrors``.
    """

    def __init__(self, path: str) -> None:
        self._path, self._errors, self._named, self.rows = path, dict[int, str](), False, 0
        self.spoiled: list[tuple[int, int]] = []
        self.exact = True

    def add(self, row: int, error: str, lookup_id: int | None = None) -> None:
        """Note a row, with its traceback."""
        self._named = lookup_id is not None
        self._errors[row if lookup_id is None else lookup_id] = error

    def write(self) -> None:
        """Write the file, where there is an error."""
        if self._errors:
            of = {"rows": self.rows, "named": self._named, "errors": self._errors, "spoiled": self.spoiled, "exact": self.exact}
            Path(self._path).write_text(json.dumps(of), "utf-8")


def catch() -> None:
    """Have the workers that are forked from this process catch errors, in tasks that ask for it."""
    from pyspark import worker as untyped
    from pyspark.taskcontext import TaskContext

    worker: Any = untyped
    read_udfs, read_command = worker.read_udfs, worker.read_command
    reading = list[int]()
    notes = list[Notes]()

    def catching_udfs(serializer: Any, infile: Any, eval_type: int, *rest: Any, **more: Any) -> Any:
        reading.append(eval_type)
        try:
            function, *others = read_udfs(serializer, infile, eval_type, *rest, **more)
        finally:
            reading.clear()
        if not notes:
            return (function, *others)
        mine = notes[:]
        notes.clear()
        return (_then_written(function, mine), *others)

    def catching_command(serializer: Any, file: Any) -> Any:
        command = read_command(serializer, file)
        caught, context = CAUGHT.get(reading[0]) if reading else None, TaskContext.get()
        folder = None if caught is None or context is None else context.getLocalProperty(NOTES)
        if caught is None or folder is None or context is None:
            return command
        function, return_type = command
        notes.append(Notes(f"{folder}/{context.partitionId()}.{os.getpid()}.{len(notes)}"))
        return caught(function, return_type, notes[-1]), return_type

    worker.read_udfs, worker.read_command = catching_udfs, catching_command


def _then_written(function: Callable[..., Iterable[Any]], notes: Sequence[Notes]) -> Callable[..., Iterator[Any]]:
    def all_of_it(*given: Any) -> Iterator[Any]:
        try:
            yield from function(*given)
        finally:
            for each in notes:
                each.write()

    return all_of_it


def _row_by_row(function: Callable[..., Any], _type: Any, notes: Notes) -> Callable[..., Any]:
    """Return a function of a row that is null where it raises."""
    places = count()

    def caught(*given: Any, **named: Any) -> Any:
        row = next(places)
        notes.rows = row + 1
        try:
            return function(*given, **named)
        except StopIteration:  # Spark's own wrapper makes another error of it
            raise
        except Exception:  # noqa: BLE001  (a user's function may raise anything)
            notes.add(row, traceback.format_exc())

    return caught


def _batch_by_batch(function: Callable[..., Any], return_type: Any, notes: Notes) -> Callable[..., Any]:
    """Return a function of columns whose result is null for a batch in which it raises."""

    def caught(*columns: Any, **named: Any) -> Any:
        batch = (*columns, *named.values())
        first, size = notes.rows, _rows(batch)
        notes.rows += size

        def errors(parts: Sequence[Any]) -> Iterator[tuple[int, str]]:
            for place, part in enumerate(parts):
                try:
                    function(*part[: len(columns)], **dict(zip(named, part[len(columns) :], strict=True)))
                except Exception:  # noqa: BLE001  (a user's function may raise anything)
                    yield place, traceback.format_exc()

        try:
            return function(*columns, **named)
        except StopIteration:
            raise
        except Exception:
            if not (found := _culprits(batch, errors)):
                raise  # none of the rows alone does it
            for row, error in found.items():
                notes.add(first + row, error)
            notes.spoiled.append((first, size))
            return _nulls(batch, return_type)

    return caught


def _in_iterators(function: Callable[..., Any], return_type: Any, notes: Notes, *, alike: bool = False) -> Callable[..., Iterator[Any]]:
    """Return a function of an iterator of batches that goes on with the next batch where it raises.

    :param alike: its results have as many rows as what it is given.
    """

    def errors(parts: Iterable[Any]) -> Iterator[tuple[int, str]]:
        taken = _Taken(parts)
        for made in _on_and_on(function, taken):
            if isinstance(made, _Error):
                yield taken.place, made.trace

    def caught(batches: Iterator[Any]) -> Iterator[Any]:
        notes.exact = False  # it starts again behind an error
        taken = _Taken(batches)
        for made in _on_and_on(function, taken):
            notes.rows = taken.rows
            if not isinstance(made, _Error):
                yield made
                continue
            if not (found := _culprits(taken.last, errors)):
                raise made.error  # none of the rows alone does it
            ids, first = _lookup_ids(taken.last), taken.rows - _rows(taken.last)
            for row, error in found.items():
                notes.add(first + row, error, None if ids is None else ids[row])
            if alike:
                yield _nulls(taken.last, return_type)

    return caught


class _Error(NamedTuple):
    error: Exception
    trace: str


def _on_and_on(function: Callable[[Iterator[Any]], Iterable[Any]], taken: _Taken) -> Iterator[Any]:
    """Yield what a function makes of batches, and the error behind the last one that was taken; then it is called with those behind that one."""
    while True:
        try:
            yield from function(taken)
        except Exception as error:
            if taken.last is None:  # it raises whatever it is given
                raise
            yield _Error(error, traceback.format_exc())
            taken.last = None
        else:
            return


class _Taken:
    """Batches, of which the last one that was taken is kept.

    :ivar last: None: none was taken since it was looked at.
    :ivar place: its number.
    :ivar rows: of all that were taken.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = iter(batches)
        self.last: Any = None
        self.place, self.rows = -1, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.last = next(self._batches)
        self.place, self.rows = self.place + 1, self.rows + _rows(self.last)
        return self.last


def _culprits(batch: Any, errors: Callable[[Sequence[Any]], Iterator[tuple[int, str]]]) -> dict[int, str]:
    """Return the rows of a batch for which a function raises, with the tracebacks.

    :param errors: yields the numbers of the parts for which it does.
    """
    size, found = _rows(batch), dict[int, str]()
    step = max(isqrt(size), 1)
    starts = range(0, size, step)
    for part, _ in errors([_slice(batch, start, min(start + step, size)) for start in starts]):
        rows = range(starts[part], min(starts[part] + step, size))
        found |= {rows[place]: error for place, error in errors([_slice(batch, row, row + 1) for row in rows])}
    return found


def _rows(batch: Any) -> int:
    """Return the rows of a batch: pandas or Arrow, one column or several."""
    return _rows(batch[0]) if isinstance(batch, tuple) else batch.num_rows if hasattr(batch, "num_rows") else len(batch)


def _slice(batch: Any, start: int, stop: int) -> Any:
    if isinstance(batch, tuple):
        return tuple(_slice(column, start, stop) for column in batch)
    return batch.iloc[start:stop].reset_index(drop=True) if hasattr(batch, "iloc") else batch.slice(start, stop - start)


def _nulls(batch: Any, return_type: Any) -> Any:
    """Return a column of nulls, as a function of columns returns it."""
    one, size = batch[0] if isinstance(batch, tuple) else batch, _rows(batch)
    if not hasattr(one, "iloc"):
        from pyspark.sql.pandas.types import to_arrow_type

        return cast("Any", pa).nulls(size, to_arrow_type(return_type))
    import pandas as pd  # type: ignore[import-untyped]

    names = getattr(return_type, "names", None)
    return pd.Series([None] * size) if names is None else pd.DataFrame({name: [None] * size for name in names})


def _lookup_ids(batch: Any) -> list[int] | None:
    """Return the lookup ids of a batch's rows; None where they do not all have one."""
    names = list(batch.columns) if hasattr(batch, "iloc") and hasattr(batch, "columns") else getattr(getattr(batch, "schema", None), "names", ())
    if LOOKUP_ID not in names:
        return None
    column = batch[LOOKUP_ID] if hasattr(batch, "iloc") else batch.column(LOOKUP_ID)
    ids = column.tolist() if hasattr(column, "iloc") else column.to_pylist()
    return ids if all(isinstance(number, int) for number in ids) else None


def _alike(function: Callable[..., Any], return_type: Any, notes: Notes) -> Callable[..., Iterator[Any]]:
    return _in_iterators(function, return_type, notes, alike=True)


CAUGHT: dict[int, Callable[[Callable[..., Any], Any, Notes], Callable[..., Any]]] = {
    100: _row_by_row,  # pyspark.util.PythonEvalType: SQL_BATCHED_UDF
    101: _row_by_row,  # SQL_ARROW_BATCHED_UDF
    200: _batch_by_batch,  # SQL_SCALAR_PANDAS_UDF
    250: _batch_by_batch,  # SQL_SCALAR_ARROW_UDF
    204: _alike,  # SQL_SCALAR_PANDAS_ITER_UDF
    251: _alike,  # SQL_SCALAR_ARROW_ITER_UDF
    205: _in_iterators,  # SQL_MAP_PANDAS_ITER_UDF
    207: _in_iterators,  # SQL_MAP_ARROW_ITER_UDF
}
"""How errors of functions of each kind are caught, by the number that Spark gives the kind. Functions of groups are not among them: they mix rows."""
