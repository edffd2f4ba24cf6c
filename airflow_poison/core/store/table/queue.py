"""A queue as the seam wants it: each call goes to the module that knows how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.schema import SubQueue, message_schema
from airflow_poison.core.store.files import Replacement
from airflow_poison.core.store.log import Commit
from airflow_poison.core.store.table import (
    appending,
    claiming,
    cleaning,
    compaction,
    conversations,
    files,
    finishing,
    history,
    manifest,
    moving,
    replacing,
    row_groups,
    stage,
    transacting,
)
from airflow_poison.core.store.unreachable import seam

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    import pyarrow as pa

    from airflow_poison.core.events import Event, EventType
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.files import Claim, DataFile, Manifest, Transaction
    from airflow_poison.core.store.results import Cleaned, Compacted, Returned, Sent, Shortened
    from airflow_poison.core.store.snapshot import Snapshot
    from airflow_poison.core.store.table.base import Table, View


@seam
class Queue:
    """One queue over a table; see ``seam.QueueTable`` for what each call promises."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self.uri!r})"

    @property
    def table(self) -> Table:
        """What lies under the verbs; for the store and for the check of it."""
        return self._table

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._table.name

    @property
    def uri(self) -> str:
        """The folder of the table: data files lie below it under the paths that ``DataFile`` says."""
        return self._table.root

    def snapshot(self) -> Snapshot:
        """Return the newest version."""
        return self._table.view().snapshot

    def mark(self, version: int) -> Hashable | None:
        """Return what tells a version from another one in its place, while it is the newest."""
        return self._table.log.mark(version)

    def append(self, batches: Iterable[pa.RecordBatch], key: str, now: datetime) -> Sent:
        """Add messages to ``main``, once per key."""
        return appending.append(self._table, batches, key, now)

    def alter(self, change: Callable[[Control], Control], events: Callable[[Control, Control], Sequence[Event]], now: datetime) -> Control:
        """Replace the control row and record what that means. ``now`` is the events' own business."""
        del now

        def plan(view: View) -> tuple[Commit | None, Control]:
            before = view.snapshot.control
            after = change(before)
            part = finishing.control_change(self._table, view, lambda _: after)
            record = history.write(self._table.root, view.state.version + 1, events(before, after))
            added = [*part.add, *record]
            if not added:
                return None, after
            return Commit("alter", add=added, remove=part.remove, scratch=[file.path for file in added]), after

        return self._table.change(plan)

    def move_files(self, pick: Callable[[Snapshot], Sequence[DataFile]], target: SubQueue, now: datetime, *, count_move: bool = True) -> Returned:
        """Move whole unclaimed files to another sub-queue."""
        return moving.move_files(self._table, pick, target, now, count_move=count_move)

    def split_file(self, file: DataFile, pieces: Sequence[pa.Table], now: datetime) -> None:
        """Replace one unclaimed file by pieces. Raises ConservationError, TableChangedError."""
        del now
        moving.split_file(self._table, file, pieces)

    def replace_file(self, file: DataFile, rows: pa.Table, events: Sequence[Event], now: datetime) -> None:
        """Replace one unclaimed file by other rows. Raises TableChangedError."""
        self.replace_files([Replacement(file, rows, removed=file.rows - rows.num_rows)], events, now)

    def replace_files(
        self,
        replacements: Iterable[Replacement],
        events: Sequence[Event],
        now: datetime,
        *,
        change: Callable[[Control], Control] | None = None,
        alone: bool = False,
    ) -> None:
        """Replace unclaimed files in one commit. Raises TableChangedError, ConservationError."""
        del now
        replacing.replace_files(self._table, replacements, events, change, alone=alone)

    def transact(self, plan: Callable[[Snapshot], Transaction | None], key: str, now: datetime) -> bool:
        """Commit what ``plan`` makes of the newest snapshot, once per key. Raises TableChangedError, ConservationError."""
        return transacting.transact(self._table, plan, key, now)

    def claim(
        self, key: str, *, lease: timedelta, now: datetime, max_messages: int, exclusive: bool = False, sub_queue: SubQueue = SubQueue.MAIN
    ) -> Claim | None:
        """Claim files of a sub-queue, or take this key's own claim over. Raises QueueHaltedError, SettingError."""
        return claiming.claim(self._table, claiming.Wanted(key, now + lease, max_messages, exclusive, sub_queue))

    def expired(self, now: datetime) -> Sequence[Claim]:
        """Return the claims that were not renewed in time."""
        return claiming.expired(self._table.view(), now)

    def take_over(self, claim: Claim, *, lease: timedelta, now: datetime) -> Claim | None:
        """Become the holder of a claim as it was seen."""
        return claiming.take_over(self._table, claim, now + lease)

    def renew(self, claim: Claim, *, lease: timedelta, now: datetime) -> Claim:
        """Extend a claim. Raises ClaimLostError."""
        return claiming.renew(self._table, claim, lease, now)

    def release(self, claim: Claim) -> None:
        """Give claimed files back as they are."""
        claiming.release(self._table, claim)

    def read(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file, or some of their columns. Raises TableChangedError."""
        return files.read(self._table.root, file) if columns is None else files.read_columns(self._table.root, file.path, columns)

    def first(self, file: DataFile, limit: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the first rows of a file in receive order. Raises TableChangedError."""
        return self._rows(file, columns, lambda names: row_groups.first(self._table.root, file.path, names, limit))

    def select(self, file: DataFile, lookup_ids: Collection[int], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file with these lookup ids. Raises TableChangedError."""
        return self._rows(file, columns, lambda names: row_groups.select(self._table.root, file.path, names, lookup_ids))

    def _rows(self, file: DataFile, columns: Sequence[str] | None, read: Callable[[Sequence[str]], pa.Table]) -> pa.Table:
        return files.placed(file, read(message_schema().names)) if columns is None else read(columns)

    def stage(self, claim: Claim) -> str:
        """Return this holder's own stage folder. Raises ClaimLostError when a later holder has fenced it."""
        return str(stage.own(self._table.root, claim))

    def begin(self, claim: Claim, note: str) -> None:
        """Write down that this holder's delivery begins. Raises ClaimLostError when a later holder has fenced it."""
        stage.begin(self._table.root, claim, note, durable=self._table.durable)

    def journals(self, claim: Claim) -> Sequence[str]:
        """Return the journal folders of earlier holders, oldest first, fenced."""
        return [str(Path(folder, stage.JOURNAL)) for folder in stage.earlier(self._table.root, claim)]

    def stage_table(self, claim: Claim, table: pa.Table) -> None:
        """Write outcome rows into the stage. Raises ClaimLostError."""
        manifest.stage_table(self._table, claim, table)

    def manifest(self, claim: Claim) -> Manifest | None:
        """Return the sealed outcome of this claim."""
        return manifest.find(self._table, claim)

    def seal(self, claim: Claim, account: Callable[[Manifest], Mapping[str, object]]) -> Manifest:
        """Make the staged outcome durable. Raises ClaimLostError, ConservationError and what ``account`` raises."""
        return manifest.seal(self._table, claim, account)

    def finish(
        self,
        claim: Claim,
        manifest: Manifest,
        *,
        change: Callable[[Control], Control] | None = None,
        events: Sequence[Event] = (),
        now: datetime,
    ) -> bool:
        """Make the final commit. Raises ClaimLostError, TableChangedError."""
        del now
        return finishing.finish(self._table, claim, manifest, change, events)

    def result(self, key: str) -> Mapping[str, object] | None:
        """Return the result that the final commit of a run key recorded; empty when the log was cleaned up since."""
        version = self._table.log.load().number(f"run:{key}")
        if version is None:
            return None
        result = (self._table.log.details(version) or {}).get("result", {})
        assert isinstance(result, dict)
        return result

    def has_number(self, names: Iterable[str]) -> bool:
        """Whether the log has a number under one of these names."""
        state = self._table.log.load()
        return any(state.number(name) is not None for name in names)

    def compact(self, *, min_files: int) -> Compacted:
        """Join small files. Raises ConservationError, TableChangedError."""
        return compaction.compact(self._table, min_files)

    def merge_conversations(self, keep: Callable[[pa.Table], pa.Table], *, min_files: int) -> Compacted:
        """Join the files of conversation endpoints. Raises ConservationError, TableChangedError."""
        return conversations.merge(self._table, keep, min_files)

    def clean(self, *, retention: timedelta, safe_age: timedelta) -> Cleaned:
        """Remove what nobody needs any more."""
        return cleaning.clean(self._table, retention, safe_age)

    def shorten_log(self, *, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove old entries of the log."""
        return self._table.log.shorten(retention)

    def remove_outbox(self, files: Sequence[DataFile], now: datetime) -> None:
        """Remove outbox files whose messages have been sent on."""
        del now
        moving.remove_outbox(self._table, files)

    def remove_transmissions(self, files: Sequence[DataFile], now: datetime) -> None:
        """Remove files of dialog messages that their target queues have taken."""
        del now
        moving.remove_transmissions(self._table, files)

    def events(self, since_version: int = -1, *, until_version: int | None = None, types: Collection[EventType] | None = None) -> Iterator[Event]:
        """Return the recorded events of later versions, in the order of their commits."""
        return history.read(self._table, since_version, until_version, types)

    def newest_events(
        self, limit: int, *, lookup_ids: Collection[int] | None = None, types: Collection[EventType] | None = None, since: datetime | None = None
    ) -> tuple[Sequence[Event], int]:
        """Return the newest recorded events, in the order of their commits, and how many earlier ones there are."""
        wanted = history.Wanted(None if lookup_ids is None else frozenset(lookup_ids), types, since)
        return history.newest(self._table, limit, wanted)
