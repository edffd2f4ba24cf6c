"""The rows that remain of delivered messages: with new counts, errors and places, and where to when they leave for another queue."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_poison.core.delivery.ends import due_at_of, name_of, partition_of
from airflow_poison.core.delivery.sessions.words import crashes_of
from airflow_poison.core.policies.decisions import Dispose, Disposition
from airflow_poison.core.policies.settings import LARGEST
from airflow_poison.core.schema import DESTINATION, OUTBOX, message_schema, table_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from airflow_poison.core.delivery.delivered import Delivered
    from airflow_poison.core.delivery.ends import End
    from airflow_poison.core.failures import Failure, FailureKind
    from airflow_poison.core.schema import SubQueue

_SENDERS = "the sender's dead-letter queue"


def remaining(delivered: Delivered, members: Sequence[int], end: End, read_from: SubQueue) -> list[pa.Table]:
    """Return the members' rows where the end keeps them, with their new counts and error, and the reports of a disposition.

    :param read_from: the sub-queue that they were read from; what is untouched stays there.
    """
    partition = partition_of(end, read_from)
    if partition is None:
        return []
    rows = delivered.batch.take(pa.array(members, pa.int64()))
    failures = [delivered.failures.get(row) for row in members]
    size = len(members)
    changed: dict[str, pa.Array[Any]] = {
        "abort_count": _constant(end.counts.abort_count, size),
        "move_count": _constant(end.counts.move_count, size),
        "crash_count": _crash_counts(rows, crashes_of(delivered.words)[np.asarray(members)]),
        "due_at": pa.array([due_at_of(end)] * size, message_schema().field("due_at").type),
        "last_error": _last_errors(rows, failures),
        "reason": pa.array([_reason(end) or summary(failure) for failure in failures], pa.string()),
        "sub_queue": pa.array([partition] * size, pa.string()),
    }
    if isinstance(end, Dispose) and partition == OUTBOX:
        changed["properties"] = _properties([_addressed(delivered.properties(row), end) for row in members])
    columns = [changed[name] if name in changed else rows.column(name) for name in table_schema().names]
    kept = pa.table(columns, schema=table_schema())
    return [kept, *_reports(kept, end)]


def _reports(disposed: pa.Table, end: End) -> Iterator[pa.Table]:
    """Yield the report messages of a disposition: copies of the messages with as much of the body as was asked for (spec WMQ-24)."""
    for report in end.reports if isinstance(end, Dispose) else ():
        bodies = [(body or b"")[: report.data] for body in disposed.column("body").to_pylist()]
        given = {DESTINATION: report.to, "JMS_IBM_Feedback": str(report.feedback)}
        changed: dict[str, pa.Array[Any]] = {
            "body": pa.array(bodies, pa.binary()),
            "properties": _properties([given] * disposed.num_rows),
            "sub_queue": pa.array([OUTBOX] * disposed.num_rows, pa.string()),
        }
        columns = [changed[name] if name in changed else disposed.column(name) for name in table_schema().names]
        yield pa.table(columns, schema=table_schema())


def fingerprint(failure: Failure) -> str:
    """Return 12 hexadecimal digits that failures of the same type at the same place share."""
    return _fingerprint(failure.kind, failure.type, failure.trace)


@lru_cache(1_000)
def _fingerprint(kind: FailureKind, type_: str, trace: str) -> str:
    frames = [line.strip() for line in trace.splitlines() if line.lstrip().startswith("File ")]
    return hashlib.sha256(f"{kind}|{type_}|{frames[-1] if frames else ''}".encode()).hexdigest()[:12]


def summary(failure: Failure | None) -> str | None:
    """Return a failure in one line; None for none."""
    return None if failure is None else f"{failure.type}: {failure.text}".splitlines()[0][:200]


def _reason(end: End) -> str | None:
    """Return why a message leaves for another queue, one line; None for one that does not."""
    if not isinstance(end, Dispose) or (end.how is Disposition.DROP and not end.to_dead_letter) or end.how is Disposition.MOVE_TO_POISON:
        return None
    return f"{name_of(end)}: for {end.destination or _SENDERS}"


def _addressed(properties: Mapping[str, str], end: Dispose) -> dict[str, str]:
    """Return the properties of a message that leaves; where it goes is not its sender's to say."""
    kept = {name: value for name, value in properties.items() if name != DESTINATION}
    return kept | ({DESTINATION: end.destination, **end.headers} if end.how is Disposition.SEND else {})


def _properties(cells: Sequence[Mapping[str, str]]) -> pa.Array[Any]:
    column: pa.Array[Any] = pa.array([list(cell.items()) for cell in cells], message_schema().field("properties").type)
    return column


def _constant(value: int, size: int) -> pa.Array[Any]:
    return pa.array(np.full(size, min(value, LARGEST), np.int32))


def _crash_counts(rows: pa.RecordBatch, crashes: NDArray[np.int32]) -> pa.Array[Any]:
    before = [count or 0 for count in rows.column("crash_count").to_pylist()]
    return pa.array([min(old + int(new), LARGEST) for old, new in zip(before, crashes, strict=True)], pa.int32())


def _last_errors(rows: pa.RecordBatch, failures: Sequence[Failure | None]) -> pa.Array[Any]:
    """Return the errors column: the failures of this pass, and what stood there where a message had none."""
    before = rows.column("last_error").to_pylist() if None in failures else [None] * len(failures)
    of_failures = {failure: _error_cell(failure) for failure in {*failures} if failure is not None}
    cells = [of_failures[failure] if failure is not None else former for failure, former in zip(failures, before, strict=True)]
    column: pa.Array[Any] = pa.array(cells, message_schema().field("last_error").type)
    return column


def _error_cell(failure: Failure) -> dict[str, str]:
    return {
        "kind": failure.kind.value,
        "type": failure.type,
        "message": failure.text,
        "fingerprint": fingerprint(failure),
        "trace": failure.trace,
    }
