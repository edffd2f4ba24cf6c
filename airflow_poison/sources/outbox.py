"""``Outbox``: rows of a database's table that are deleted or marked when they are in the queue."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_poison.sources.database import TableSource
from airflow_poison.sources.source import Reached, Take
from airflow_poison.values.errors import SettingError, SourceError
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    import pyarrow as pa
    import sqlalchemy as sa

    from airflow_poison.sources.database import Reading
    from airflow_poison.sources.source import JsonValue, Position

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
        self.check_position(position.at, key=self._key)
        with self.opened() as reading:
            if reading.connection.execute(self._query(reading, [self._key_of(reading)]).limit(1)).first() is None:
                return None
        seen = frozenset(str(key) for key in position.keys()["key"].to_pylist())
        takes, rows_before = (int(position.at.get(name, 0)) for name in ("takes", "rows"))  # type: ignore[arg-type]  # our own numbers
        keys: list[str] = []

        def batches() -> Iterator[pa.RecordBatch]:
            from airflow_poison.sources.database import to_batch

            with self.opened() as reading:
                columns, key = reading.columns(), self._key_of(reading)
                query = self._query(reading, [*reading.select(columns), key.label("poison_key")])
                for rows in reading.rows(query.order_by(reading.column(self.order_by, "order_by"), key).limit(limit)):
                    new = [str(row[-1]) for row in rows]
                    if stayed := next((each for each in new if each in seen), None):
                        raise SourceError(
                            f"{reading.said}: the row with {self._key}={stayed} is in the queue, and is still there though it was "
                            f"{'deleted' if self.delete else 'marked'}. Does a trigger or row security keep it? It would come twice. Nothing was "
                            "sent."
                        )
                    keys.extend(new)
                    yield to_batch(columns, rows)

        def reached() -> Reached:
            import pyarrow as pa

            at: dict[str, JsonValue] = {"key": self._key, "takes": takes + 1, "rows": rows_before + len(keys)}
            taken = pa.table({"key": pa.array(keys, pa.string()), "at": pa.array([takes + 1] * len(keys), pa.int64())})
            return Reached(at, taken, takes + 1)

        return Take(what=f"rows of {self.table}", batches=batches, reached=reached)

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
            done = self._done(reading)
            for first in range(0, len(values), _CHUNK):
                chosen = key.in_(values[first : first + _CHUNK])
                there = connection.execute(self._query(reading, [key]).where(chosen).order_by(key)).scalars().all()
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
            raise SourceError(f"key={self._key!r} of {reading.said} is {key.type}; expected whole numbers, text or UUIDs. Nothing was sent.")
        reading.unique([self._key])
        if self.delete and reading.connection.dialect.name == "sqlite" and isinstance(key.type, sa.Integer):
            said = sa.text("SELECT sql FROM sqlite_master WHERE name = :name")
            made = reading.connection.execute(said, {"name": reading.table.name}).scalar() or ""
            if "AUTOINCREMENT" not in str(made).upper():
                raise SourceError(
                    f"{reading.said}: SQLite gives the ids of deleted rows again, and a new row would be taken for one that was deleted. Declare "
                    f"{self._key!r} as INTEGER PRIMARY KEY AUTOINCREMENT, or mark rows: mark='<column>'. Nothing was sent."
                )
        return key

    def _query(self, reading: Reading, columns: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
        import sqlalchemy as sa

        query = sa.select(*columns)
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
        raise SourceError(f"mark={self.mark!r} of {reading.said} is {kind}; expected booleans, whole numbers or instants. Nothing was sent.")


def _typed(text: str, column: sa.Column[Any]) -> int | str | UUID:
    from uuid import UUID

    import sqlalchemy as sa

    if isinstance(column.type, sa.Integer | sa.Numeric):
        return int(Decimal(text))
    return UUID(text) if isinstance(column.type, sa.Uuid) and column.type.as_uuid else text
