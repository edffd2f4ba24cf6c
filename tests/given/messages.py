"""Batches for the tests of server sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from collections.abc import Sequence


def batch_of(bodies: Sequence[bytes | str | None], first_id: int = 0, abort_count: int = 0, move_count: int = 0) -> pa.RecordBatch:
    """Return a batch of messages with consecutive lookup ids."""
    number = len(bodies)
    schema = message_schema().append(pa.field("move_count", pa.int32()))
    values: dict[str, pa.Array[Any]] = {
        "lookup_id": pa.array(range(first_id, first_id + number), pa.int64()),
        "message_id": pa.array([f"m{row}" for row in range(number)]),
        "body": pa.array([body.encode() if isinstance(body, str) else body for body in bodies], pa.binary()),
        "priority": pa.array([5] * number, pa.int32()),
        "abort_count": pa.array([abort_count] * number, pa.int32()),
        "move_count": pa.array([move_count] * number, pa.int32()),
    }
    columns = [values.get(field.name, pa.nulls(number, field.type)).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
