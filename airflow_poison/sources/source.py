"""The interface of sources: a position says how far one was taken, a plan says what is new behind it, and the rows come with a new position.

A take records the new position in the commit that adds the messages (``passes.take``): killed anywhere and run again, nothing is missing
and nothing comes twice. Planning and reading write nothing, neither here nor there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_poison.values.errors import InputError, SourceError
from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_poison.sources.schemas import Schema


ERROR = "poison.error"
"""The column that says what is wrong with a record; null where nothing is. No source has a column of its own of this name."""
NO_BODY = "poison.no_body"
"""The column that says, by true, that a record has no body and that this is right: its body is empty then, no schema decodes it, and no
mapping looks for fields in it."""

RECORD, UNFIT = "poison.record", "poison.unfit"
"""Columns of rows in place: the record that a row was, with the columns of a sender and ``ERROR`` (null where the row says all of it), and whether it
is no row: then it becomes a message as it is."""

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


def no_keys() -> pa.Table:
    """Return no keys: the columns ``key`` (text) and ``at`` (int64)."""
    return pa.table({"key": pa.array([], pa.string()), "at": pa.array([], pa.int64())})


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source has been taken.

    :param at: what the source itself says, plain JSON values; empty at the beginning.
    :param keys: asked for when needed: what has been taken where no order says it (names of files, ids within a window): a table with the columns
        ``key`` (text) and ``at`` (int64, whatever the source orders them by).
    """

    at: Mapping[str, JsonValue] = field(default_factory=dict)
    keys: Callable[[], pa.Table] = no_keys


@dataclass(frozen=True, slots=True)
class Reached:
    """A position after a take.

    :param at: takes the place of the earlier one.
    :param keys: are added to those taken before: the columns ``key`` and ``at``.
    :param keys_since: keys with a smaller ``at`` are forgotten. None: none is.
    """

    at: Mapping[str, JsonValue]
    keys: pa.Table | None = None
    keys_since: int | None = None


class Then(NamedTuple):
    """What executors make of records: a function of batches, and the columns that it returns.

    :param of_bodies: makes rows of bodies that are JSON, without what else a record has, and returns the places of bodies that make none. Not None:
        records, where each comes from and which number it has are not needed.
    :param known: columns by which bodies are read that rows become.
    """

    make: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    columns: StructType
    of_bodies: Callable[[pa.Array[Any]], tuple[pa.RecordBatch, Sequence[int]]] | None = None
    known: pa.Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """What is new in a source.

    :param what: it in words, for logs: ``3 files, 12.1 MiB``, ``offsets 120 to 180 of 3 partitions``.
    :param batches: called once; yields the records. Columns: a sender's (``passes.send.SENT``), or, where the
        source has ``columns``, any, or a message's with the column
        ``ERROR``, which says what is wrong with a record; its body is what arrived, byte by byte.
    :param reached: called after the last batch: the position behind them.
    :param messages: how many there are at most, where that is known without reading.
    :param passed_over: what there is and is not taken, a sentence for each reason, with what to do. A take whose ``what`` is empty has nothing else.
    :param frame: called once, instead of ``batches``; returns the same records, in their order, as a DataFrame that Spark's executors read. None:
        they cannot be read there.
    :param rows: called instead of ``batches`` for rows that are transformed where they are; returns them as Spark reads them, with types of their
        own, and ``RECORD`` and ``UNFIT`` where some are no rows. A source without ``columns`` needs what makes them. None: they have to become
        messages, for what ``why`` says.
    :param alone: Spark alone reads them: there are no ``batches``.
    :param checked: called instead of ``rows`` where Spark could not read these to their end: what it cannot read is records. None: all fails.
    """

    what: str
    batches: Callable[[], Iterator[pa.RecordBatch]]
    reached: Callable[[], Reached]
    messages: int | None = None
    frame: Callable[[SparkSession], DataFrame] | None = None
    rows: Callable[[SparkSession, Then | None], DataFrame] | None = None
    why: str = "Spark does not read it by itself"
    alone: bool = False
    checked: Callable[[SparkSession, Then | None], DataFrame] | None = None
    passed_over: tuple[str, ...] = ()


class NotOnSparkError(SourceError):
    """Spark's executors cannot read a source, and the task can."""


class Source(ABC):
    """Where messages come from. A subclass is small: what names it, and what is new behind a position.

    Sources travel: they are made in DAG files, so making one reads nothing, connects to nothing and imports nothing heavy, and they can be pickled.
    """

    columns: bool = False
    """Whether records are rows with columns of their own, which a mapping makes messages of."""
    schema: Schema | None = None
    """What the bodies are checked against, or decoded with, before they are sent."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the source's position is kept under in a queue; two sources of one queue have two names."""

    @abstractmethod
    def plan(self, position: Position, *, limit: int | None) -> Take | None:
        """Say what is new behind a position; None, or a take whose ``what`` is empty: nothing is. Reads little, writes nothing.

        :param limit: take at most so many messages, or the least number above it that can be taken (a file, a version).
        Raises SourceError for what cannot be read at all: no server, no rights, a position that the source has no more.
        """

    def acknowledge(self, position: Position) -> None:
        """Do at the source what may only be done when a position is recorded: remove or mark what was taken. By itself nothing.

        Called before each plan with the position that is recorded, and after the commit of a new one: twice has to be the same as once.
        Raises SourceError.
        """
        del position

    def between(self, start: str, end: str) -> Take:
        """Return what lies between two places, whatever was taken before: a backfill. Its position is not recorded.

        :param start: in the source's own words, included.
        :param end: excluded.
        Raises SourceError, InputError.
        """
        raise InputError(
            f"{type(self).__name__} cannot be taken from {start!r} to {end!r}: it has no order. Reset its position to take all of it again."
        )

    def describe(self, at: Mapping[str, JsonValue]) -> str:
        """Return a position in words, one line."""
        return ", ".join(f"{name}: {value}" for name, value in at.items()) or "the beginning"

    def takes_from(self, table: str) -> bool:
        """Whether it takes what is written into a Delta table, by the table's address; False: it does not say."""
        del table
        return False

    @property
    def asset_uri(self) -> str:
        """The name of the source for assets and lineage: ``kafka://host:9092/orders``. Asked after ``connected``. Empty: it is not reported."""
        return ""

    def connected(self, find: Callable[[str], Connection]) -> Source:
        """Return the source with the connections that it names looked up; itself when it names none.

        :param find: returns a connection by its id. Raises SourceError when there is none.
        """
        del find
        return self


@dataclass(frozen=True, slots=True)
class Connection:
    """What a named connection says, as Airflow keeps it. Its text shows no password.

    :param extra: its further fields.
    """

    conn_id: str
    kind: str = ""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    path: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
