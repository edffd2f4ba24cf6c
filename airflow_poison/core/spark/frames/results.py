"""Results of units: how they are written, whom they name, and what of them lands."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.core.delivery.transform import LOOKUP_ID, VERDICT
from airflow_poison.core.errors import TransformError
from airflow_poison.core.spark.frames.function import column_named

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame


def landing(frame: DataFrame, *, verdict: bool, traced: bool) -> DataFrame:
    """Return what is written of a result: our columns only where they are read afterwards, under our names, at the end.

    :param traced: rows say where they come from.
    """
    from pyspark.sql import functions as f

    lookup_id, poison = column_named(frame, LOOKUP_ID), column_named(frame, VERDICT)
    if lookup_id is None or not (verdict or traced):
        return frame if lookup_id is None else frame.drop(lookup_id)
    others = [frame[f"`{name.replace('`', '``')}`"] for name in frame.columns if name not in {lookup_id, poison}]
    ours = [frame[lookup_id].cast("long").alias(LOOKUP_ID)]
    if verdict:
        ours.append((f.lit(None).cast("string") if poison is None else frame[poison].cast("string")).alias(VERDICT))
    return frame.select(*others, *ours)


def verdicts_in(path: Path) -> dict[int, str]:
    """Return the verdicts of a file of results; its statistics say when there is none."""
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        verdicts = [group.column(group.num_columns - 1).statistics for group in groups]  # the last column, as it was written
        if all(found is not None and found.null_count == group.num_rows for found, group in zip(verdicts, groups, strict=True)):
            return {}
        rows = file.read([LOOKUP_ID, VERDICT])
    rows = rows.filter(pc.is_valid(rows[VERDICT]))
    if rows[LOOKUP_ID].null_count:
        raise TransformError(f"The transformation returned {VERDICT} in a row whose {LOOKUP_ID} is null. Keep the column {LOOKUP_ID} as it is.")
    ids, texts = cast("list[int]", rows[LOOKUP_ID].to_pylist()), cast("list[str]", rows[VERDICT].to_pylist())
    return dict(zip(ids, texts, strict=True))


def without(path: Path, lookup_ids: Mapping[int, object], *, traced: bool) -> None:
    """Write a file of results again, without our columns and without the rows of these messages."""
    hidden = path.with_name(f".{path.name}.new")
    gone = pa.array(list(lookup_ids), pa.int64())
    with pq.ParquetFile(path) as file:
        ours = {VERDICT} if traced else {LOOKUP_ID, VERDICT}
        columns = [name for name in file.schema_arrow.names if name not in ours]
        schema = pa.schema([file.schema_arrow.field(name) for name in columns])
        if not columns:
            path.unlink()
            return
        with pq.ParquetWriter(hidden, schema, coerce_timestamps="us", allow_truncated_timestamps=True) as writer:
            for group in range(file.metadata.num_row_groups):
                rows = file.read_row_group(group, [*columns, LOOKUP_ID] if len(gone) and not traced else columns)
                if len(gone):
                    rows = rows.filter(pc.invert(pc.is_in(rows[LOOKUP_ID], gone)))
                writer.write_table(rows.select(columns).cast(schema))
    hidden.replace(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the former file
