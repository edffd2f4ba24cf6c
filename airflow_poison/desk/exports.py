"""Exports: the messages of a plan are written as Parquet, once, before anything is done to them.

A plan's messages are cut into parts by their lookup ids, and each part is one file, named by the plan. The first writer wins: a
file is there whole or not at all, and is never written over. Only messages that stand in these files are changed afterwards.

Send the messages of a selection to Kafka, some thousands in each commit.
"""

from __future__ import annotations

import io
import os
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.desk import sql
from airflow_poison.desk.plans import COLUMNS
from airflow_poison.desk.queries import files_of
from airflow_poison.passes.relay import FROM
from airflow_poison.passes.to_kafka import KEYS, SendToKafkaResult, send_to_kafka
from airflow_poison.store import object_store_of
from airflow_poison.store.disk import named, sync, sync_ancestors
from airflow_poison.store.objects import Objects
from airflow_poison.values.errors import MessageClaimedError, MessageNotFoundError, SettingError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa, pc, pq
from airflow_poison.values.schema import table_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_poison.desk.plans import Members
    from airflow_poison.desk.selection import Selection
    from airflow_poison.sources.kafka import Kafka
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

CHUNK = 10_000
"""Messages of one commit."""
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Selected:
    """The messages that meet a selection.

    :param free: the lookup ids of those that no pass has claimed, in their order.
    :param claimed: how many others there are.
    """

    free: pa.Array[Any]
    claimed: int

    @property
    def number(self) -> int:
        """How many they are."""
        return len(self.free) + self.claimed

    def part(self, first: int) -> list[int]:
        """Return the lookup ids of one commit, from the given one on."""
        return [number for number in self.free.slice(first, CHUNK).to_pylist() if number is not None]


def selected(table: QueueTable, selection: Selection, among: Sequence[int] | None = None) -> Selected:
    """Return the messages that meet a selection now, and can be sent. Raises SettingError, QueryError.

    :param among: of these only.
    """
    if selection.sub_queue is not None and selection.sub_queue not in FROM:
        raise SettingError("sub_queue", selection.sub_queue.value, f"one of {', '.join(sorted(FROM))}")
    snapshot = table.snapshot()
    files = [file for file in files_of(snapshot.files, selection) if file.sub_queue in FROM]
    claimed = [str(table.folder.here(file.path)) for file in files if file.path in snapshot.claimed_paths]
    with sql.messages(table, files) as engine:
        where, values = sql.condition(engine, selection, among)
        held = "file in (select unnest(?::varchar[])) as held"
        engine.execute(f"create temp table chosen as select lookup_id, {held} from located where {where}", [claimed, *values])
        rows = engine.sql("select lookup_id, held from chosen order by lookup_id").to_arrow_table()
    free = rows.filter(pc.invert(rows["held"]))
    return Selected(free["lookup_id"].combine_chunks(), rows.num_rows - free.num_rows)


def send_selected(table: QueueTable, selection: Selection, kafka: Kafka, clock: Clock, *, key: str = KEYS[0]) -> SendToKafkaResult:
    """Move the messages that meet a selection now to a topic, chunk by chunk, and what earlier calls have left on its way there.

    A call that dies has sent whole chunks; the next call sends the others. A message that a pass has claimed, or that has left its sub-queue before
    its chunk is sent, stays.

    Raises what ``send_to_kafka`` raises, and QueryError; earlier chunks are in the topic then.
    """
    found = selected(table, selection)
    sent = finished = moved = returned = 0
    for start in range(0, max(1, len(found.free)), CHUNK):
        reach("desk.to_kafka.before_chunk")
        result, number = _send_chunk(table, selection, found.part(start), kafka, clock, key)
        sent, finished, moved, returned = sent + result.sent, finished + result.finished, moved + number, returned + result.returned
    return SendToKafkaResult(table.name, kafka.topic, sent, finished, found.number - moved, returned)


def _send_chunk(  # noqa: PLR0917
    table: QueueTable, selection: Selection, lookup_ids: list[int], kafka: Kafka, clock: Clock, key: str
) -> tuple[SendToKafkaResult, int]:
    """Send messages of a selection, without those that have left meanwhile; return how many were moved, too."""
    places = FROM if selection.sub_queue is None else {selection.sub_queue}
    for _ in range(_TRIES - 1):
        try:
            return send_to_kafka(table, lookup_ids, kafka, clock, key=key, places=places), len(lookup_ids)
        except (MessageNotFoundError, MessageClaimedError):
            lookup_ids = selected(table, selection, lookup_ids).part(0)
    return send_to_kafka(table, lookup_ids, kafka, clock, key=key, places=places), len(lookup_ids)


PART = 20_000
"""So many messages are in one file, at most: they are in memory while it is written."""


def exported(table: QueueTable, plan: str, place: str, members: Members, store: QueueStore | None) -> list[int]:
    """Write the messages of a plan that are still as it wants them, where that has not been done; return the lookup ids of those that were written.

    :param place: a folder, or a prefix in an object store.
    :param store: its options serve an object store of the same kind.
    Raises StoreUnreachableError.
    """
    target, ids = _target(place, store), members.ids.tolist()
    found: list[int] = []
    for number, start in enumerate(range(0, len(ids), PART)):
        name = file_name(table.name, plan, number)
        written = target.lookup_ids(name)
        if written is None and (rows := _rows(table, members.only(ids[start : start + PART]))).num_rows:
            target.create(name, rows)
            reach("desk.export.after_file")
            written = target.lookup_ids(name)  # another run may have been faster
        found += written or []
    return found


def file_name(queue: str, plan: str, number: int) -> str:
    """Return the name of a file of an export."""
    return f"{queue}-{plan}-{number:04}.parquet"


def export_files(queue: str, plan: str, place: str, messages: int, store: QueueStore | None) -> list[str]:
    """Return the files of a plan's export that are there."""
    target = _target(place, store)
    names = (file_name(queue, plan, number) for number in range(-(-messages // PART)))
    return [f"{place.rstrip('/')}/{name}" for name in names if target.lookup_ids(name) is not None]


def _rows(table: QueueTable, members: Members) -> pa.Table:
    """Return messages as they are, claimed ones too, by lookup id."""
    parts = [table_schema().empty_table()]
    for file in table.snapshot().files:
        if members.may_be_in(file):
            mask = members.mask(file, table.read(file, COLUMNS))
            if mask.any():
                parts.append(table.read(file).filter(pa.array(mask)))
    return pa.concat_tables(parts).sort_by("lookup_id")


class _Target(ABC):
    """Where files of an export are."""

    @abstractmethod
    def lookup_ids(self, name: str) -> list[int] | None:
        """Return the lookup ids in a file; None when it is not there."""

    @abstractmethod
    def create(self, name: str, rows: pa.Table) -> None:
        """Write a file, durable and whole, unless there is one of this name."""


def _target(place: str, store: QueueStore | None) -> _Target:
    if not object_store_of(place):
        return _Folder(Path(place.removeprefix("file://")))

    return _Bucket(Objects.at(place.rstrip("/"), {} if store is None else store.options_for(place)))


@dataclass(frozen=True, slots=True)
class _Folder(_Target):
    folder: Path

    def lookup_ids(self, name: str) -> list[int] | None:
        path = self.folder / name
        with named(str(self.folder)):
            return _ids_in(path) if path.exists() else None

    def create(self, name: str, rows: pa.Table) -> None:
        with named(str(self.folder)):
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, begun = tempfile.mkstemp(prefix=f".{name}.", dir=self.folder)
            os.close(descriptor)
            _write(rows, begun)
            sync(begun)
            reach("desk.export.before_link")
            with suppress(FileExistsError):
                os.link(begun, self.folder / name)
            sync_ancestors(self.folder)
            for left in self._begun(name):
                left.unlink(missing_ok=True)

    def _begun(self, name: str) -> Iterator[Path]:
        """Yield what was begun and not finished: this one, and files of killed processes."""
        return (path for path in self.folder.iterdir() if path.name.startswith(f".{name}."))


@dataclass(frozen=True, slots=True)
class _Bucket(_Target):
    objects: Objects

    def lookup_ids(self, name: str) -> list[int] | None:
        content = self.objects.get(name)
        return None if content is None else _ids_in(io.BytesIO(content))

    def create(self, name: str, rows: pa.Table) -> None:
        content = io.BytesIO()
        _write(rows, content)
        self.objects.create(name, content.getvalue())


def _write(rows: pa.Table, target: Any) -> None:

    pq.write_table(rows, target, compression="zstd")


def _ids_in(source: Any) -> list[int]:

    return [number for number in pq.read_table(source, columns=["lookup_id"], partitioning=None)["lookup_id"].to_pylist() if number is not None]
