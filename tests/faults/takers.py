"""Takers: senders that put records down somewhere else, and take what is new there: files of each format, Delta tables, tables of a database.

What is put down is there once, as a whole, however often its writer is killed and run again; each taker takes also what writers that have died have
left. Sends by path are here, too: what they read is a file like the others, and who sends it names it by a key.
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from airflow_poison.passes.send import send
from airflow_poison.passes.take import take
from airflow_poison.sources.delta_changes import DeltaChanges
from airflow_poison.sources.files import Files
from airflow_poison.sources.jdbc import Jdbc, Outbox
from airflow_poison.sources.paths import PathFiles
from airflow_poison.sources.schemas import Schema
from airflow_poison.values.errors import MalformedError
from airflow_poison.values.mapping import ColumnMapping
from tests.faults.ledger import note
from tests.faults.records import COLUMNS, csv_rows, exactly, hard_body, hard_json, largest, table_rows, typed_rows
from tests.faults.world import bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from airflow_poison.sources.source import Source
    from tests.faults.actor import Actor

_MALFORMED = b"malformed"
_BY_ID = ColumnMapping(message_id="id")
_BROKEN_JSON = (b'{"deed": "ok"', b'{"n": NaN}', b'{"text": "caf\xe9"}', b"{} {}", b"\x00", b'{"deed": "ok",}')
_BROKEN_CSV = (b"x,ok,too,many", b"few", b"x,ok,caf\xe9")
_MARK = b"\xef\xbb\xbf"
_LATE = 0.1
"""Seconds that a transaction stays open, at most."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a file holds.

    :param wanted: how the body of each message is compared, and its digest, by message id.
    :param malformed: the ids of records that cannot be read.
    """

    content: bytes
    wanted: Mapping[str, list[str]]
    malformed: frozenset[str] = frozenset()


def takes(actor: Actor) -> None:
    """Put records down, and take all that nobody has taken from there."""
    actor.chance.choice(_KINDS)(actor)
    note("taken", queue=actor.task.queue, key=actor.task.name)


class _Refusing(Schema):
    def decode(self, body: bytes) -> bytes:
        if body == _MALFORMED:
            raise MalformedError("it is malformed")
        return body


# Files ----------------------------------------------------------------------------------------------------------------


def _lines(actor: Actor, path: str) -> Written:
    lines = [hard_body(actor.chance, deed) for deed in bodies(actor.chance, actor.task.queue)] + largest(actor.chance)
    _insert_some(actor, lines, [_MALFORMED])
    lines[0] = lines[0].removeprefix(_MARK)  # at the beginning it is the file's, and no part of a record
    lines[-1] = lines[-1] or b"ok"  # behind the last line end there is no line
    return _written(path, b"\n".join(lines), enumerate(lines, 1), {_MALFORMED})


def _json(actor: Actor, path: str) -> Written:
    lines = [hard_json(actor.chance, deed) for deed in bodies(actor.chance, actor.task.queue)]
    _insert_some(actor, lines, _BROKEN_JSON)
    end = actor.chance.choice([b"\n", b"\r\n"])
    return _written(path, _mark(actor) + end.join(lines), enumerate(lines, 1), {*_BROKEN_JSON})


def _csv(actor: Actor, path: str) -> Written:
    deeds = bodies(actor.chance, actor.task.queue)
    lines, wanted = csv_rows(actor.chance, deeds, _ids(actor, len(deeds)))
    _insert_some(actor, lines, _BROKEN_CSV)
    numbers = accumulate((1 + line.count(b"\n") for line in lines), initial=2)
    broken = [(number, line) for number, line in zip(numbers, lines, strict=False) if line in _BROKEN_CSV]
    content = _mark(actor) + b"\n".join([b"id,deed,word", *lines]) + b"\n"
    found = _written(path, content, broken, {*_BROKEN_CSV})
    return Written(content, {**wanted, **found.wanted}, found.malformed)


def _mark(actor: Actor) -> bytes:
    return _MARK * (actor.chance.random() < 0.2)


def _insert_some(actor: Actor, lines: list[bytes], malformed: Sequence[bytes]) -> None:
    for _ in range(actor.chance.choice([0, 0, 1, 2])):
        lines.insert(actor.chance.randint(0, len(lines)), actor.chance.choice(malformed))


def _written(path: str, content: bytes, lines: Iterable[tuple[int, bytes]], malformed: Collection[bytes]) -> Written:
    """Return a file whose records are lines, which are called after it and their numbers."""
    by_id = {f"{path}:{number}": line for number, line in lines}
    wanted = {message_id: exactly(line) for message_id, line in by_id.items()}
    return Written(content, wanted, frozenset(message_id for message_id, line in by_id.items() if line in malformed))


def _parquet(actor: Actor, path: str) -> Written:
    del path
    deeds = bodies(actor.chance, actor.task.queue)
    made, content = typed_rows(actor.chance, deeds, _ids(actor, len(deeds))), io.BytesIO()
    pq.write_table(made.table, content, row_group_size=3)
    return Written(content.getvalue(), made.wanted)


def _whole(actor: Actor, path: str) -> Written:
    body = hard_body(actor.chance, bodies(actor.chance, actor.task.queue)[0])
    return Written(body, {path: exactly(body)})


def _json_by_id(actor: Actor, path: str) -> Written:
    """Return lines whose ids are a field of theirs; those that cannot be read have none."""
    deeds = bodies(actor.chance, actor.task.queue)
    ids = _ids(actor, len(deeds))
    lines = [hard_json(actor.chance, deed, each, once=True) for deed, each in zip(deeds, ids, strict=True)]
    wanted = {each: exactly(line) for each, line in zip(ids, lines, strict=True)}
    _insert_some(actor, lines, _BROKEN_JSON)
    broken = [(number, line) for number, line in enumerate(lines, 1) if line in _BROKEN_JSON]
    found = _written(path, b"\n".join(lines), broken, {*_BROKEN_JSON})
    return Written(found.content, {**wanted, **found.wanted}, found.malformed)


_WRITERS: Mapping[str, Callable[[Actor, str], Written]] = {"lines": _lines, "json": _json, "csv": _csv, "parquet": _parquet, "whole": _whole}
_PACKED: Mapping[str, Callable[[bytes], bytes]] = {"": lambda content: content, ".gz": gzip.compress, ".bz2": bz2.compress}


def _takes_files(actor: Actor) -> None:
    form = actor.chance.choice(["lines", "lines", "json", "json", "csv", "csv", "parquet", "whole"])
    _put_down(actor, _landing(actor, form), form, _WRITERS[form])
    _takes(actor, *_files(actor, form))


def _landing(actor: Actor, form: str) -> Path:
    return Path(actor.place.folder, "landing", actor.task.queue, form)


def _files(actor: Actor, form: str) -> tuple[Source, ColumnMapping | None]:
    schema = _Refusing() if form == "lines" else None
    source = Files(f"{_landing(actor, form)}/*", format=form, name=f"landing-{form}", settled=timedelta(0), schema=schema)
    return source, _BY_ID if source.columns else None


def _sends_by_path(actor: Actor) -> None:
    """Send a file as ``path=`` of a task does: run again under the same key, it is sent once."""
    form = actor.chance.choice(["json", "csv", "parquet"])
    writers = {"json": _json_by_id, "csv": _csv, "parquet": _parquet}
    path = _put_down(actor, Path(actor.place.folder, "paths", actor.task.queue), form, writers[form])
    files = PathFiles.at(str(path), form, {"header": "true"} if form == "csv" else {}, {})
    assert files is not None, "no Spark is needed"
    send(actor.table, files.messages(_BY_ID, actor.clock.now()), key=actor.task.run_key, clock=actor.clock)


def _put_down(actor: Actor, folder: Path, form: str, write: Callable[[Actor, str], Written]) -> Path:
    """Put a file down, as a whole and once; return its path."""
    packed = actor.chance.choice(["", "", ".gz", ".bz2"]) if form not in {"parquet", "whole"} else ""
    path = folder / f"{actor.task.name}.{form}{packed}"
    written = write(actor, str(path))
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _note(actor, written.wanted, written.malformed)
        unfinished = folder / f".{path.name}-{os.getpid()}"
        unfinished.write_bytes(_PACKED[packed](written.content))
        unfinished.rename(path)
    return path


def _ids(actor: Actor, number: int) -> list[str]:
    return [f"{actor.task.queue}/{actor.task.name}/{each}" for each in range(number)]


def _note(actor: Actor, wanted: Mapping[str, list[str]], malformed: Collection[str] = ()) -> None:
    """Note what is about to be put down: all of it comes, for its sender is run again until it is done."""
    note("put_down", queue=actor.task.queue, wanted=wanted, malformed=sorted(malformed))


def _takes(actor: Actor, source: Source, mapping: ColumnMapping | None) -> None:
    """Take what is new, or some of it: the quiet end takes the rest."""
    limit = actor.chance.choice([None, None, None, 3])
    take(actor.table, source, key=actor.task.run_key, clock=actor.clock, mapping=mapping, limit=limit)


# Delta tables ---------------------------------------------------------------------------------------------------------


def _takes_changes(actor: Actor) -> None:
    """Append rows to a Delta table, and take what is new in it: the rows of files, or the change data feed."""
    feed = actor.chance.random() < 0.5
    uri = _table(actor, feed=feed)
    deeds = bodies(actor.chance, actor.task.queue)
    further = {"_change_type": "insert"} if feed else {}
    made = typed_rows(actor.chance, deeds, _ids(actor, len(deeds)), **further)
    if not DeltaTable.is_deltatable(uri) or not {*made.wanted} <= {*DeltaTable(uri).to_pyarrow_table(columns=["id"])["id"].to_pylist()}:
        _note(actor, made.wanted)
        write_deltalake(uri, made.table, mode="append", configuration={"delta.enableChangeDataFeed": "true"} if feed else None)
    _takes(actor, *_changes(uri, feed=feed))


def _table(actor: Actor, *, feed: bool) -> str:
    return str(Path(actor.place.folder, "tables", f"{actor.task.queue}-{'feed' if feed else 'files'}"))


def _changes(uri: str, *, feed: bool) -> tuple[Source, ColumnMapping]:
    source = DeltaChanges(uri, start=0, changes=feed, name="table-with-feed" if feed else "table")
    return source, ColumnMapping(message_id="id", body=(*COLUMNS, *(["_change_type"] if feed else [])))


# Tables of a database -------------------------------------------------------------------------------------------------

_TABLES = """
create table if not exists counter (n integer not null);
insert into counter select 0 where not exists (select 1 from counter);
create table if not exists writers (name text primary key);
create table if not exists records (seq integer primary key, id text, deed text, n bigint, raw blob, word text);
create table if not exists outbox (seq integer primary key autoincrement, id text, deed text, n bigint, raw blob, word text);
"""
_OF_TABLES = ("id", "deed", "n", "raw", "word")


def _takes_rows(actor: Actor) -> None:
    """Insert rows into a table in a transaction that is committed late, and take what is new in it."""
    outbox = actor.chance.random() < 0.5
    path = _database(actor)
    path.parent.mkdir(parents=True, exist_ok=True)
    _insert(actor, path, "outbox" if outbox else "records")
    _takes(actor, *_rows(path, outbox=outbox))


def _database(actor: Actor) -> Path:
    return Path(actor.place.folder, "tables", f"{actor.task.queue}.db")


def _rows(path: Path, *, outbox: bool) -> tuple[Source, ColumnMapping]:
    address = f"sqlite:///{path}"
    source = Outbox(address, "outbox", "seq", delete=True) if outbox else Jdbc(address, "records", "seq", overlap=1_000_000)
    return source, ColumnMapping(message_id="id", body=_OF_TABLES)


def _insert(actor: Actor, path: Path, table: str) -> None:
    """Insert rows once. Numbers are given before the transaction begins, so that a later one may be committed earlier."""
    deeds = bodies(actor.chance, actor.task.queue)
    rows, wanted = table_rows(actor.chance, deeds, _ids(actor, len(deeds)))
    late = actor.chance.uniform(0, _LATE)
    with closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as database:
        database.execute("pragma journal_mode=wal")
        with database:
            database.execute("begin immediate")
            for statement in _TABLES.strip().split(";\n"):
                database.execute(statement)
        if database.execute("select 1 from writers where name = ?", [actor.task.name]).fetchone():
            return
        _note(actor, wanted)
        [(last,)] = database.execute("update counter set n = n + ? returning n", [len(rows)]).fetchall()
        time.sleep(late)
        with database:
            database.execute("begin immediate")
            database.execute("insert into writers values (?)", [actor.task.name])
            for number, row in enumerate(rows, last - len(rows) + 1):
                seq = number if table == "records" else None
                database.execute(f"insert into {table} values (?, ?, ?, ?, ?, ?)", [seq, *row])


_KINDS = (*[_takes_files] * 5, *[_sends_by_path] * 2, _takes_changes, _takes_changes, _takes_rows, _takes_rows)


def takes_the_rest(actor: Actor) -> None:
    """Take all that is left anywhere."""
    there: list[tuple[Source, ColumnMapping | None]] = [_files(actor, form) for form in _WRITERS if _landing(actor, form).exists()]
    there += [_changes(uri, feed=feed) for feed in (True, False) if DeltaTable.is_deltatable(uri := _table(actor, feed=feed))]
    there += [_rows(path, outbox=outbox) for outbox in (True, False) if (path := _database(actor)).exists()]
    for source, mapping in there:
        take(actor.table, source, key=f"{actor.task.run_key}-{source.name}", clock=actor.clock, mapping=mapping)
