"""Outputs: tables where the rows land that handlers return; which rows fit into one, and such rows on their way there.

A row is checked where it is returned, so that one that does not fit is a failure of its message. From there it travels as a tuple of values in the
order of the output's columns, from the task on as Arrow (``_output`` in the queue's own table), until it is in the output.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from airflow_poison.core.ddl import column_names, ddl_type, parse_ddl
from airflow_poison.core.errors import OutputRowError, SettingError
from airflow_poison.core.schema import LOOKUP_ID
from airflow_poison.core.texts import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    Checked = Callable[[Any], Any]

ONLY = "output"
"""The name of an output that is declared alone."""
_LONGEST = 100
PROVENANCE = ("_queue", "_lookup_id", "_pass", "_received_at")
"""Columns that say where a row comes from: text, bigint, text, timestamp."""


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """A table where returned rows land, or a function that they are given to.

    :param name: as handlers call it where there are several.
    :param uri: of the Delta table; empty: the rows go to the pass's ``deliver`` function.
    :param schema: of the rows, as DDL text or as an Arrow schema; None: that of the first rows, as soon as there are any.
    :param keys: rows replace rows of the table with the same values here; none: they are added.
    :param evolve: columns that the table does not have are added to it.
    :param provenance: rows say where they come from (``PROVENANCE``).
    :param alone: it is the only one, and what is returned are its rows.
    """

    name: str = ONLY
    uri: str = ""
    schema: pa.Schema | str | None = None
    keys: tuple[str, ...] = ()
    evolve: bool = False
    provenance: bool = False
    alone: bool = True

    @property
    def columns(self) -> pa.Schema | None:
        """The schema as Arrow."""
        if not isinstance(self.schema, str):
            return self.schema
        return parse_ddl(self.schema, "output_schema")


def outputs_of(
    output: object = None,
    *,
    schema: object = None,
    keys: object = None,
    evolve: bool = False,
    provenance: bool = False,
    deliver: bool = False,
) -> tuple[Output, ...]:
    """Return the outputs that a user declares; none when nothing is. Raises SettingError.

    :param output: path or URI of a Delta table; or a mapping of names to such.
    :param schema: DDL text (``"id bigint, name string"``) or an Arrow schema; for several outputs a mapping.
    :param keys: column names; for several outputs a mapping.
    :param deliver: the rows go to a function instead.
    """
    if output is None and not deliver:
        for name, value in (("output_schema", schema), ("output_keys", keys)):
            if value:
                raise SettingError(name, value, "a setting of an output; declare output=... too")
        return ()
    if output is not None and deliver:
        raise SettingError("output", output, "an output or a deliver function, not both")
    alone = not isinstance(output, Mapping)
    uris = {ONLY: "" if deliver else _uri(output)} if not isinstance(output, Mapping) else {_name(name): _uri(uri) for name, uri in output.items()}
    if not uris:
        raise SettingError("output", output, "a path or URI of a Delta table, or a mapping of names to such")
    twice = {uri for uri in uris.values() if list(uris.values()).count(uri) > 1}
    if twice:
        raise SettingError("output", min(twice), "every table once; two outputs are this one")
    schemas = _by_name("output_schema", schema, uris, alone=alone)
    of_keys = _by_name("output_keys", keys, uris, alone=alone)
    found = []
    for name, uri in uris.items():
        given, its_keys = schemas.get(name), _keys(of_keys.get(name))
        there = _column_names(given)
        missing = [key for key in its_keys if given is not None and key not in there and not evolve]
        if missing:
            raise SettingError("output_keys", missing[0], f"a column of the schema: {', '.join(there)}")
        found.append(Output(name, uri, cast("pa.Schema | str | None", given), its_keys, evolve, provenance, alone))
    return tuple(found)


def _uri(given: object) -> str:
    if isinstance(given, (str, os.PathLike)):
        uri = os.fspath(given)
        if isinstance(uri, str) and uri.strip():
            return uri.removeprefix("file://").rstrip("/") or "/"
    raise SettingError("output", given, "a path or URI of a Delta table, or a mapping of names to such")


def _name(given: object) -> str:
    if isinstance(given, str) and given.isidentifier():
        return given
    raise SettingError("output", given, "names of outputs like 'landed': letters, digits and underscores")


def _by_name(setting: str, given: object, names: Mapping[str, str], *, alone: bool) -> Mapping[str, object]:
    """Return a setting by the names of the outputs."""
    if given is None or (not given and not isinstance(given, str)):
        return {}
    if alone:
        return {ONLY: given}
    if not isinstance(given, Mapping):
        raise SettingError(setting, given, f"a mapping of the outputs' names: {', '.join(names)}")
    other = next((name for name in given if name not in names), None)
    if other is not None:
        raise SettingError(setting, other, f"a name of an output: {', '.join(names)}")
    return given


def _column_names(schema: object) -> list[str]:
    """Return the names of a schema, which may be none. Raises SettingError for what is no schema."""
    if schema is None:
        return []
    if isinstance(schema, str):
        return column_names(schema, "output_schema")
    import pyarrow as pa

    if isinstance(schema, pa.Schema):
        return schema.names
    raise SettingError("output_schema", schema, "DDL like 'id bigint, name string', or an Arrow schema")


def _keys(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(key, str) and key for key in given):
        raise SettingError("output_keys", given, "a list of column names, like ['id']")
    return tuple(given)


# Rows that fit ---------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of an output.

    :param fits: returns a value as it is kept; raises ValueError, TypeError for one that does not fit. None: its type is not known yet.
    """

    name: str
    kind: pa.DataType
    nullable: bool
    fits: Checked | None


class Fitting:
    """What fits into one output, as far as this process knows.

    :param learn: given a column's name and type when a row has one that is not known, or whose type was not; returns the columns from now on. None:
        all are known.
    """

    def __init__(self, output: Output, learn: Callable[[Mapping[str, pa.DataType]], pa.Schema] | None) -> None:
        self._output, self._learn = output, learn
        self._columns: list[Column] = []
        self._places: dict[str, int] = {}
        if output.columns is not None:
            self._know(output.columns)

    def _know(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._columns = [
            Column(field.name, field.type, field.nullable, None if pa.types.is_null(field.type) else checked_by(field.type)) for field in schema
        ]
        self._places = {column.name: place for place, column in enumerate(self._columns)}

    def has(self, column: str) -> bool:
        """Return whether the output has a column."""
        return column in self._places

    def row(self, given: object) -> tuple[Any, ...]:
        """Return a row's values in the order of the columns. Raises OutputRowError."""
        cells = given if type(given) is dict else _cells(given)
        if cells is None:
            raise OutputRowError(
                f"The handler returned {_shown(given)} for {self._named}; expected rows: a mapping, a Row, a dataclass or a named tuple each."
            )
        if not cells and not self._columns:
            raise OutputRowError(f"A row for {self._named} has no columns (lookup_id is none of them); return rows with some, or nothing.")
        found, values = 0, []
        for name, kind, nullable, fits in self._columns:
            value = cells.get(name)
            if value is None:
                found += name in cells
                if not nullable:
                    raise OutputRowError(f"Column {name!r} of {self._named} must have a value; the row has none.")
            elif fits is None:
                return self._learned(cells)
            else:
                found += 1
                try:
                    value = fits(value)
                except (TypeError, ValueError, ArithmeticError, NotImplementedError) as error:
                    raise OutputRowError(
                        f"Column {name!r} of {self._named} is {ddl_type(kind)}; {_shown(value)} does not fit{_because(error)}."
                    ) from None
            values.append(value)
        if found != len(cells):
            return self._learned(cells)
        return tuple(values)

    def rows_of(self, table: pa.Table) -> list[tuple[Any, ...]] | None:
        """Return the rows of a table whose columns have the output's own types: they fit as they are. None: each has to be looked at."""
        there = table.schema.names
        if not self._columns or len({*there}) < len(there) or not self._places.keys() >= {*there}:
            return None
        cells: list[list[Any]] = []
        for name, kind, nullable, _ in self._columns:
            column = table.column(name) if name in there else None
            if (
                not _is_plain(kind)
                or (column is not None and column.type != kind)
                or not (nullable or (column is not None and not column.null_count))
            ):
                return None
            cells.append([None] * table.num_rows if column is None else column.to_pylist())
        return list(zip(*cells, strict=True))

    def _learned(self, cells: Mapping[Any, Any]) -> tuple[Any, ...]:
        """Take in columns that were not known. Raises OutputRowError."""
        unknown = [name for name in cells if name not in self._places]
        wrong = next((name for name in unknown if not isinstance(name, str) or not name), None)
        if wrong is not None:
            raise OutputRowError(f"A row for {self._named} has a column {wrong!r}; expected text as its name.")
        if self._output.provenance and (taken := [name for name in unknown if name in PROVENANCE]):
            raise OutputRowError(f"A row for {self._named} has a column {taken[0]!r}, which provenance=True fills; give it another name.")
        if unknown and (self._learn is None or (self._columns and not self._output.evolve)):
            like = nearest(str(unknown[0]), list(self._places))
            meant = f" Did you mean {like!r}?" if like else ""
            raise OutputRowError(
                f"{self._named[0].upper()}{self._named[1:]} has no column {unknown[0]!r}; it has {', '.join(self._places)}.{meant} "
                "Return other rows, or declare evolve=True to add columns."
            )
        news = {name: _kind_of(name, value, self._named) for name, value in cells.items() if name in unknown or self._is_unknown(name, value)}
        assert self._learn is not None
        self._know(self._learn(news))
        return self.row(cells)

    def _is_unknown(self, name: str, value: object) -> bool:
        return value is not None and self._columns[self._places[name]].fits is None

    @property
    def _named(self) -> str:
        return "the output" if self._output.alone else f"the output {self._output.name!r}"


def _kind_of(name: str, value: Any, named: str) -> pa.DataType:
    """Return the type of a column by its first value; null for None. Raises OutputRowError."""
    import pyarrow as pa

    if isinstance(value, Decimal):
        return pa.decimal128(38, max(0, min(18, 38 - value.adjusted() - 1)))
    try:
        kind = pa.scalar(value).type
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise OutputRowError(f"Column {name!r} of {named} cannot have the value {_shown(value)}: {error}. Declare output_schema.") from None
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _cells(given: object) -> Mapping[Any, Any] | None:
    """Return a row as a mapping; None for what is no row."""
    if isinstance(given, Mapping):
        return given
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    for method in ("asDict", "_asdict"):
        if isinstance(given, tuple) and callable(called := getattr(given, method, None)):
            found = called()
            return found if isinstance(found, Mapping) else None
    return None


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  (a user's class may do anything)
        text = "something"
    return f"{text if len(text) <= _LONGEST else text[:_LONGEST] + '…'} ({type(value).__name__})"


def _because(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f": {text}" if text else ""


# Values that fit a type


def checked_by(kind: pa.DataType) -> Checked:
    """Return what checks values of a type: it returns them as they are kept, and raises TypeError or ValueError."""
    import pyarrow as pa

    types = pa.types
    simple: list[tuple[bool, Checked]] = [
        (types.is_boolean(kind), _boolean),
        (types.is_floating(kind), _real),
        (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind), _text),
        (types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind), _bytes),
        (types.is_date(kind), _date),
    ]
    found = next((checked for right, checked in simple if right), None)
    if found is None and types.is_timestamp(kind):
        found = _aware if kind.tz else _naive
    elif types.is_integer(kind):
        width, signed = kind.bit_width, types.is_signed_integer(kind)
        found = _integer(-(1 << (width - 1)) if signed else 0, (1 << (width - signed)) - 1)
    return found or _nested(kind)


def _nested(kind: pa.DataType) -> Checked:
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_of(kind.value_field)
    if pa.types.is_struct(kind):
        return _struct_of([kind.field(number) for number in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return _map_of(kind.key_field, kind.item_field)
    return lambda value: pa.scalar(value, kind).as_py()  # decimals and what is rare; ArrowInvalid is a ValueError


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of a type are kept as Arrow gives them."""
    import pyarrow as pa

    of = pa.types
    return of.is_boolean(kind) or of.is_integer(kind) or of.is_floating(kind) or of.is_string(kind) or of.is_binary(kind)


def _boolean(value: Any) -> bool:
    if type(value) is not bool and type(value).__name__ not in {"bool_", "bool"}:
        raise TypeError
    return bool(value)


def _integer(least: int, most: int) -> Checked:
    def fits(value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise TypeError
            value = value.__index__()
        if not least <= value <= most:
            raise ValueError(f"expected {least} to {most}")
        return value  # type: ignore[no-any-return]

    return fits


def _real(value: Any) -> float:
    if type(value) is not float:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
        if isinstance(value, int) and int(number) != value:
            raise ValueError("it has more digits than a floating-point number keeps")
        return number
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value.isascii():
        value.encode()  # lone surrogates
    return str(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError
    return bytes(value)


def _aware(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError
    if value.tzinfo is None:
        raise ValueError("it has no time zone, for example datetime.now(UTC)")
    return value


def _naive(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError
    if value.tzinfo is not None:
        raise ValueError("it has a time zone, and the column has none")
    return value


def _date(value: Any) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value


def _or_none(field: pa.Field[Any]) -> Checked:
    fits = checked_by(field.type)

    def check(value: Any) -> Any:
        if value is None:
            if field.nullable:
                return None
            raise ValueError(f"{field.name!r} must have a value")
        return fits(value)

    return check


def _list_of(field: pa.Field[Any]) -> Checked:
    fits = _or_none(field)

    def check(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise TypeError
        return [fits(each) for each in value]

    return check


def _struct_of(fields: Sequence[pa.Field[Any]]) -> Checked:
    checks = {field.name: _or_none(field) for field in fields}

    def check(value: Any) -> dict[str, Any]:
        cells = _cells(value)
        if cells is None:
            raise TypeError
        other = next((name for name in cells if name not in checks), None)
        if other is not None:
            raise ValueError(f"it has no field {other!r}")
        return {name: fits(cells.get(name)) for name, fits in checks.items()}

    return check


def _map_of(key: pa.Field[Any], item: pa.Field[Any]) -> Checked:
    of_key, of_item = checked_by(key.type), _or_none(item)

    def check(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise TypeError
        return [(of_key(name), of_item(each)) for name, each in value.items()]

    return check


# What a handler returned -----------------------------------------------------------------------------------------------


def rows_returned(returned: object, fittings: Mapping[str, Fitting], *, alone: bool) -> bytes:
    """Check what a handler returned; return its rows as they travel, empty for none. Raises OutputRowError.

    Rows are one mapping, Row, dataclass or named tuple, or any iterable of such; where there are several outputs, a mapping of their names to rows.
    """
    if returned is None:
        return b""
    if alone:
        by_name: Mapping[Any, Any] = {ONLY: returned}
    elif isinstance(returned, Mapping):
        by_name = returned
    else:
        raise OutputRowError(f"The handler returned {_shown(returned)}; expected a mapping of outputs to rows: {', '.join(map(repr, fittings))}.")
    kept = []
    for name, fitting in fittings.items():
        rows = by_name.get(name)
        if rows is not None and (fitted := [fitting.row(row) for row in _each_row(rows)]):
            kept.append((name, fitted))
    other = next((name for name in by_name if name not in fittings), None)
    if other is not None:
        raise OutputRowError(f"The handler returned rows for {other!r}, which is no output; there are {', '.join(map(repr, fittings))}.")
    return pickle.dumps(kept, pickle.HIGHEST_PROTOCOL) if kept else b""


def rows_alike(returned: object, lookup_ids: Sequence[int], fittings: Mapping[str, Fitting], *, alone: bool) -> list[bytes] | None:
    """Return what ``divided`` and ``rows_returned`` make of a table for one output, in one go; empty for a message without a row.

    None: it is another thing, has several rows of a message, or other types than the output, so that each row has to be looked at.
    """
    import pyarrow as pa

    if not alone or not hasattr(returned, "__arrow_c_stream__"):
        return None
    table, ((name, fitting),) = pa.table(returned), fittings.items()
    if table.schema.names.count(LOOKUP_ID) != 1 or not pa.types.is_int64(table.column(LOOKUP_ID).type):
        return None
    numbers: list[Any] = table.column(LOOKUP_ID).to_pylist()
    places = {number: place for place, number in enumerate(lookup_ids)}
    if len({*numbers}) < len(numbers) or not places.keys() >= {*numbers}:
        return None
    rows = fitting.rows_of(table if fitting.has(LOOKUP_ID) else table.drop_columns([LOOKUP_ID]))
    if rows is None:
        return None
    found = [b""] * len(lookup_ids)
    for number, row in zip(numbers, rows, strict=True):
        found[places[number]] = pickle.dumps([(name, [row])], pickle.HIGHEST_PROTOCOL)
    return found


def divided(returned: object, lookup_ids: Sequence[int], fittings: Mapping[str, Fitting], *, alone: bool) -> tuple[dict[int, Any], Any]:
    """Divide what a handler of batches returned: the rows that name their message in ``lookup_id``, by its place in the frame, and the others.

    The column stays only where an output has it. Raises OutputRowError for a row of a message that is not in the frame.
    """
    if returned is None or not (alone or isinstance(returned, Mapping)):
        return {}, returned
    places = {number: place for place, number in enumerate(lookup_ids)}
    own: dict[int, dict[Any, list[object]]] = {}
    others: dict[Any, list[object]] = {}
    by_name: Mapping[Any, Any] = {ONLY: returned} if alone else cast("Mapping[Any, Any]", returned)
    for name, rows in by_name.items():
        kept = name in fittings and fittings[name].has(LOOKUP_ID)
        for row in () if rows is None else _each_row(rows):
            cells = _cells(row)
            number = None if cells is None else cells.get(LOOKUP_ID)
            if number is not None and number not in places:
                raise OutputRowError(f"A row for {name!r} has lookup_id={number!r}, a message that was not handed over with this frame.")
            given = row if cells is None or kept else {column: value for column, value in cells.items() if column != LOOKUP_ID}
            (others if number is None else own.setdefault(places[number], {})).setdefault(name, []).append(given)
    return {place: named[ONLY] if alone else named for place, named in own.items()}, (others.get(ONLY) if alone else others)


def _each_row(rows: Any) -> Iterable[object]:
    if type(rows) is dict or _cells(rows) is not None:
        return (rows,)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        import pyarrow as pa

        table = pa.table(rows) if hasattr(rows, "__arrow_c_stream__") else pa.Table.from_batches([pa.record_batch(rows)])
        return table.to_pylist()
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        return (rows,)
    return rows


def is_rows(returned: object) -> bool:
    """Whether something that a handler returned looks like rows."""
    if isinstance(returned, (list, tuple)) and returned and not hasattr(returned, "_asdict"):
        return _cells(returned[0]) is not None
    return _cells(returned) is not None or hasattr(returned, "__arrow_c_stream__")


def rows_kept(returned: bytes) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return what ``rows_returned`` made: the name of each output that has rows, and those."""
    if not returned:
        return []
    found: list[tuple[str, list[tuple[Any, ...]]]] = pickle.loads(returned)  # noqa: S301  (our own bytes, of plain values)
    return found


def joined(returned: bytes, more: bytes) -> bytes:
    """Return what ``rows_returned`` made twice, as one."""
    if not (returned and more):
        return returned or more
    kept = dict(rows_kept(returned))
    for name, rows in rows_kept(more):
        kept[name] = kept.get(name, []) + rows
    return pickle.dumps(list(kept.items()), pickle.HIGHEST_PROTOCOL)


def to_batch(rows: Sequence[tuple[Any, ...]], columns: pa.Schema) -> pa.RecordBatch:
    """Return rows as Arrow; a row that was returned before a column was known has no value there."""
    import pyarrow as pa

    width = len(columns)
    full = [row if len(row) == width else row + (None,) * (width - len(row)) for row in rows]
    cells = list(zip(*full, strict=True)) or [()] * width
    return pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in zip(cells, columns, strict=True)], schema=columns)
