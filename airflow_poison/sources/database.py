"""Tables of databases, by SQLAlchemy: which columns they have, and their rows as Arrow, a batch at a time.

What sources have in common that read a table of a database.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_poison.sources.rows import JSON_TEXT, ODD
from airflow_poison.sources.source import Source
from airflow_poison.values import json_text
from airflow_poison.values.errors import PoisonError, SettingError, SourceError
from airflow_poison.values.json_values import json_value, number_or_text
from airflow_poison.values.libraries import pa
from airflow_poison.values.texts import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from airflow_poison.sources.schemas import Schema
    from airflow_poison.sources.source import Connection, JsonValue


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """A table of a database. ``address`` is what the connection's id stands for."""

    connection: str = field(kw_only=False, repr=False)
    table: str = field(kw_only=False)
    order_by: str = field(kw_only=False)
    name: str = ""
    schema: Schema | None = None
    address: str = field(default="", repr=False)

    columns = True

    def __post_init__(self) -> None:
        for setting, wanted in (
            ("connection", "an SQLAlchemy URL, or the id of a connection"),
            ("table", "the name of a table or view: orders, shop.orders"),
            ("order_by", "the name of a column"),
        ):
            if not isinstance(value := getattr(self, setting), str) or not value.strip():
                raise SettingError(setting, "…" if setting == "connection" else value, wanted)
        object.__setattr__(self, "name", self.name or f"{_without_credentials(self.connection)}:{self.table}")

    def connected(self, find: Callable[[str], Connection]) -> Source:
        """Return the source with the address of its connection. Raises SourceError when there is none."""
        if "://" in self.connection:
            return self

        return replace(self, address=address_of(find(self.connection)))

    @property
    def asset_uri(self) -> str:
        """Server, database, schema and table, as Airflow's own providers name them: ``postgres://host:5432/shop/public/orders``."""
        return asset_uri_of(self.address or self.connection, self.table)

    def opened(self) -> AbstractContextManager[Reading]:
        """Have the table open. Raises SourceError."""
        label = f"Table {self.table!r} of source {self.name!r}"
        if not self.address and "://" not in self.connection:
            raise SourceError(f"{label}: Airflow has not looked up connection {self.connection!r}. Give an SQLAlchemy URL. Nothing was sent.")
        return opened(self.address or self.connection, self.table, label)

    def check_position(self, at: Mapping[str, JsonValue], **settings: JsonValue) -> None:
        """Raise SourceError when a position was reached with other settings."""
        for setting, value in settings.items():
            if at and at.get(setting) != value:
                raise SourceError(
                    f"{setting}={value!r}: source {self.name!r} was taken with {setting}={at.get(setting)!r} so far, and its position says nothing "
                    "else. "
                    f"Declare {setting}={at.get(setting)!r} again, give it another name=, or reset its position: then all rows are taken again. "
                    "Nothing was sent."
                )


def _without_credentials(connection: str) -> str:
    """Return an address without user, password and options; the id of a connection as it is."""
    kind, is_address, rest = connection.partition("://")
    if not is_address:
        return connection
    rest = re.sub(r"^[^:/]*(:[^@]*)?@", "", rest)  # to SQLAlchemy a password ends with the @, whatever is in it
    server, slash, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{kind.partition('+')[0]}://{server.rpartition('@')[2]}{slash}{path}"


BATCH = 1_000
_DIALECTS = {"postgres": "postgresql"}
_MYSQL_DRIVERS = (("MySQLdb", "mysqldb"), ("pymysql", "pymysql"), ("mysql", "mysqlconnector"))
_DRIVERS = {
    "postgresql": (("psycopg2", "psycopg2"), ("psycopg", "psycopg"), ("pg8000", "pg8000")),
    "mysql": _MYSQL_DRIVERS,
    "mariadb": _MYSQL_DRIVERS,
}
_MYSQL = ("SET time_zone = '+00:00'",)
_SESSION = {
    "mysql": _MYSQL,  # a clock that is set back would give instants twice
    "mariadb": _MYSQL,
    "postgresql": (
        "SET TIME ZONE 'UTC'",
        "SET datestyle = 'ISO'",
        "SET intervalstyle = 'iso_8601'",
        "SET bytea_output = 'hex'",
        "SET extra_float_digits = 3",
    ),
}
"""What is set before reading: floats have all their digits, and keys are the same text in each take, whatever settings the server or its user has."""
_ASSETS = {"postgresql": ("postgres", 5432, "public"), "mysql": ("mysql", 3306, ""), "mariadb": ("mysql", 3306, "")}
"""How assets name a kind of database, its port and its first schema."""
_EXTRA = ("sslmode", "sslrootcert", "sslcert", "sslkey")
_SCHEME = "sqlalchemy_scheme"
_DATES_AS_TEXT = frozenset({"postgresql", "mysql", "mariadb"})
"""Databases whose dates and instants are read as text: infinity, 0000-00-00 and years BC are none that Python has, and end a driver's read."""
_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(\.\d{1,6})?"
_REFUSED = (TypeError, ValueError, KeyError, OverflowError)  # of Arrow's are ValueErrors and TypeErrors
_ZONE = r"(\+00(:00)?)"


def address_of(connection: Connection) -> str:
    """Return the SQLAlchemy URL that a connection stands for. Its extra field ``sqlalchemy_scheme`` names dialect and driver, if it has one."""
    from sqlalchemy import URL

    dialect = str(connection.extra.get(_SCHEME) or _DIALECTS.get(connection.kind, connection.kind))
    if dialect.startswith("sqlite"):
        return URL.create(dialect, database=connection.host or connection.path).render_as_string(hide_password=False)
    made = URL.create(
        dialect,
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host or None,
        port=connection.port,
        database=connection.path or None,
        query={name: str(connection.extra[name]) for name in _EXTRA if connection.extra.get(name)},
    )
    return made.render_as_string(hide_password=False)


def asset_uri_of(address: str, table: str) -> str:
    """Return what assets and lineage name a table, without user and password."""
    from sqlalchemy import make_url

    url = make_url(address)
    kind = url.get_backend_name()
    scheme, port, schema = _ASSETS.get(kind, (kind, None, ""))
    given, _, name = table.rpartition(".")
    server = f"{url.host or ''}{f':{found}' if (found := url.port or port) else ''}"
    return f"{scheme}://{server}/{'/'.join(filter(None, ((url.database or '').strip('/'), given or schema, name)))}"


class Column(NamedTuple):
    """A column as it is read. Its declaration says its type, and each value by itself whether it is one of it.

    :param kind: its type in Arrow.
    :param as_text: the database writes it as text.
    :param is_json: its values are texts of JSON; what is no JSON is a text.
    """

    name: str
    kind: pa.DataType
    as_text: bool = False
    is_json: bool = False


@dataclass(frozen=True)
class Reading:
    """A table while it is open.

    :param said: the source in words, for errors.
    """

    connection: sa.Connection
    table: sa.Table
    label: str

    def column(self, name: str, parameter: str) -> sa.Column[Any]:
        """Return a column. Raises SourceError when it is not there."""
        if name not in self.table.columns:
            raise SourceError(
                f"{parameter}={name!r}: {self.label} has no such column; it has {', '.join(self.table.columns.keys())}. Was it renamed or dropped? "
                "Name one that there is. Nothing was sent."
            )
        found: sa.Column[Any] = self.table.columns[name]
        return found

    def unique(self, names: Sequence[str]) -> list[sa.Column[Any]]:
        """Return columns that identify rows. Raises SourceError when they may not. Of a view nothing is known: there they are believed."""
        import sqlalchemy as sa

        found = [self.column(name, "key") for name in names]
        primary = {column.name for column in self.table.primary_key.columns}
        constraints = [each for each in self.table.constraints if isinstance(each, sa.UniqueConstraint)]
        indexes = [each for each in self.table.indexes if each.unique]
        declared = [*(each.columns for each in constraints), *(each.columns for each in indexes if _is_whole(each))]
        whole = [columns for columns in declared if not any(column.nullable for column in columns)] or (declared if self._is_materialized() else [])
        sure = [each for each in (primary, *({column.name for column in columns} for columns in whole)) if each]
        if any(each <= set(names) for each in sure) or not (primary or constraints or indexes):
            return found
        raise SourceError(
            f"key={names[0] if len(names) == 1 else tuple(names)!r}: several rows of {self.label} may have the same one. Name columns that are "
            f"unique and not null; known as that are: {'; '.join(', '.join(sorted(each)) for each in sure) or 'none'}. Nothing was sent."
        )

    def _is_materialized(self) -> bool:
        """Say whether this is a materialized view: no column of one is declared as not null."""
        import sqlalchemy as sa

        inspector = sa.inspect(self.connection)
        return self.connection.dialect.name == "postgresql" and self.table.name in inspector.get_materialized_view_names(self.table.schema)

    def rows(self, query: sa.Select[Any]) -> Iterator[Sequence[sa.Row[Any]]]:
        """Yield rows of a query, some at a time; the database keeps the others. Raises SourceError for a value that Python cannot hold."""
        with _readable(self.label):  # some come with the execution itself
            result = self.connection.execution_options(stream_results=True, yield_per=BATCH).execute(query)
        try:
            parts = iter(result.partitions(BATCH))
            while True:
                with _readable(self.label):
                    some = next(parts, None)
                if some is None:
                    return
                yield some
        finally:
            result.close()

    def columns(self) -> list[Column]:
        """Return how each column is read."""
        columns = [_column(column) for column in self.table.columns]
        if self.connection.dialect.name not in _DATES_AS_TEXT:
            return columns
        return [each._replace(as_text=True) if pa.types.is_temporal(each.kind) else each for each in columns]

    def select(self, columns: Sequence[Column]) -> list[sa.ColumnElement[Any]]:
        """Return what a query selects, for columns as they are read."""
        from sqlalchemy import Text, cast, type_coerce
        from sqlalchemy.types import NullType

        def read(column: sa.Column[Any], *, as_text: bool) -> sa.ColumnElement[Any]:
            if self.connection.dialect.name == "sqlite":  # any column has any value, and a cast cuts the digits of floats
                return type_coerce(column, NullType())
            return cast(column, Text) if as_text else whole(column)

        return [read(self.table.columns[each.name], as_text=each.as_text).label(each.name) for each in columns]


def whole(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return a column as what is read whole: of a float MySQL writes six digits, of a double SQLAlchemy ten, and drivers know few types of arrays."""
    from sqlalchemy import Text, cast, func, types
    from sqlalchemy.dialects import mysql

    kind = column.type
    if isinstance(kind, mysql.FLOAT | mysql.DOUBLE | mysql.REAL):
        return cast(column, mysql.DOUBLE(asdecimal=False))
    if isinstance(kind, types.ARRAY) and not isinstance(kind.item_type, types.LargeBinary):
        return cast(func.to_json(column), Text)
    return column


@contextmanager
def opened(address: str, table: str, label: str) -> Iterator[Reading]:
    """Have a table of a database open. Raises SourceError: no server, no table, no rights, whatever the database refuses in the block.

    :param said: the source in words, for errors.
    """
    import sqlalchemy as sa
    from sqlalchemy import exc
    from sqlalchemy.dialects import postgresql

    schema, _, name = table.rpartition(".")
    try:
        engine = sa.create_engine(_url(address), poolclass=sa.NullPool, hide_parameters=True)
        try:
            with engine.connect() as connection:
                for statement in _SESSION.get(connection.dialect.name, ()):
                    connection.execute(sa.text(statement))
                if connection.dialect.name == "sqlite" and (driver := connection.connection.driver_connection) is not None:
                    driver.text_factory = _text_or_bytes
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", exc.SAWarning)  # a type that SQLAlchemy does not know is read as text
                    found = sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=connection, resolve_fks=False)
                for column in found.columns:
                    while isinstance(column.type, postgresql.DOMAIN):  # a domain may be of another one
                        column.type = column.type.data_type
                yield Reading(connection, found, label)
        finally:
            engine.dispose()
    except exc.NoSuchTableError as error:
        raise SourceError(
            f"{label}: there is no such table or view, or this user may not see it. Check its name, as schema.table. Nothing was sent."
        ) from error
    except exc.DBAPIError as error:
        raise SourceError(
            f"{label} cannot be read: {first_line(error.orig)}. Check that the server is reached from where the task runs, the rights of its user, "
            "and the table's columns. Nothing was sent."
        ) from error
    except PoisonError:
        raise
    except (exc.SQLAlchemyError, ModuleNotFoundError, ValueError, TypeError) as error:
        raise SourceError(
            f"{label} cannot be reached: {first_line(error)}. Expected an SQLAlchemy URL or the id of a connection, and its driver installed: for "
            "PostgreSQL psycopg2-binary, for MySQL pymysql. Nothing was sent."
        ) from error


def _text_or_bytes(raw: bytes) -> str | bytes:
    """Return a text of SQLite, which keeps any bytes as one; what is no UTF-8 as it is, so that it ends no read."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _is_whole(index: sa.Index) -> bool:
    """Say whether an index is of columns alone, and of all rows."""
    parts = [each for options in index.dialect_options.values() for each in (options.get("where"),) if each is not None]
    return not parts and len(index.expressions) == len(index.columns)


@contextmanager
def _readable(label: str) -> Iterator[None]:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError:
        raise
    except Exception as error:  # of whatever type a driver raises for a value
        raise SourceError(
            f"{label} has a value that cannot be read here: {first_line(error)}. Read a view that leaves it out or casts it to text. "
            "Nothing was sent."
        ) from error


def to_batch(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as Arrow. A value that is not of its column's type is null there, and as text in a column beside it (``ODD``)."""
    arrays: list[pa.Array[Any]] = []
    fields: list[pa.Field[Any]] = []
    for at, column in enumerate(columns):
        values, odd = _values(column, [row[at] for row in rows])
        fields.append(pa.field(column.name, column.kind, metadata=JSON_TEXT if column.is_json else None))
        arrays.append(values)
        if odd is not None:
            fields.append(pa.field(ODD + column.name, pa.string()))
            arrays.append(odd)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _values(column: Column, values: Sequence[Any]) -> tuple[pa.Array[Any], pa.Array[Any] | None]:
    """Return values as Arrow; and, where some are not of the column's type, the texts of these."""
    if column.is_json:
        return pa.array([None if each is None else each if isinstance(each, str) else _json_text(each) for each in values], pa.string()), None
    read = _reader(column.kind)
    if read is None and not (pa.types.is_integer(column.kind) and any(type(each) not in {int, NoneType} for each in values)):  # Arrow cuts 1.5 to 1
        with suppress(*_REFUSED):
            return pa.array(values, column.kind), None
    good: list[Any] = []
    odd: list[str | None] = []
    for value in values:
        fits, found = (True, None) if value is None else _read(value, column.kind, read)
        good.append(found if fits else None)
        odd.append(None if fits else text_of(value))
    return pa.array(good, column.kind), None if odd.count(None) == len(odd) else pa.array(odd, pa.string())


def _read(value: object, kind: pa.DataType, read: Callable[[Any], object] | None) -> tuple[bool, object]:
    """Return whether a value is one of a type, and the value."""
    try:
        if read is not None:
            return True, value if isinstance(value, date | time) else read(value)
        pa.scalar(value, kind)
    except _REFUSED:
        return False, None
    return type(value) is int or not pa.types.is_integer(kind), value


def _reader(kind: pa.DataType) -> Callable[[Any], object] | None:
    """Return what makes a value of a type of the text or number that databases have for it. It raises one of ``_REFUSED``."""
    if pa.types.is_boolean(kind):
        return {0: False, 1: True}.__getitem__
    if pa.types.is_date(kind):
        return _parser(_DATE, date.fromisoformat)
    if pa.types.is_time(kind):
        return _parser(_CLOCK, time.fromisoformat)
    if pa.types.is_timestamp(kind):
        return _parser(f"{_DATE} {_CLOCK}{_ZONE if kind.tz else ''}", datetime.fromisoformat)
    return None


def _parser(pattern: str, read: Callable[[str], object]) -> Callable[[Any], object]:
    matches = re.compile(pattern, re.ASCII).fullmatch

    def parsed(text: str) -> object:
        if not matches(text):
            raise ValueError(text)
        return read(text)

    return parsed


def _json_text(value: object) -> str:
    """Return a value of a driver as JSON; a number that JSON has not as its text."""
    if isinstance(value, Decimal):
        return f"{value:f}" if value.is_finite() else str(number_or_text(value))
    return json_text.written(json_value(value, number_or_text))


def text_of(value: object) -> str:
    """Return a value of a driver as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _column(column: sa.Column[Any]) -> Column:
    """Return how a column is read: one without a type in Arrow as the text that the database writes."""
    from sqlalchemy import types
    from sqlalchemy.dialects import mysql

    kind = column.type
    text = Column(column.name, pa.string(), as_text=True)
    if isinstance(kind, types.JSON):
        return text._replace(is_json=True)
    if isinstance(kind, mysql.SET):  # Python's sets have no order
        return text
    if isinstance(kind, types.ARRAY) or (isinstance(kind, types.Numeric) and not isinstance(kind, types.Float)):
        return Column(column.name, pa.string(), is_json=True)
    found = _plain(kind)
    return text if found is None else Column(column.name, found)


def _plain(kind: Any) -> pa.DataType | None:
    from sqlalchemy import types
    from sqlalchemy.dialects import mysql

    plain: list[tuple[Any, pa.DataType]] = [
        (types.Boolean, pa.bool_()),
        (types.Integer, pa.int64()),
        (mysql.BIT, pa.uint64()),  # its driver has bytes, and SQLAlchemy a number
        (mysql.FLOAT, pa.float32()),
        (types.Float, pa.float64()),
        (types.Date, pa.date32()),
        (types.LargeBinary, pa.binary()),
        (types._Binary, pa.binary()),  # noqa: SLF001  (BINARY and VARBINARY have nothing else in common)
        (types.String, pa.string()),
    ]
    if getattr(kind, "unsigned", False) and isinstance(kind, types.Integer):
        return pa.uint64()
    if isinstance(kind, types.DateTime):
        return pa.timestamp("us", "UTC") if kind.timezone else pa.timestamp("us")
    if isinstance(kind, types.Time):
        return None if kind.timezone else pa.time64("us")
    return next((arrow for type_, arrow in plain if isinstance(kind, type_)), None)


def _url(address: str) -> sa.URL:
    """Return an address with a driver that is installed. A database file that is not there is an error: reading makes none."""
    import sqlalchemy as sa

    url = sa.make_url(address)
    if url.get_backend_name() == "sqlite" and not (url.database and Path(url.database).is_file()):
        raise SourceError(f"There is no database file {url.database!r}. Give its absolute path: sqlite:////data/shop.db. Nothing was sent.")
    if "+" not in url.drivername:
        there = (driver for module, driver in _DRIVERS.get(url.drivername, ()) if find_spec(module) is not None)
        if (driver := next(there, None)) is not None:
            url = url.set(drivername=f"{url.drivername}+{driver}")
    if url.drivername.startswith("postgresql+psycopg") and "client_encoding" not in url.query:  # a user's own may lack characters
        return url.update_query_dict({"client_encoding": "utf8"})
    return url
