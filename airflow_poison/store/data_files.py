"""Data files: where one lies, write, read and link one, say what its footer says, whether it is what was committed; rows that are not messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from airflow_poison.store.control import FORMAT_VERSION, Control, QueueState
from airflow_poison.store.disk import Folder, on_node
from airflow_poison.store.files import Claim, DataFile
from airflow_poison.values.errors import NewerFormatError, StoreUnreachableError, TableChangedError
from airflow_poison.values.events import Event, signed_by_actor
from airflow_poison.values.libraries import pa, pc, pq
from airflow_poison.values.schema import EVENT, SubQueue, events_to_table, message_schema, table_schema
from airflow_poison.values.texts import first_line

if TYPE_CHECKING:
    Bound = int | datetime | None

WAITING = frozenset({SubQueue.RETRY.value, SubQueue.POSTPONED.value})
"""Sub-queues whose files fall due, each as a whole."""
GROUP_ROWS = 10_000
"""Rows per row group. A reader of a few rows reads only the row groups that contain them."""


def write(folder: Folder, path: str, table: pa.Table) -> DataFile:
    """Write the columns of ``message_schema()`` as a new file and describe it. Not yet durable: the commit makes it so."""
    target = Path(folder.root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.select(message_schema().names), target, row_group_size=GROUP_ROWS, write_page_checksum=True)
    return describe(target, path)


def write_new(folder: Folder, sub_queue: str, move_count: int, table: pa.Table, prefix: str = "") -> DataFile:
    """Write a new file under a new name."""
    return write(folder, new_path(sub_queue, move_count, prefix), table)


def renamed(folder: Folder, file: DataFile, place: str | None = None, prefix: str = "") -> DataFile:
    """Give a file that no version names yet a new name, in the same partition or another sub-queue's. Raises TableChangedError when it is gone.

    Each try of a commit does so after it has loaded the version that it builds on: so a file that the try adds was not there under that name
    before, and the cleaner (``compaction``) can never have it in a list that is older than the version.
    """
    path = new_path(place or file.sub_queue, file.move_count, prefix)
    try:
        folder.rename(file.path, path)
    except FileNotFoundError as error:
        raise TableChangedError(gone(folder.uri, file.path)) from error
    return replace(file, path=path, sub_queue=place or file.sub_queue)


def one_row(sub_queue: str, move_count: int = 0, **cells: object) -> pa.Table:
    """Return a table of one row; columns that are not given are null."""
    row = {**cells, "sub_queue": sub_queue, "move_count": move_count}
    return pa.Table.from_pylist([row], schema=table_schema())


@contextmanager
def opened(folder: Folder, path: str, buffer_size: int = 0) -> Iterator[pq.ParquetFile]:
    """Open a committed file. Raises TableChangedError when it is gone or damaged.

    :param buffer_size: bytes that are read at once; 0: whole column chunks.
    """
    try:
        with _own_errors(folder), _parquet(folder, path, buffer_size) as parquet:
            yield parquet
    except FileNotFoundError as error:
        raise TableChangedError(gone(folder.uri, path)) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise TableChangedError(damaged(folder.uri, path, error)) from error


def _own_errors(folder: Folder) -> AbstractContextManager[None]:
    """Return a context that attributes errors to this node's cache folder, when the folder is not the table itself."""
    return on_node(folder.root, folder.uri) if folder.node else nullcontext()


def _parquet(folder: Folder, path: str, buffer_size: int) -> pq.ParquetFile:
    """Open a file; again when its copy on this node has gone since it was looked for. Raises FileNotFoundError."""
    try:
        return pq.ParquetFile(folder.here(path), buffer_size=buffer_size, page_checksum_verification=True)
    except FileNotFoundError:
        return pq.ParquetFile(folder.here(path), buffer_size=buffer_size, page_checksum_verification=True)


def read_columns(folder: Folder, path: str, names: Sequence[str]) -> pa.Table:
    """Return columns of a file as they are. Does not import pandas. Raises TableChangedError when the file is gone or damaged."""
    with opened(folder, path) as parquet:
        return parquet.read(list(names))


def read(folder: Folder, file: DataFile) -> pa.Table:
    """Return the rows of a file with the columns of ``table_schema()``. Raises TableChangedError when it is gone."""
    return placed(file, read_columns(folder, file.path, message_schema().names))


def placed(file: DataFile, rows: pa.Table) -> pa.Table:
    """Return rows of a file with the columns of ``table_schema()``."""
    table = rows.select(message_schema().names).cast(message_schema())
    table = table.append_column("sub_queue", pa.repeat(pa.scalar(file.sub_queue, pa.string()), table.num_rows))
    return table.append_column("move_count", pa.repeat(pa.scalar(file.move_count, pa.int32()), table.num_rows))


def gone(uri: str, path: str) -> str:
    """Return the words for a file that should be there and is not."""
    return (
        f"The file {path} of the queue table {uri} is gone, and no verb of this package removed it. Restore it from a backup, "
        "or find what deletes files there (VACUUM with a short retention, a cleaning job) and stop that."
    )


def damaged(uri: str, path: str, why: object) -> str:
    """Return the words for a file that cannot be read, or is not what it was."""
    cause = first_line(why, 200)
    return (
        f"The file {path} of the queue table {uri} is damaged or cannot be read: {cause}. "
        "Nothing was changed. Put it back from a backup; if others cannot be read either, look at the disk and at this user's rights."
    )


def describe(target: Path, path: str, partition: tuple[str, int] | None = None) -> DataFile:
    """Return what the footer of a file says.

    :param target: where it lies on this node.
    :param partition: its sub-queue and move count when its path does not say them.
    """
    place = partition or partition_of(path)
    assert place is not None, path
    with pq.ParquetFile(target) as parquet:
        lookup, priority = _bounds(parquet, "lookup_id"), _bounds(parquet, "priority")
        enqueued, due = _bounds(parquet, "enqueued_at"), _bounds(parquet, "due_at")
        rows = parquet.metadata.num_rows
    return DataFile(
        path=path,
        sub_queue=place[0],
        move_count=place[1],
        rows=rows,
        size=target.stat().st_size,
        min_lookup_id=cast("int", lookup[0] or 0),
        max_lookup_id=cast("int", lookup[1] or 0),
        min_priority=cast("int", priority[0] or 0),
        max_priority=cast("int", priority[1] or 0),
        min_enqueued_at=cast("datetime | None", enqueued[0]),
        min_due_at=cast("datetime | None", due[0]),
        max_due_at=cast("datetime | None", due[1]),
    )


def _bounds(parquet: pq.ParquetFile, column: str) -> tuple[Bound, Bound]:
    """Return the least and the greatest value of a column, from the footer where it has them, else from the rows."""
    metadata = parquet.metadata
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if column not in names:
        return None, None
    index = names.index(column)
    lows: list[Bound] = []
    highs: list[Bound] = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(index)
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            lows.append(statistics.min)
            highs.append(statistics.max)
        elif statistics is None or statistics.null_count != chunk.num_values:
            return _bounds_of_rows(parquet, column)
    return min(lows, default=None), max(highs, default=None)  # type: ignore[type-var]  # one column has one type


def _bounds_of_rows(parquet: pq.ParquetFile, column: str) -> tuple[Bound, Bound]:
    """Return the bounds of a column whose writer kept none (Spark's INT96 timestamps)."""
    values = parquet.read([column]).column(column)
    kept = values.cast(message_schema().field(column).type)
    return pc.min(kept).as_py(), pc.max(kept).as_py()


# Where everything of a queue lies below its root, and what paths say --------------------------------------------------


STAGE = "_stage"
CLAIM = "_claim"
CONTROL = "_ctl"
SEND_LOCK = "_send.lock"
MANIFEST = "manifest.json"

_VERSION_DIGITS = 20
_PARTITION = re.compile(r"(?:.*/)?sub_queue=([^/]+)/move_count=(\d+)/[^/]+")
_IN_COMMIT_ORDER = re.compile(r"(\d{20})-\d{6}-")


def new_path(sub_queue: str, move_count: int, prefix: str = "") -> str:
    """Return a path for a new data file that no other file has."""
    return moved_path(f"{prefix}{uuid4().hex}.parquet", sub_queue, move_count)


def moved_path(name: str, sub_queue: str, move_count: int) -> str:
    """Return the path of a file of this name (or path) in another partition. Some readers know a row's partition only by its path."""
    return f"sub_queue={sub_queue}/move_count={move_count}/{name.rpartition('/')[2]}"


def partition_of(path: str) -> tuple[str, int] | None:
    """Return (sub-queue, move count) that a path says, or None."""
    match = _PARTITION.fullmatch(path)
    return (match[1], int(match[2])) if match else None


def commit_prefix(version: int, part: int = 0) -> str:
    """Return the beginning of a name that says which version brought a file: sorted by name, such files are in commit order.

    :param part: orders the files of one version.
    """
    return f"{version:020d}-{part:06d}-"


def commit_version(path: str) -> int | None:
    """Return the version that ``commit_prefix`` has put into the name of a file; None when it did not name it."""
    match = _IN_COMMIT_ORDER.match(path.rpartition("/")[2])
    return int(match[1]) if match else None


def joined_prefix(first: int, last: int) -> str:
    """Return the name prefix of event files that were compacted from the event files of versions ``first`` to ``last``."""
    return f"{first:020d}-{last:020d}-"


def event_versions(path: str) -> tuple[int, int]:
    """Return the first and the last version whose events an event file holds."""
    first, second = path.rpartition("/")[2].split("-")[:2]
    return int(first), int(second) if is_joined(path) else int(first)


def is_joined(path: str) -> bool:
    """Whether an event file was joined from others: its name has two versions where others have one and a part."""
    return len(path.rpartition("/")[2].split("-")[1]) == _VERSION_DIGITS


# A second name: how rows come to another partition without being written again ----------------------------------------


def moved(folder: Folder, file: DataFile, target: SubQueue, move_count: int) -> DataFile:
    """Give a file a second name in its new place, another one for each try. Raises TableChangedError when it is gone."""
    new = replace(file, path=new_path(target, move_count), sub_queue=target.value, move_count=move_count)
    try:
        folder.link(file.path, new.path)
    except FileNotFoundError as error:
        raise TableChangedError(gone(folder.uri, file.path)) from error
    return new


# Checks that files exist and are complete: detects changes made without a commit -------------------------------------


_COMPARED = ("rows", "min_lookup_id", "max_lookup_id", "min_priority", "max_priority")


def check_there(folder: Folder, found: Iterable[DataFile]) -> None:
    """Raise TableChangedError for a file that is gone or has another size than the log says, StoreUnreachableError for one that cannot be seen."""
    for file in found:
        try:
            size = folder.size(file.path)
        except FileNotFoundError as error:
            raise TableChangedError(gone(folder.uri, file.path)) from error
        except OSError as error:
            raise StoreUnreachableError(_unreadable(folder.uri, file, error)) from error
        if size not in {None, file.size}:
            raise TableChangedError(changed(folder.uri, file, f"it has {size} bytes; expected {file.size}"))


def check_whole(folder: Folder, found: Iterable[DataFile]) -> None:
    """Raise TableChangedError for a file whose footer cannot be read or does not say what the log says."""
    for file in found:
        difference = footer_difference(folder, file)
        if difference:
            raise TableChangedError(changed(folder.uri, file, difference))


def footer_difference(folder: Folder, file: DataFile, names: Sequence[str] = _COMPARED) -> str:
    """Return how a file's footer differs from the log, in words; empty when it does not. Raises TableChangedError, StoreUnreachableError."""
    check_there(folder, [file])
    try:
        with _own_errors(folder):
            footer = describe(folder.here(file.path), file.path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return f"its footer cannot be read ({str(error).partition(chr(10))[0]})"
    except OSError as error:
        if error.errno is None:  # Arrow's word for a file that is no Parquet
            return f"its footer cannot be read ({str(error).partition(chr(10))[0]})"
        raise StoreUnreachableError(_unreadable(folder.uri, file, error)) from error
    return "; ".join(
        f"its footer says {name.replace('_', ' ')} {getattr(footer, name)}; expected {getattr(file, name)}"
        for name in names
        if getattr(footer, name) != getattr(file, name)
    )


def content_difference(folder: Folder, path: str) -> str:
    """Return what is wrong with the pages of a file, in words; empty where all have their checksums. Reads all of it. Raises OSError."""
    try:
        with _parquet(folder, path, 0) as parquet:
            for _ in parquet.iter_batches(GROUP_ROWS // 10, use_threads=False):
                pass
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        return f"its content has changed ({str(error).partition(chr(10))[0]})"
    return ""


def changed(uri: str, file: DataFile, difference: str) -> str:
    """Return the words for a file that is not what was committed."""
    return (
        f"The file {file.path} of the queue table {uri} is not what was committed: {difference}. Nothing was committed by this verb. Restore the "
        "file from a backup, find what writes there and stop that; 'airflow poison check' lists every such file."
    )


def _unreadable(uri: str, file: DataFile, error: OSError) -> str:
    return (
        f"The file {file.path} of the queue table {uri} cannot be read: {error.strerror or error}. Nothing was committed by this verb. "
        "Give this user the right to read and write the table's folder again, then run the task again."
    )


# The rows that are not messages: events, the control row, claims; and files as JSON ------------------------------------


CONTROL_COLUMNS = ("lookup_id", "message_type", "reason", "body")
CLAIM_COLUMNS = ("lookup_id", "message_id", "message_type", "body")
_INSTANTS = ("min_enqueued_at", "min_due_at", "max_due_at")


def write_events(folder: Folder, version: int, events: Sequence[Event], part: int = 0) -> list[DataFile]:
    """Write the events of the commit that makes ``version``; no file when there are none.

    :param part: orders several files of one commit.
    """
    if not events:
        return []
    return [write_new(folder, EVENT, 0, events_to_table(signed_by_actor(events)), prefix=commit_prefix(version, part))]


def file_to_dict(file: DataFile) -> dict[str, object]:
    """Return a file as plain JSON values."""
    values = asdict(file)
    return values | {name: values[name].isoformat() for name in _INSTANTS if values[name] is not None}


def file_from_dict(values: Mapping[str, object]) -> DataFile:
    """Return the file that ``file_to_dict`` described."""
    instants = {name: datetime.fromisoformat(str(values[name])) for name in _INSTANTS if values[name] is not None}
    return DataFile(**{**values, **instants})  # type: ignore[arg-type]  # names and types come from asdict


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError) as error:
        message = (
            f"{what} cannot be read ({type(error).__name__}: {error}): somebody else has written it. Nothing was committed by this verb. "
            "Restore the table to a version before that (RESTORE, or a backup); 'airflow poison check' names the file."
        )
        raise TableChangedError(message) from error


def control_to_row(control: Control) -> pa.Table:
    """Return the one row of the ``_ctl`` partition."""
    poison_reader = {"state": control.poison_state.value, "reason": control.poison_reason}
    parts = {"policy": dict(control.policy), "counters": dict(control.counters), "services": dict(control.services), "desk": dict(control.desk)}
    return one_row(
        CONTROL,
        lookup_id=control.format_version,
        message_type=control.state.value,
        reason=control.reason,
        body=json.dumps(parts | {"poison_reader": poison_reader}).encode(),
    )


def control_from_row(table: pa.Table, name: str) -> Control:
    """Return what ``control_to_row`` wrote. Raises NewerFormatError before anything else is looked at, TableChangedError for anything else."""
    with _in_words(f"The control row of queue {name!r}"):
        row = table.to_pylist()[0]
        version: int = row["lookup_id"]
        if version > FORMAT_VERSION:
            message = (
                f"Queue {name!r} has table format {version}; this version of airflow-poison knows formats up to {FORMAT_VERSION}. "
                "Install the version that wrote it, or a newer one, everywhere the queue is used."
            )
            raise NewerFormatError(message)
        body = json.loads(row["body"])
        poison_reader = body["poison_reader"]
        return Control(
            policy=body["policy"],
            state=QueueState(row["message_type"]),
            reason=row["reason"],
            counters=body["counters"],
            format_version=version,
            poison_state=QueueState(poison_reader["state"]),
            poison_reason=poison_reader["reason"],
            services=body["services"],
            desk=body["desk"],
        )


def claim_to_row(claim: Claim) -> pa.Table:
    """Return one row of the ``_claim`` partition."""
    body = {
        "expires_at": claim.expires_at.isoformat(),
        "exclusive": claim.exclusive,
        "earlier": list(claim.earlier),
        "given_up": claim.given_up,
        "files": [file_to_dict(file) for file in claim.files],
    }
    return one_row(
        CLAIM,
        lookup_id=claim.epoch,
        message_id=claim.key,
        message_type=claim.attempt,
        due_at=claim.expires_at,
        body=json.dumps(body).encode(),
    )


def claim_from_row(table: pa.Table) -> Claim:
    """Return what ``claim_to_row`` wrote. Raises TableChangedError for anything else."""
    with _in_words("A claim"):
        row = table.to_pylist()[0]
        body = json.loads(row["body"])
        return Claim(
            key=row["message_id"],
            epoch=row["lookup_id"],
            attempt=row["message_type"],
            expires_at=datetime.fromisoformat(body["expires_at"]),
            files=tuple(file_from_dict(values) for values in body["files"]),
            exclusive=body["exclusive"],
            earlier=tuple(body["earlier"]),
            given_up=body.get("given_up", False),
        )
