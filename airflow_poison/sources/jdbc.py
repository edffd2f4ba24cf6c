"""``Jdbc``: rows of a database's table, each once, though rows become visible in another order than their ids.

``Outbox``: rows of a database's table that are deleted or marked when they are in the queue.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.database import TableSource, text_of, to_batch, whole
from airflow_poison.sources.source import Reached, Take
from airflow_poison.values.clock import EPOCH
from airflow_poison.values.errors import InputError, SettingError, SourceError
from airflow_poison.values.libraries import pa
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    import sqlalchemy as sa

    from airflow_poison.sources.database import Reading
    from airflow_poison.sources.source import JsonValue, Position


_log = logging.getLogger(__name__)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // _MICROSECOND
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Jdbc(TableSource):
    """Rows of a table that are added, or changed where ``order_by`` says when: each from ``overlap`` before the newest one on that was not taken.

    A row with a smaller id can become visible later than one with a greater id, since transactions end in another order than they begin. So each take
    looks back by ``overlap``, and leaves out the keys that it has. A transaction that stays open for longer than ``overlap`` reaches loses its rows.

    :param connection: an SQLAlchemy URL, or the id of an Airflow connection.
    :param table: a table or view: ``orders``, ``shop.orders``.
    :param order_by: a column that grows: whole numbers, or instants (in UTC, or with a zone). Never null. A row whose value here
        changes is taken again.
    :param overlap: how far each take looks back: a number for whole numbers, a duration for instants.
    :param key: the column or columns that identify rows. None: the primary key.
    :param name: what the position is kept under. None: connection and table.
    :param schema: what each body is checked against or decoded with.
    """

    overlap: int | timedelta
    key: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        TableSource.__post_init__(self)
        number = isinstance(self.overlap, int) and not isinstance(self.overlap, bool) and self.overlap > 0
        if not number and not (isinstance(self.overlap, timedelta) and self.overlap > timedelta(0)):
            raise SettingError("overlap", self.overlap, "a whole number above 0, or a duration above 0: as far as rows may become visible late")
        names = (self.key,) if isinstance(self.key, str) else self.key
        if names is not None and (not isinstance(names, tuple) or not names or not all(isinstance(each, str) and each for each in names)):
            raise SettingError("key", self.key, "the name of a column, a tuple of names, or None for the primary key")

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Return the rows that were not taken, the first ones by ``order_by`` first. Raises SourceError."""
        at = position.at
        self.check_position(at, order_by=self.order_by)
        since = self._watermark(at) - self._overlap if at else None
        seen = frozenset(str(key) for key in position.keys()["key"].to_pylist()) if at else frozenset()
        with self.opened() as reading:
            if not self._has_new(reading, since, seen):
                if since is not None:
                    self._warn_of_smaller(reading, since)
                return None
        return self._taken(at, since, seen, limit)

    def between(self, start: str, end: str) -> Take:
        """Return the rows between two values of ``order_by``.

        :param start: a whole number or an instant (ISO 8601), included; ``end`` is excluded.
        """
        first, after = (_parsed(text, instants=isinstance(self.overlap, timedelta)) for text in (start, end))

        def batches() -> Iterator[pa.RecordBatch]:
            with self.opened() as reading:
                order = self._order(reading)
                columns = reading.columns()
                where = (order >= _value(first, order), order < _value(after, order))
                for rows in reading.rows(_select(*reading.select(columns)).where(*where).order_by(order)):
                    yield to_batch(columns, rows)

        return Take(what=f"rows of {self.table}, {self.order_by} from {start} to {end}", batches=batches, reached=lambda: Reached({}))

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return the newest value of ``order_by`` that was taken."""
        return f"{at['order_by']} {at['watermark']}" if at else "the beginning"

    # Help -------------------------------------------------------------------------------------------------------------

    @property
    def _overlap(self) -> int:
        return self.overlap // _MICROSECOND if isinstance(self.overlap, timedelta) else self.overlap

    def _watermark(self, at: Mapping[str, JsonValue]) -> int:
        return _parsed(str(at["watermark"]), instants=isinstance(self.overlap, timedelta))

    def _order(self, reading: Reading) -> sa.Column[Any]:
        """Return the column that grows. Raises SourceError when it cannot be one."""
        import sqlalchemy as sa

        order = reading.column(self.order_by, "order_by")
        kind = order.type
        number = isinstance(kind, sa.Integer) or (isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float) and kind.scale == 0)
        instant = isinstance(kind, sa.DateTime) and reading.connection.dialect.name != "sqlite"
        if not (number or instant):
            raise SourceError(
                f"order_by={self.order_by!r} of {reading.label} is {kind}; expected whole numbers or instants: no distance can be measured in "
                "others, and SQLite keeps instants as text. Name another column, or make the table an Outbox. Nothing was sent."
            )
        if instant != isinstance(self.overlap, timedelta):
            wanted = "a duration, as timedelta(minutes=10)" if instant else "a number"
            raise SourceError(
                f"overlap={self.overlap!r}: order_by={self.order_by!r} of {reading.label} is {kind}; expected {wanted}. Nothing was sent."
            )
        if order.nullable and reading.connection.execute(_select(sa.literal(1)).select_from(reading.table).where(order.is_(None)).limit(1)).first():
            raise SourceError(
                f"{reading.label} has rows whose {self.order_by!r} is null: no take would ever come to them. Fill the column, or read a view without "
                "these rows. Nothing was sent."
            )
        return order

    def _keys(self, reading: Reading) -> list[sa.Column[Any]]:
        """Return the columns that identify rows. Raises SourceError when they do not."""
        primary = [column.name for column in reading.table.primary_key.columns]
        names = [self.key] if isinstance(self.key, str) else list(self.key or primary)
        if not names:
            raise SourceError(
                f"{reading.label} has no primary key. Name the columns that tell its rows apart: key=('<column>', ...). Nothing was sent."
            )
        return reading.unique(names)

    def _has_new(self, reading: Reading, since: int | None, seen: frozenset[str]) -> bool:
        order, keys = self._order(reading), self._keys(reading)
        query = _select(*(_comparable(each) for each in keys), _place(order, reading).label("poison_order"))
        if since is None:
            return reading.connection.execute(query.limit(1)).first() is not None
        rows = reading.rows(query.where(order >= _value(since, order)).order_by(order.desc()))
        return any(_key(row[:-1], row[-1]) not in seen for some in rows for row in some)

    def _warn_of_smaller(self, reading: Reading, since: int) -> None:
        """Log that all rows lie before what is looked at: old ones that are left, or new ones of a table that was emptied and counts anew."""
        import sqlalchemy as sa

        order = self._order(reading)
        newest = reading.connection.execute(_select(sa.func.max(_place(order, reading)))).scalar()
        if newest is not None and _number(newest) < since:
            _log.warning(
                "%s: its newest %s is %s, and source %r looks at rows from %s on. If the table was emptied or restored and counts anew, reset the "
                "position of the source; if its newest rows were removed, nothing is to be done.",
                reading.label, self.order_by, newest, self.name, _value(since, order),
            )  # fmt: skip

    def _taken(self, at: Mapping[str, JsonValue], since: int | None, seen: frozenset[str], limit: int | None) -> Take:
        window = _Window(since=since, overlap=self._overlap)

        def batches() -> Iterator[pa.RecordBatch]:
            sent = 0
            with self.opened() as reading:
                order, keys, columns = self._order(reading), self._keys(reading), reading.columns()
                if isinstance(self.overlap, timedelta):
                    window.now = _micros(_now(reading, order))
                query = _select(*reading.select(columns), *(_comparable(each) for each in keys), _place(order, reading).label("poison_order"))
                if since is not None:
                    query = query.where(order >= _value(since, order))
                for some in reading.rows(query.order_by(order, *keys)):
                    new = [(key, row) for row in some if (key := _key(row[len(columns) : -1], row[-1])) not in seen]
                    new = new if limit is None else new[: limit - sent]
                    if new:
                        window.add([key for key, _ in new], [_number(row[-1]) for _, row in new])
                        sent += len(new)
                        yield to_batch(columns, [row for _, row in new])
                    if limit is not None and sent >= limit:
                        return

        def reached() -> Reached:
            mark = window.mark(self._watermark(at) if at else None)
            if mark is None:  # the rows were removed meanwhile
                return Reached(at)
            shown: JsonValue = (EPOCH + mark * _MICROSECOND).isoformat() if isinstance(self.overlap, timedelta) else mark
            return Reached({"order_by": self.order_by, "watermark": shown}, window.keys(mark), mark - self._overlap)

        begin = f" from {self.describe(at)} on, looking back by {self.overlap}" if at else ""
        return Take(what=f"rows of {self.table}{begin}", batches=batches, reached=reached)


@dataclass(slots=True)
class _Window:
    """Keys of rows that were read, as long as a later take comes across them again.

    :param since: the first place that was read.
    :ivar now: no watermark is above it: an instant in the future would leave behind all that come before it.
    """

    since: int | None
    overlap: int
    now: int | None = None
    _parts: list[tuple[list[str], list[int]]] = field(default_factory=list)
    _highest: int | None = None

    def add(self, keys: list[str], at: list[int]) -> None:
        """Add rows, which come in their order."""
        self._highest = at[-1]
        self._parts.append((keys, at))
        mark = self.mark(None)
        while mark is not None and self._parts and self._parts[0][1][-1] < mark - self.overlap:
            self._parts.pop(0)

    def mark(self, before: int | None) -> int | None:
        """Return the new watermark: never lower than the one before."""
        reached = self._highest if self._highest is None or self.now is None else min(self._highest, self.now)
        return max((each for each in (reached, before) if each is not None), default=None)

    def keys(self, mark: int) -> pa.Table:
        """Return the keys that have to be kept."""
        kept = [(key, at) for keys, places in self._parts for key, at in zip(keys, places, strict=True) if at >= mark - self.overlap]
        return pa.table({"key": pa.array([key for key, _ in kept], pa.string()), "at": pa.array([at for _, at in kept], pa.int64())})


# Values ---------------------------------------------------------------------------------------------------------------


def _select(*columns: Any) -> sa.Select[Any]:
    import sqlalchemy as sa

    return sa.select(*columns)


def _place(order: sa.Column[Any], reading: Reading) -> sa.ColumnElement[Any]:
    """Return the column that grows as Python can hold it: instants may lie before the year 1 (``0000-00-00``, too), and behind the year 9999."""
    import sqlalchemy as sa

    if not isinstance(order.type, sa.DateTime):
        return order
    zone = " UTC" if reading.connection.dialect.name == "postgresql" else ""
    first, last = (sa.cast(sa.literal(f"{each}{zone}"), order.type) for each in ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"))
    return sa.func.least(sa.func.greatest(order, first), last, type_=order.type)


def _comparable(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return a column of a key as what has one text: numbers, text and bytes as they are, others as the database writes them."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql

    plain = isinstance(column.type, sa.Integer | sa.String | sa.BINARY | sa.VARBINARY | sa.BLOB | mysql.BIT)  # what MySQL casts may become "?"
    return column if plain and not isinstance(column.type, mysql.SET) else sa.cast(whole(column), sa.Text)


def _key(values: Sequence[Any], order: Any) -> str:
    return json.dumps([*values, _number(order)], default=text_of)


def _number(value: Any) -> int:
    try:
        number = _micros(value) if isinstance(value, datetime) else int(value)
    except ValueError as error:  # NaN; 2026-00-10
        raise SourceError(
            f"{value} in the column of order_by= is no place in an order; expected a whole number or an instant. Correct the row, or read a view "
            "without it. Nothing was sent."
        ) from error
    if not _SMALLEST <= number <= _LARGEST:
        raise SourceError(f"{number} in the column of order_by= is beyond 64 bits; expected smaller numbers. Nothing was sent.")
    return number


def _micros(at: datetime) -> int:
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // _MICROSECOND


def _value(number: int, order: sa.Column[Any]) -> Any:
    """Return a place as a value of the column that grows."""
    import sqlalchemy as sa

    if not isinstance(order.type, sa.DateTime):
        return Decimal(number) if isinstance(order.type, sa.Numeric) else number
    at = EPOCH + max(number, _FIRST) * _MICROSECOND
    return at if order.type.timezone else at.replace(tzinfo=None)


def _now(reading: Reading, order: sa.Column[Any]) -> datetime:
    """Return the database's time as the column has it: without a zone, what a clock in UTC shows."""
    import sqlalchemy as sa

    now: datetime = reading.connection.execute(_select(sa.func.current_timestamp())).scalar_one()
    zoned = isinstance(order.type, sa.DateTime) and order.type.timezone
    return now if zoned or now.tzinfo is None else now.astimezone(UTC).replace(tzinfo=None)


def _parsed(text: str, *, instants: bool) -> int:
    try:
        return _micros(datetime.fromisoformat(text)) if instants else int(text)
    except ValueError as error:
        wanted = "an instant (ISO 8601), as 2026-11-25T06:00:00+00:00" if instants else "a whole number"
        raise InputError(f"{text!r} is no place to begin or to end; expected {wanted}. Nothing was sent.") from error


_CHUNK = 500
"""Keys in one statement."""
_LOCK_WHAT_THEY_CHANGE = frozenset({"postgresql", "sqlite"})
"""Databases that change rows of a list without a wait for others. MySQL may look for a list in the whole table, and waits there for each row of a
transaction that is still open: it gets a statement for each row."""


@dataclass(frozen=True, kw_only=True)
class Outbox(TableSource):
    """Rows of a table that holds what is to be sent: each is taken, and deleted or marked when it is in the queue.

    Nothing is lost and nothing comes twice, however late transactions end. One queue takes an outbox. Its rows do not change once they are there, and
    no key is ever used again.

    :param connection: an SQLAlchemy URL, or the id of an Airflow connection. Its user may select, and delete or update.
    :param table: ``outbox``, ``shop.outbox``.
    :param order_by: the column by which rows are taken.
    :param key: the column that identifies rows: whole numbers, text or UUIDs. None: ``order_by``.
    :param delete: rows that were taken are deleted.
    :param mark: or marked in this column: booleans (true), whole numbers (1), instants (when). Rows without a mark are taken: null, false, 0.
    :param name: what the position is kept under. None: connection and table.
    :param schema: what each body is checked against or decoded with.
    """

    key: str | None = None
    delete: bool = False
    mark: str | None = None

    def __post_init__(self) -> None:
        TableSource.__post_init__(self)
        if self.delete == (self.mark is not None):
            raise SettingError(
                "delete", self.delete, f"either delete=True or mark='<column>' (mark={self.mark!r}): what becomes of rows that were taken"
            )

    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Return the rows that are there, or not marked. Raises SourceError."""
        import sqlalchemy as sa

        self.check_position(position.at, key=self._key)
        with self.opened() as reading:
            key = self._key_of(reading)
            there = reading.connection.execute(self._query(reading, [key]).limit(1)).first() is not None
            nameless = self._unmarked_of(reading, sa.select(sa.func.count()).select_from(reading.table)).where(key.is_(None))
            lacking = reading.connection.execute(nameless).scalar() if key.nullable and not key.primary_key else 0
            passed_over = (f"{counted(lacking, 'row')} of {reading.label} without {self._key}: give each a value there",) if lacking else ()
        if not there:
            return Take(what="", batches=lambda: iter(()), reached=lambda: Reached(position.at), passed_over=passed_over) if passed_over else None
        seen = frozenset(str(key) for key in position.keys()["key"].to_pylist())
        takes, rows_before = (int(position.at.get(name, 0)) for name in ("takes", "rows"))  # type: ignore[arg-type]  # our own numbers
        keys: list[str] = []

        def batches() -> Iterator[pa.RecordBatch]:
            with self.opened() as reading:
                columns, key = reading.columns(), self._key_of(reading)
                query = self._query(reading, [*reading.select(columns), key.label("poison_key")])
                for rows in reading.rows(query.order_by(reading.column(self.order_by, "order_by"), key).limit(limit)):
                    new = [_key_text(row[-1], reading.label) for row in rows]
                    if stayed := next((each for each in new if each in seen), None):
                        raise SourceError(
                            f"{reading.label}: the row with {self._key}={stayed} is in the queue, and is still there though it was "
                            f"{'deleted' if self.delete else 'marked'}. Does a trigger or row security keep it? It would come twice. Nothing was "
                            "sent."
                        )
                    keys.extend(new)
                    yield to_batch(columns, rows)

        def reached() -> Reached:

            at: dict[str, JsonValue] = {"key": self._key, "takes": takes + 1, "rows": rows_before + len(keys)}
            taken = pa.table({"key": pa.array(keys, pa.string()), "at": pa.array([takes + 1] * len(keys), pa.int64())})
            return Reached(at, taken, takes + 1)

        return Take(what=f"rows of {self.table}", batches=batches, reached=reached, passed_over=passed_over)

    def acknowledge(self, position: Position) -> None:
        """Delete or mark the rows that a position says are in the queue. Raises SourceError."""
        import sqlalchemy as sa

        keys = [str(key) for key in position.keys()["key"].to_pylist()]
        if not keys:
            return
        self.check_position(position.at, key=self._key)
        with self.opened() as reading:
            connection, key = reading.connection, self._key_of(reading)
            values = sorted(_typed(text, key) for text in keys)  # two at once lock rows in one order
            done, taken = self._done(reading), Counter(values)
            for first in range(0, len(values), _CHUNK):
                chosen = key.in_(values[first : first + _CHUNK])
                there = connection.execute(self._query(reading, [key]).where(chosen).order_by(key)).scalars().all()
                if spare := Counter(there) - taken:
                    raise SourceError(
                        f"{reading.label}: more rows have {self._key}={next(iter(spare))} than were taken, so it is not known which are in the "
                        "queue. Give each row a key of its own. Nothing was deleted or marked."
                    )
                if there and connection.dialect.name in _LOCK_WHAT_THEY_CHANGE:
                    connection.execute(done.where(key.in_(there)))
                elif there:
                    connection.execute(done.where(key == sa.bindparam("poison_key")), [{"poison_key": each} for each in there])
                connection.commit()

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return how many rows were taken."""
        return counted(int(at.get("rows", 0)), "row was taken", "rows were taken")  # type: ignore[arg-type]  # our own number

    # Help -------------------------------------------------------------------------------------------------------------

    @property
    def _key(self) -> str:
        return self.key or self.order_by

    def _key_of(self, reading: Reading) -> sa.Column[Any]:
        """Return the column that identifies rows. Raises SourceError when its values cannot, or come again."""
        import sqlalchemy as sa

        key = reading.column(self._key, "key")
        whole = isinstance(key.type, sa.Numeric) and key.type.scale == 0
        if not (isinstance(key.type, sa.Integer | sa.String | sa.Uuid) or whole):
            raise SourceError(f"key={self._key!r} of {reading.label} is {key.type}; expected whole numbers, text or UUIDs. Nothing was sent.")
        reading.unique([self._key])
        if self.delete and reading.connection.dialect.name == "sqlite" and isinstance(key.type, sa.Integer):
            statement = sa.text("SELECT sql FROM sqlite_master WHERE name = :name")
            made = reading.connection.execute(statement, {"name": reading.table.name}).scalar() or ""
            if "AUTOINCREMENT" not in str(made).upper():
                raise SourceError(
                    f"{reading.label}: SQLite gives the ids of deleted rows again, and a new row would be taken for one that was deleted. Declare "
                    f"{self._key!r} as INTEGER PRIMARY KEY AUTOINCREMENT, or mark rows: mark='<column>'. Nothing was sent."
                )
        return key

    def _query(self, reading: Reading, columns: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
        import sqlalchemy as sa

        return self._unmarked_of(reading, sa.select(*columns)).where(reading.column(self._key, "key").is_not(None))

    def _unmarked_of(self, reading: Reading, query: sa.Select[Any]) -> sa.Select[Any]:
        return query if self.mark is None else query.where(self._unmarked(reading))

    def _done(self, reading: Reading) -> sa.Delete | sa.Update:
        """Return what deletes or marks rows."""
        import sqlalchemy as sa

        if self.mark is None:
            return sa.delete(reading.table)
        return sa.update(reading.table).where(self._unmarked(reading)).values({reading.column(self.mark, "mark"): self._marks(reading)[1]})

    def _unmarked(self, reading: Reading) -> sa.ColumnElement[bool]:
        column = reading.column(self.mark or "", "mark")
        not_marked, _ = self._marks(reading)
        return column.is_(None) if not_marked is None else column.is_(None) | (column == not_marked)

    def _marks(self, reading: Reading) -> tuple[Any, Any]:
        """Return the values of rows that are not marked, and of those that are."""
        import sqlalchemy as sa

        kind = reading.column(self.mark or "", "mark").type
        if isinstance(kind, sa.Boolean):
            return sa.false(), sa.true()
        if isinstance(kind, sa.Integer):
            return 0, 1
        if isinstance(kind, sa.DateTime):
            return None, sa.func.current_timestamp()
        raise SourceError(f"mark={self.mark!r} of {reading.label} is {kind}; expected booleans, whole numbers or instants. Nothing was sent.")


def _key_text(key: object, label: str) -> str:
    """Return a key as the position has it. Raises SourceError for one that no later statement finds again."""
    if isinstance(key, Decimal) and not key.is_finite():
        raise SourceError(f"{label} has a row whose key is {key}; expected a whole number. Give the row another key. Nothing was sent.")
    return str(key)


def _typed(text: str, column: sa.Column[Any]) -> int | str | UUID:
    from uuid import UUID

    import sqlalchemy as sa

    if isinstance(column.type, sa.Integer | sa.Numeric):
        return int(Decimal(text))
    return UUID(text) if isinstance(column.type, sa.Uuid) and column.type.as_uuid else text
