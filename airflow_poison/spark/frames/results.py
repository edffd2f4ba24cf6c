"""Results of units: how they are written, which messages they name, and which of their rows land."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_poison.delivery.sessions.verdicts import MAX_TEXT, cut, type_name
from airflow_poison.delivery.transform import VERDICT
from airflow_poison.spark.frames.function import column_named
from airflow_poison.spark.frames.messages import quoted
from airflow_poison.values.errors import OutputRowError, TransformError
from airflow_poison.values.failures import Failure, FailureKind
from airflow_poison.values.schema import LOOKUP_ID

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from airflow_poison.outputs.output import Output
    from airflow_poison.spark.frames.function import Result

_UNFIT = "OutputRowError: "
"""Begins the verdicts of ours, about rows that do not fit their output."""


@dataclass(frozen=True, slots=True)
class Written:
    """What is written of a result.

    :param frames: by name, without ``lookup_id`` and ``_poison``, but where these are read afterwards: then they are the last columns.
    :param judged: ``_poison`` is there: it says what is wrong with a row's message.
    """

    frames: Mapping[str, DataFrame]
    judged: bool


def written(result: Result, outputs: Sequence[Output]) -> Written:
    """Return what is written of a result.

    A null where its output wants a value is a verdict; where rows do not name their messages it fails the job.
    """
    from pyspark.sql import functions as f

    by_name = {output.name: output for output in outputs}
    wanted = {key: _wanted(frame, by_name.get(key)) for key, frame in result.frames.items()}
    named = all(column_named(frame, LOOKUP_ID) for frame in result.frames.values())
    judged = result.verdict or (named and any(wanted.values()))
    frames = {}
    for key, frame in result.frames.items():
        lookup_id, poison = column_named(frame, LOOKUP_ID), column_named(frame, VERDICT)
        columns = {name: frame[quoted(name)] for name in frame.columns if name not in {lookup_id, poison}}
        frame = _with_all(frame, by_name.get(key))  # noqa: PLW2901  (its conditions may name any column of the output)
        texts = [f.when(~f.coalesce(f.expr(fits), f.lit(False)), f.lit(f"{_UNFIT if named else ''}{text}")) for text, fits in wanted[key].items()]  # noqa: FBT003
        if not named and texts and columns:
            first = next(iter(columns))
            broken = f.coalesce(*texts)
            columns[first] = f.when(broken.isNotNull(), f.raise_error(broken)).otherwise(columns[first]).alias(first)
        ours: list[Column] = []
        if lookup_id is not None and (judged or outputs):
            ours.append(frame[lookup_id].cast("long").alias(LOOKUP_ID))
        if judged:
            said = f.lit(None).cast("string") if poison is None else frame[poison].cast("string")
            ours.append(reduce(f.coalesce, texts, said).alias(VERDICT))
        frames[key] = frame.select(*columns.values(), *ours)
    return Written(frames, judged)


def _wanted(frame: DataFrame, output: Output | None) -> dict[str, str]:
    """Return what to say of rows that do not fit an output, and the expression of Spark that is true of those that do.

    Columns must have a value where Spark knows no more than that they may be null; and the output's table may have conditions.
    """
    if output is None or output.columns is None:
        return {}
    must = [field.name for field in output.columns if not field.nullable and frame.schema[field.name].nullable]
    found = {f"Column {name!r} of {output.named} must have a value; the row has none.": f"{quoted(name)} IS NOT NULL" for name in must}
    rules = {} if output.rules is None else output.rules.for_spark()
    return found | {f"A row does not fit {output.named}: {why}.": fits for why, fits in rules.items()}


def _with_all(frame: DataFrame, output: Output | None) -> DataFrame:
    """Return a frame with the columns that its output has and it does not, which are null."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    if output is None or output.columns is None or output.rules is None:
        return frame
    there = set(frame.columns)
    more = {field.name: f.lit(None).cast(from_arrow_type(field.type)) for field in output.columns if field.name not in there}
    return frame.withColumns(more) if more else frame


def verdicts_in(path: Path) -> dict[int, Failure]:
    """Return the messages that a file of results names; its statistics say when it names none. Raises TransformError."""
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
    return {number: _failure(text) for number, text in zip(ids, texts, strict=True)}


def _failure(text: str) -> Failure:
    of_ours = text.startswith(_UNFIT)
    return Failure(FailureKind.EXCEPTION, UNFIT if of_ours else VERDICT, cut(text.removeprefix(_UNFIT) if of_ours else text, MAX_TEXT))


UNFIT = type_name(OutputRowError(""))
"""The type of failures of rows that do not fit their output."""


def landing_in(path: Path, named: Collection[int], *, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of results that land; ``lookup_id``, where the transformation has kept it, is their last column.

    :param named: lookup ids of messages whose rows do not.
    :param most: rows of a batch.
    """
    gone = pa.array(np.fromiter(named, np.int64, len(named)))
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        columns = [name for name in file.schema_arrow.names if name != VERDICT]
        for batch in file.iter_batches(batch_size=most, columns=columns) if columns not in ([], [LOOKUP_ID]) else ():
            rows = batch.filter(pc.invert(pc.is_in(batch.column(LOOKUP_ID), gone))) if len(gone) else batch
            if rows.num_rows:
                yield rows
