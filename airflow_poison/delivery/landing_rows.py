"""Rows that land in outputs, as rows of a queue's table (partition ``_output``) until they are there: Arrow in the body, the output beside it."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_poison.outputs.output import OF_NONE, PROVENANCE, Output, is_together, rows_kept, rows_of_stream, stream_of, table_kept, to_batch
from airflow_poison.outputs.row_files import FileOfRows
from airflow_poison.outputs.values import all_nullable
from airflow_poison.values.errors import ClaimLostError
from airflow_poison.values.schema import LANDING, LOOKUP_ID, STANDS_FOR, table_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_poison.delivery.returned import ReturnedBy
    from airflow_poison.delivery.stage import StageJob

MOST_ROWS = 20_000
"""Of an output in one row of the partition."""
_MOST_SAID = 2**31 - 1
NO_OWNER = 0
"""In place of a lookup id, for a row that is not known to be of one message."""
_DECLARED, _FILES, _COLUMNS = "poison.output", "poison.files", "poison.columns"
"""The properties that say what was declared of the output, in which files below it the rows are, where they are not in the body, and with which
columns it is made then, where these are declared."""


def landing_rows(job: StageJob, returned: Iterable[ReturnedBy], known: Callable[[str], pa.Schema | None], at: datetime) -> list[pa.Table]:
    """Return what messages returned as rows of the partition ``_output`` (``table_schema()``), one for many returned rows.

    :param known: the columns of an output by its name, with which the rows were checked.
    Raises ClaimLostError when they are gone.
    """
    outputs = {output.name: output for output in job.outputs}
    of_each: defaultdict[str, _Rows] = defaultdict(_Rows)
    for lookup_ids, kept in returned:
        if is_together(kept):
            name, owners, batch = table_kept(kept)
            if (mine := np.isin(owners, lookup_ids)).any():
                of_each[name].add_table(owners[mine], batch if mine.all() else batch.filter(pa.array(mine)))
            continue
        for marked, some in rows_kept(kept):
            name = marked.removesuffix(OF_NONE)
            of_each[name].add(lookup_ids[0], some, lookup_ids[0] if name == marked else NO_OWNER)
    found = []
    for name, rows in of_each.items():
        output, columns = outputs[name], known(name)
        if columns is None:
            raise ClaimLostError(f"The columns of the output {name!r} are gone with the stage of this pass: a later holder of its claim has them.")
        batch, owners = rows.joined(columns), np.array(rows.owners, np.int64)
        if output.provenance:
            batch = _with_provenance(batch, job, rows.origins, at)
        found += [
            _as_row(output, batch.slice(start, MOST_ROWS), at, owners[start : start + MOST_ROWS]) for start in range(0, batch.num_rows, MOST_ROWS)
        ]
    return found


class _Rows:
    """The rows of one output, in the order in which they were delivered.

    :ivar origins: the message that returned each.
    :ivar owners: the same, ``NO_OWNER`` where it is not known which message a row is of.
    """

    def __init__(self) -> None:
        self.origins: list[int] = []
        self.owners: list[int] = []
        self._tables: list[pa.RecordBatch | list[tuple[Any, ...]]] = []
        self._rows: list[tuple[Any, ...]] | None = None  # the last one of these, where it may have more

    def add(self, lookup_id: int, rows: Sequence[tuple[Any, ...]], owner: int) -> None:
        """Take rows of one message."""
        if self._rows is None:
            self._rows = []
            self._tables.append(self._rows)
        self._rows += rows
        self.origins += [lookup_id] * len(rows)
        self.owners += [owner] * len(rows)

    def add_table(self, owners: NDArray[np.int64], rows: pa.RecordBatch) -> None:
        """Take rows of several messages."""
        self._rows = None
        self._tables.append(rows)
        self.origins += owners.tolist()
        self.owners += owners.tolist()

    def joined(self, columns: pa.Schema) -> pa.RecordBatch:
        """Return all rows; a row that was returned before a column was known has no value there."""
        batches = [to_batch(rows, columns) if isinstance(rows, list) else _widened(rows, columns) for rows in self._tables]
        return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _widened(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(columns):
        return batch
    names = batch.schema.names
    cells = [batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type) for field in columns]
    return pa.RecordBatch.from_arrays(cells, schema=columns)


def landing_frame(job: StageJob, output: Output, batch: pa.RecordBatch, at: datetime) -> pa.Table:
    """Return rows that a transformation made as a row of the partition ``_output``.

    :param batch: its columns fit the output, as far as that has columns; the last one is ``lookup_id`` where the transformation has kept it.
    """
    ids = [NO_OWNER] * batch.num_rows
    if LOOKUP_ID in batch.schema.names:
        ids = [number or NO_OWNER for number in batch.column(LOOKUP_ID).to_pylist()]
        batch = batch.drop_columns([LOOKUP_ID])
    if output.columns is None:  # that no row of this transformation is null in a column says nothing of later ones
        batch = batch.cast(all_nullable(batch.schema))
    else:
        more = [field for field in batch.schema if field.name not in output.columns.names]
        columns = [
            batch.column(field.name).cast(field.type) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
            for field in output.columns
        ]
        schema = pa.schema([*output.columns, *more])
        batch = pa.RecordBatch.from_arrays([*columns, *(batch.column(field.name) for field in more)], schema=schema)
    if output.provenance:
        batch = _with_provenance(batch, job, ids, at)
    return _as_row(output, batch, at, ids)


def landing_files(output: Output, files: Sequence[FileOfRows], at: datetime) -> pa.Table:
    """Return files with rows for an output, which are below it already, as a row of the partition ``_output``."""
    declared = {} if output.columns is None else {_COLUMNS: b64encode(output.columns.serialize()).decode()}
    return _row(output, b"", at, sum(file.rows for file in files), {_FILES: json.dumps(files), **declared})


def _with_provenance(batch: pa.RecordBatch, job: StageJob, lookup_ids: Sequence[int], at: datetime) -> pa.RecordBatch:
    size, instant = batch.num_rows, pa.timestamp("us", "UTC")
    columns: list[pa.Array[Any]] = [
        pa.repeat(job.queue, size),
        pa.array(lookup_ids, pa.int64()),
        pa.repeat(job.key, size),
        pa.repeat(pa.scalar(at, instant), size),
    ]
    schema = batch.schema
    for name, column in zip(PROVENANCE, columns, strict=True):
        schema = schema.append(pa.field(name, column.type))
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)


def _as_row(output: Output, batch: pa.RecordBatch, at: datetime, owners: Sequence[int] | NDArray[np.int64]) -> pa.Table:
    return _row(output, stream_of(batch, owners), at, batch.num_rows, {})


def _row(output: Output, body: bytes, at: datetime, rows: int, more: Mapping[str, str]) -> pa.Table:
    declared = {"uri": output.uri, "keys": list(output.keys), "evolve": output.evolve}
    row = {
        "body": body,
        "message_type": output.name,
        "properties": [(_DECLARED, json.dumps(declared)), *more.items()],
        "enqueued_at": at,
        STANDS_FOR: min(rows, _MOST_SAID),
        "sub_queue": LANDING,
        "move_count": 0,
    }
    return pa.Table.from_pylist([row], schema=table_schema())


class Landing(NamedTuple):
    """Rows on their way to an output, as one file of the partition has them.

    :param batches: of the rows, in the order in which they were delivered.
    :param owners: for each batch the lookup ids of the messages that its rows are of; ``NO_OWNER``: it is not known.
    :param files: with further rows, below the output; of no message.
    """

    output: Output
    batches: list[pa.RecordBatch]
    owners: list[NDArray[np.int64]]
    files: list[FileOfRows]

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(batch.num_rows for batch in self.batches) + sum(file.rows for file in self.files)

    def without(self, messages: Collection[int]) -> Landing:
        """Return the rows of other messages; without ``NO_OWNER``, too, where that is among them."""
        if not messages:
            return self
        stay = [~np.isin(owners, list(messages)) for owners in self.owners]
        batches = [batch.filter(pa.array(mask)) for batch, mask in zip(self.batches, stay, strict=True)]
        owners = [owners[mask] for owners, mask in zip(self.owners, stay, strict=True)]
        return Landing(self.output, batches, owners, [] if NO_OWNER in messages else self.files)


def landings_of(rows: pa.Table) -> list[Landing]:
    """Return what a file of the partition holds, those for one output together."""
    found: dict[str, Landing] = {}
    for row in rows.select(["body", "message_type", "properties"]).to_pylist():
        properties = dict(row["properties"])
        declared: Mapping[str, Any] = json.loads(properties[_DECLARED])
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(properties[_COLUMNS]))) if _COLUMNS in properties else None
        output = Output(row["message_type"], declared["uri"], schema, keys=tuple(declared["keys"]), evolve=declared["evolve"])
        landing = found.setdefault(f"{output.name}|{declared}|{schema}", Landing(output, [], [], []))
        if (files := properties.get(_FILES)) is not None:
            landing.files.extend(FileOfRows(*each) for each in json.loads(files))
            continue
        batch, owners, _ = rows_of_stream(row["body"])
        landing.batches.append(batch)
        landing.owners.append(np.full(batch.num_rows, NO_OWNER) if owners is None else owners)
    return list(found.values())
