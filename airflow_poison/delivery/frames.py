"""Frames: the messages of one Arrow batch as handlers of batches see them; the bodies are parsed once, however often they are handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from airflow_poison.delivery.bodies import columns_of
from airflow_poison.values.ddl import parse_ddl
from airflow_poison.values.schema import FRAME_COLUMNS, LOOKUP_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd  # type: ignore[import-untyped]  # its stubs are no dependency
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_poison.delivery.handlers import Batching
    from airflow_poison.rules.decisions import Counts
    from airflow_poison.values.errors import BodyError


class Frames:
    """Frames of one batch.

    :param rows: which rows may be asked for; no other body is parsed.
    :ivar failures: why bodies do not fit the schema, by row.
    """

    def __init__(self, batch: pa.RecordBatch, batching: Batching, rows: NDArray[np.intp]) -> None:
        import pyarrow as pa

        self._batching = batching
        self.failures: dict[int, BodyError] = {}
        if batching.schema is None:
            self._table = pa.Table.from_batches([batch]).select(list(FRAME_COLUMNS))
            return
        is_all = len(rows) == batch.num_rows
        bodies = batch.column("body") if is_all else batch.column("body").take(rows)
        columns, failures = columns_of(bodies, parse_ddl(batching.schema))
        if not is_all:  # the others are null, so that a row has the same place everywhere
            places = np.full(batch.num_rows, -1)
            places[rows] = np.arange(len(rows))
            columns = columns.take(pa.array(places, pa.int64(), mask=places < 0))
            failures = {int(rows[place]): error for place, error in failures.items()}
        self._table, self.failures = columns.add_column(0, LOOKUP_ID, batch.column(LOOKUP_ID)).combine_chunks(), failures

    def frame(self, rows: NDArray[np.intp], counts: Callable[[], Sequence[Counts]]) -> Any:
        """Return the frame of some rows, ascending.

        :param counts: returns those that this delivery sees, where they are columns of the frame.
        """
        import pyarrow as pa

        first, number = int(rows[0]), len(rows)
        table = self._table.slice(first, number) if int(rows[-1]) - first + 1 == number else self._table.take(rows)
        if self._batching.schema is None:
            seen = counts()
            for name in ("abort_count", "move_count"):
                column = pa.array([getattr(each, name) for each in seen], pa.int32())
                table = table.set_column(table.schema.get_field_index(name), name, column)
        return self._as_wanted(table)

    def lookup_ids(self, rows: NDArray[np.intp]) -> list[int]:
        """Return the lookup ids of some rows."""
        return cast("list[int]", self._table[LOOKUP_ID].take(rows).to_pylist())

    def _as_wanted(self, table: pa.Table) -> Any:
        if self._batching.kind == "pandas":
            return as_pandas(table)
        if self._batching.kind == "polars":
            import polars as pl

            return pl.from_arrow(table)
        return table


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """Return a table as a pandas DataFrame, each column of a dtype that its type decides, whether there is a null in it or not.

    Whole numbers, floats and booleans are of the nullable dtypes of pandas: a null is ``NA``, and no number goes through a float. What is nested is
    Python's own: lists, and dicts for structs and maps.
    """
    import pandas as pd
    import pyarrow as pa

    dtypes = {
        pa.bool_(): pd.BooleanDtype(),
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.float32(): pd.Float32Dtype(),
        pa.float64(): pd.Float64Dtype(),
    }
    frame = table.to_pandas(types_mapper=dtypes.get, maps_as_pydicts="strict")
    for place, column in enumerate(table.columns):
        if pa.types.is_nested(column.type):
            values = [_plain(value, column.type) for value in column.to_pylist()]
            frame.isetitem(place, pd.Series(values, frame.index, object))
    return frame


def _plain(value: Any, kind: Any) -> Any:
    """Return a nested value with dicts for the maps in it, which Arrow has as lists of pairs."""
    import pyarrow as pa

    of: Any = pa.types
    if value is None or not of.is_nested(kind):
        return value
    if of.is_map(kind):
        return {key: _plain(each, kind.item_type) for key, each in value}
    if of.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    return [_plain(each, kind.value_type) for each in value]
