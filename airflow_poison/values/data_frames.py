"""Data frames in memory (pandas, Polars, what Arrow's streams come from) by their columns.

A column of Python's objects has values of types of their own: Arrow would make one type of them, and Polars hands over their addresses in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Values = pa.Array[Any] | pa.ChunkedArray[Any] | list[Any]
    """Of a column, as Arrow has them; a list: each is of a type of its own."""

_NOT_ARROW = ("Object", "Int128")
"""Types of Polars that Arrow does not have."""
_OF_PANDAS = ("pandas.period", "pandas.interval")
"""Extensions of Arrow that are read as numbers by all but pandas."""


def is_missing(value: object) -> bool:
    """Whether a value is None, or what pandas and NumPy have in its place: NA, NaT, masked."""
    name = type(value).__name__
    return value is None or name in {"NAType", "NaTType", "MaskedConstant"} or (name == "datetime64" and value != value)  # noqa: PLR0124  (NaT)


def is_frame(value: object) -> bool:
    """Whether a value is a data frame in memory."""
    return _is_of_pandas(value) or hasattr(value, "__arrow_c_stream__")


def read_once(value: Any) -> Any:
    """Return a table of what can be read once alone, as readers of batches are; other values as they are."""
    is_kept = not hasattr(value, "__arrow_c_stream__") or hasattr(value, "num_columns") or _is_of_pandas(value) or _is_of_polars(value)
    return value if is_kept else table_of(value)


def has_objects(frame: object) -> bool:
    """Whether a data frame has a column of which ``columns_of_frame`` may return a list, or a name that it refuses."""
    if _is_of_pandas(frame) or _is_of_polars(frame):
        columns: Any = frame
        return any(str(kind) == "object" or _is_foreign(kind) for kind in columns.dtypes) or any("\0" in str(name) for name in columns.columns)
    return False


def columns_of_frame(frame: Any) -> Sequence[tuple[str, Values]]:
    """Return the names and values of a data frame's columns. The index of pandas is none; what it has for a missing value (NA, NaT, NaN) is null.

    Raises ValueError for what is no data frame, and for a name with NUL, at which Arrow would end it.
    """
    names = frame.columns if _is_of_pandas(frame) or _is_of_polars(frame) else ()
    if (wrong := next((name for name in map(str, names) if "\0" in name), None)) is not None:
        raise ValueError(f"a column has the name {wrong!r}; names have no NUL")
    columns = _columns(frame)
    if (wrong := name_with_nul(pa.field(name, values.type) for name, values in columns if not isinstance(values, list))) is not None:
        raise ValueError(f"a column, or a field in one, has the name {wrong!r}; names have no NUL")
    return columns


def name_with_nul(fields: Iterable[pa.Field[Any]]) -> str | None:
    """Return a name with NUL, also of a field within others; None: there is none."""
    for field in fields:
        kind: Any = field.type
        within = name_with_nul(kind.field(number) for number in range(kind.num_fields))
        if (found := field.name if "\0" in field.name else within) is not None:
            return found
    return None


def _columns(frame: Any) -> Sequence[tuple[str, Values]]:
    if _is_of_pandas(frame):
        return [(str(name), _of_series(frame.iloc[:, place])) for place, name in enumerate(frame.columns)]
    if _is_of_polars(frame):
        return [(each.name, each.to_list() if _is_foreign(each.dtype) else table_of(each.to_frame()).column(0)) for each in frame.get_columns()]
    table = table_of(frame)
    return [*zip(table.schema.names, table.columns, strict=True)]


def table_of(frame: Any) -> pa.Table:
    """Return a data frame as a table of Arrow; its own tables and batches keep names that its interface to others cuts. Raises ValueError."""
    if isinstance(frame, pa.RecordBatchReader):
        return frame.read_all()
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    try:
        return frame if isinstance(frame, pa.Table) else pa.table(frame)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{type(frame).__name__} is no data frame with columns of Arrow ({error}); of a Series make one: .to_frame()") from error


def _of_series(series: Any) -> Values:
    if str(series.dtype) != "object":
        try:
            found = pa.Array.from_pandas(series)
        except (TypeError, ValueError, ArithmeticError, NotImplementedError):  # Arrow's errors are such
            found = None
        if found is not None and getattr(found.type, "extension_name", "") not in _OF_PANDAS:
            return found
    return [None if is_missing(value) or (type(value) is float and value != value) else value for value in series]  # noqa: PLR0124  (NaN)


def _is_foreign(kind: object) -> bool:
    return any(name in str(kind) for name in _NOT_ARROW)


def _is_of_pandas(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc") and hasattr(value, "columns")


def _is_of_polars(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "polars" and hasattr(value, "get_columns")
