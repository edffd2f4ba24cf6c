"""A queue's table: what verbs do to it and read of it. What is above the store knows a queue by this class alone.

A queue's content is a set of immutable *data files* (spec of the layout: docs/explanation/store.md). A pass claims whole files, delivers their
messages, stages what remains of them and ends with one compare-and-swap that adds what remains and removes what was claimed. Under the table is a
log (``log.Log``), which has two implementations: Delta's and one in memory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.schema import SubQueue, message_schema
from airflow_poison.core.store.disk import with_named_errors
from airflow_poison.core.store.files import Replacement
from airflow_poison.core.store.table import appending, changing, claiming, cleaning, compaction, files, history, row_groups, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    import pyarrow as pa

    from airflow_poison.core.events import Event, EventType
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.files import Claim, Cleaned, Compacted, DataFile, Manifest, Returned, Sent, Shortened, Snapshot, Transaction
    from airflow_poison.core.store.log import Commit
    from airflow_poison.core.store.table.base import Table, View


@with_named_errors
class QueueTable:
    """One queue. All changes are atomic and visible to every later call of any process.

    :ivar table: what lies under the verbs; for the store and for the check of it.
    :ivar name: the queue's name.
    :ivar uri: where the table lies, a folder: what a reader of the format opens. Data files lie below it under the paths that ``DataFile`` says.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name, self.uri = table.name, table.root

    def __repr__(self) -> str:
        return f"QueueTable({self.name!r}, {self.uri!r})"

    def snapshot(self) -> Snapshot:
        """Return the newest version. Raises TableChangedError when somebody deleted what the table needs."""
        return self.table.view().snapshot

    def mark(self, version: int) -> Hashable | None:
        """Return what tells a version from another one in its place, while it is the newest; None when it is not, or that cannot be told.

        For those who look often: a few looks at the folder, nothing is read. Raises OSError.
        """
        return self.table.log.mark(version)

    # Changes outside a pass ------------------------------------------------------------------------------------

    def append(self, batches: Iterable[pa.RecordBatch], key: str, now: datetime) -> Sent:
        """Add messages to ``main`` with the next lookup ids, in one commit, once per key; to ``transmission`` while the queue is disabled.

        :param batches: columns of ``message_schema()``; ``lookup_id`` is ignored and assigned; missing columns get defaults
            (``message_id`` a random one, priority 5, ``enqueued_at`` now, counts 0).
        :param key: a second append with the same key changes nothing and returns the first one's numbers with ``repeated=True``.
        """
        return appending.append(self.table, batches, key, now)

    def alter(self, change: Callable[[Control], Control], events: Callable[[Control, Control], Sequence[Event]], now: datetime) -> Control:
        """Replace the control row by ``change(current)`` by compare-and-swap, writing ``events(before, after)`` in the same commit.

        When the queue is not disabled any more, what waits in ``transmission`` comes to ``main`` in this commit, too, uncounted and untold.
        """
        del now

        def plan(view: View) -> tuple[Commit | None, Control]:
            before = view.snapshot.control
            after = change(before)
            part = changing.control_change(self.table, view, lambda _: after)
            added = [*part.add, *history.write(self.uri, view.state.version + 1, events(before, after))]
            return (replace(part, add=added, scratch=added) if added else None), after

        return self.table.change(plan)

    def move_files(self, pick: Callable[[Snapshot], Sequence[DataFile]], target: SubQueue, now: datetime, *, count_move: bool = True) -> Returned:
        """Move whole unclaimed files to another sub-queue, as metadata, in one commit with a RETURNED (or MOVED_POISON) event a file.

        ``pick`` is asked again for each try against the newest snapshot; files of live claims are left out by the store.
        """
        return changing.move_files(self.table, pick, target, now, count_move=count_move)

    def split_file(self, file: DataFile, pieces: Sequence[pa.Table], now: datetime) -> None:
        """Replace one unclaimed file by pieces that together hold exactly its rows (``data_change=False``)."""
        del now
        changing.split_file(self.table, file, pieces)

    def replace_file(self, file: DataFile, rows: pa.Table, events: Sequence[Event], now: datetime) -> None:
        """Replace one unclaimed file by other rows (none: the file goes) and record what that means, in one commit.

        Raises TableChangedError when somebody has claimed, moved or removed the file meanwhile.
        """
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
        """Replace unclaimed files by other rows, record what that means and change the control row, all in one commit.

        :param replacements: asked for one by one, so that only one file's rows are in memory; ``events`` are looked at afterwards.
        :param alone: nobody may have a claim on the queue.
        Raises TableChangedError when somebody has claimed, moved or removed one of the files meanwhile, and ConservationError for rows that
        are not those of the file; nothing has changed then.
        """
        del now
        changing.replace_files(self.table, replacements, events, change, alone=alone)

    def transact(self, plan: Callable[[Snapshot], Transaction | None], key: str, now: datetime) -> bool:
        """Commit what ``plan`` makes of the newest snapshot, once per key; False when a transaction with this key was committed before.

        ``plan`` is asked again for each try, so what it reads and decides holds in the version that is made. When it gives None, nothing is
        committed, and the key stays free.
        Raises TableChangedError when a file that it names is claimed or gone, or anybody has a claim and it wants to be alone;
        ConservationError for rows that are not those of their file, or of another partition; nothing has changed then.
        """
        return changing.transact(self.table, plan, key, now)

    # A pass ----------------------------------------------------------------------------------------------------

    def claim(
        self, key: str, *, lease: timedelta, now: datetime, max_messages: int, exclusive: bool = False, sub_queue: SubQueue = SubQueue.MAIN
    ) -> Claim | None:
        """Claim whole files of a sub-queue (``main``; ``poison`` for its reader) in queue order up to ``max_messages``.

        None when there is nothing to receive: no file, another pass has an exclusive claim (or any, when this one wants to be
        exclusive), or this key's pass has finished (ask ``result``).
        A claim of the same key that still exists is taken over (epoch + 1, new attempt) instead. A first file that is larger
        than ``max_messages`` is split once, in a commit of its own. Expired claims of others are left alone: see ``expired``.
        Raises QueueHaltedError when the endpoint that reads the sub-queue is not enabled.
        """
        return claiming.claim(self.table, claiming.Wanted(key, now + lease, max_messages, exclusive, sub_queue))

    def expired(self, now: datetime) -> Sequence[Claim]:
        """Return the claims whose holder has not renewed them in time."""
        return claiming.expired(self.table.view(), now)

    def take_over(self, claim: Claim, *, lease: timedelta, now: datetime) -> Claim | None:
        """Become the holder of an expired claim (or one of one's own run key); None when somebody else was faster."""
        return claiming.take_over(self.table, claim, now + lease)

    def renew(self, claim: Claim, *, lease: timedelta, now: datetime) -> Claim:
        """Extend a claim. Raises ClaimLostError when this holder (key, epoch) does not hold it any more."""
        return claiming.renew(self.table, claim, lease, now)

    def release(self, claim: Claim) -> None:
        """Give claimed files back as they are. Nothing happens when the claim is not held any more."""
        claiming.release(self.table, claim)

    def read(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file with the columns of ``table_schema()``, or some columns of ``message_schema()``."""
        return files.read(self.uri, file) if columns is None else files.read_columns(self.uri, file.path, columns)

    def first(self, file: DataFile, limit: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the first rows of a file, highest priority first, then lowest lookup id; row groups behind them are not read.

        :param columns: ``lookup_id`` and ``priority`` among them; None: those of ``table_schema()``.
        """
        found = row_groups.first(self.uri, file.path, message_schema().names if columns is None else columns, limit)
        return files.placed(file, found) if columns is None else found

    def select(self, file: DataFile, lookup_ids: Collection[int], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file with these lookup ids; row groups that cannot hold them are not read. Columns as in ``first``."""
        found = row_groups.select(self.uri, file.path, message_schema().names if columns is None else columns, lookup_ids)
        return files.placed(file, found) if columns is None else found

    def stage(self, claim: Claim) -> str:
        """Return this holder's own stage folder, made if missing: outcome files go to ``<stage>/out``, journals to ``<stage>/journal``.

        Raises ClaimLostError when a later holder has fenced it.
        """
        return str(stage.own_folder(self.uri, claim))

    def begin(self, claim: Claim, note: str) -> None:
        """Write a note beside this holder's journals, ``<stage>/begun``, as durably as commits are: its delivery begins."""
        stage.begin(self.uri, claim, note, durable=self.table.durable)

    def journals(self, claim: Claim) -> Sequence[str]:
        """Return the journal folders of this claim's earlier holders, fenced: none of them can be opened for writing any more."""
        return [str(Path(folder, stage.JOURNAL)) for folder in stage.earlier_folders(self.uri, claim)]

    def stage_table(self, claim: Claim, table: pa.Table) -> None:
        """Write outcome rows (``table_schema()``, ``sub_queue`` and ``move_count`` say where to) into the stage, without Spark."""
        stage.stage_table(self.table, claim, table)

    def manifest(self, claim: Claim) -> Manifest | None:
        """Return the sealed outcome of this claim or of an earlier holder of it; None when there is none."""
        return stage.find_manifest(self.table, claim)

    def seal(self, claim: Claim, account: Callable[[Manifest], Mapping[str, object]]) -> Manifest:
        """List what was staged, let ``account`` check it and give the result, and write the manifest durably."""
        return stage.seal(self.table, claim, account)

    def finish(
        self,
        claim: Claim,
        manifest: Manifest,
        *,
        change: Callable[[Control], Control] | None = None,
        events: Sequence[Event] = (),
        now: datetime,
    ) -> bool:
        """The final commit: add what was staged, remove what was claimed and the claim, all or nothing; False when it was done before.

        ``change`` does with ``transmission`` what it does in ``alter``.
        Raises ClaimLostError (nothing committed) or TableChangedError (nothing committed, stage kept).
        """
        del now
        return claiming.finish(self.table, claim, manifest, change, events)

    def result(self, key: str) -> Mapping[str, object] | None:
        """Return the result that the final commit of this run key recorded; None when it has not finished."""
        version = self.table.log.load().number(f"run:{key}")
        if version is None:
            return None
        result = (self.table.log.details(version) or {}).get("result", {})
        assert isinstance(result, dict)
        return result

    def has_number(self, names: Iterable[str]) -> bool:
        """Whether one of these names has a number: ``send:<key>``, ``run:<pass key>``, ``transact:<key>``. The log forgets them after 30 days."""
        state = self.table.log.load()
        return any(state.number(name) is not None for name in names)

    # Maintenance: changes nothing that anybody reads, and may run beside everything and itself -------------------

    def compact(self, *, min_files: int) -> Compacted:
        """Join small unclaimed files that follow each other, of messages and of events, where at least ``min_files`` of them do.

        Raises ConservationError (nothing joined), TableChangedError.
        """
        return compaction.compact(self.table, min_files)

    def merge_conversations(self, keep: Callable[[pa.Table], pa.Table], *, min_files: int) -> Compacted:
        """Join the files of conversation endpoints where there are at least ``min_files``; of each endpoint the highest version stays.

        :param keep: is given the rows that count, a row for each endpoint, and returns those of them that stay. Asked only when all files are
            joined: what it leaves out is then gone, and no older version comes back.
        Raises ConservationError when it returns others; nothing has changed then.
        """
        return compaction.merge_conversations(self.table, keep, min_files)

    def clean(self, *, retention: timedelta, safe_age: timedelta) -> Cleaned:
        """Remove what no version within the retention needs, and what killed verbs have left. Both spans are of the machine's time.

        :param safe_age: files of no version, temporary ones and those of sends stay while they are younger; a send that takes longer fails.
        """
        return cleaning.clean(self.table, retention, safe_age)

    def shorten_log(self, *, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what the log needs for no version within the retention."""
        return self.table.log.shorten(retention)

    # The outbox, transmissions and history -----------------------------------------------------------------------

    def remove_outbox(self, files: Sequence[DataFile], now: datetime) -> None:
        """Remove outbox files whose messages have been sent on."""
        del now
        changing.remove_files(self.table, files, operation="remove_outbox")

    def remove_transmissions(self, files: Sequence[DataFile], now: datetime) -> None:
        """Remove files of dialog messages that their target queues have taken."""
        del now
        changing.remove_files(self.table, files, operation="remove_transmissions")

    def events(self, since_version: int = -1, *, until_version: int | None = None, types: Collection[EventType] | None = None) -> Iterator[Event]:
        """Return the recorded events of later versions, in the order of their commits.

        :param until_version: the last version that counts; None: the newest.
        :param types: only events of these types; None: all.
        """
        return history.read(self.table, since_version, until_version, types)

    def newest_events(
        self, limit: int, *, lookup_ids: Collection[int] | None = None, types: Collection[EventType] | None = None, since: datetime | None = None
    ) -> tuple[Sequence[Event], int]:
        """Return the newest recorded events, in the order of their commits, and how many earlier ones there are.

        Reads the row groups that hold them. The earlier ones are counted by statistics, or by the columns that decide.

        :param lookup_ids: only those of these messages; None: all, also of the queue itself.
        :param types: only those of these types. :param since: only those from then on.
        """
        wanted = history.Wanted(None if lookup_ids is None else frozenset(lookup_ids), types, since)
        return history.newest(self.table, limit, wanted)
