"""What every store can do: the seam between the verbs and the tables.

Two stores stand behind it, under one conformance suite: ``delta`` (queue tables in Delta Lake format) and ``memory`` (for tests and simulation).

A queue's content is a set of immutable *data files* (spec of the layout: docs/explanation/store.md). A pass claims whole files, delivers their
messages, stages what remains of them and ends with one compare-and-swap that adds what remains and removes what was claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from airflow_poison.core.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    import pyarrow as pa

    from airflow_poison.core.events import Event, EventType
    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.files import Claim, DataFile, Manifest, Replacement, Transaction
    from airflow_poison.core.store.results import Cleaned, Compacted, Returned, Sent, Shortened
    from airflow_poison.core.store.snapshot import Snapshot


class QueueTable(Protocol):
    """One queue. All changes are atomic and visible to every later call of any process."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    @property
    def uri(self) -> str:
        """Where the table lies; what a reader of the format opens."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the newest version. Raises TableChangedError when somebody deleted what the table needs."""
        ...

    def mark(self, version: int) -> Hashable | None:
        """Return what tells a version from another one in its place, while it is the newest; None when it is not, or that cannot be told.

        For those who look often: a few looks at the folder, nothing is read. Raises OSError.
        """
        ...

    # Changes outside a pass ------------------------------------------------------------------------------------

    def append(self, batches: Iterable[pa.RecordBatch], key: str, now: datetime) -> Sent:
        """Add messages to ``main`` with the next lookup ids, in one commit, once per key; to ``transmission`` while the queue is disabled.

        :param batches: columns of ``message_schema()``; ``lookup_id`` is ignored and assigned; missing columns get defaults
            (``message_id`` a random one, priority 5, ``enqueued_at`` now, counts 0).
        :param key: a second append with the same key changes nothing and returns the first one's numbers with ``repeated=True``.
        """
        ...

    def alter(self, change: Callable[[Control], Control], events: Callable[[Control, Control], Sequence[Event]], now: datetime) -> Control:
        """Replace the control row by ``change(current)`` by compare-and-swap, writing ``events(before, after)`` in the same commit.

        When the queue is not disabled any more, what waits in ``transmission`` comes to ``main`` in this commit, too, uncounted and untold.
        """
        ...

    def move_files(self, pick: Callable[[Snapshot], Sequence[DataFile]], target: SubQueue, now: datetime, *, count_move: bool = True) -> Returned:
        """Move whole unclaimed files to another sub-queue, as metadata, in one commit with a RETURNED (or MOVED_POISON) event a file.

        ``pick`` is asked again for each try against the newest snapshot; files of live claims are left out by the store.
        """
        ...

    def split_file(self, file: DataFile, pieces: Sequence[pa.Table], now: datetime) -> None:
        """Replace one unclaimed file by pieces that together hold exactly its rows (``data_change=False``)."""
        ...

    def replace_file(self, file: DataFile, rows: pa.Table, events: Sequence[Event], now: datetime) -> None:
        """Replace one unclaimed file by other rows (none: the file goes) and record what that means, in one commit.

        Raises TableChangedError when somebody has claimed, moved or removed the file meanwhile.
        """
        ...

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
        ...

    def transact(self, plan: Callable[[Snapshot], Transaction | None], key: str, now: datetime) -> bool:
        """Commit what ``plan`` makes of the newest snapshot, once per key; False when a transaction with this key was committed before.

        ``plan`` is asked again for each try, so what it reads and decides holds in the version that is made. When it gives None, nothing is
        committed, and the key stays free.
        Raises TableChangedError when a file that it names is claimed or gone, or anybody has a claim and it wants to be alone;
        ConservationError for rows that are not those of their file, or of another partition; nothing has changed then.
        """
        ...

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
        ...

    def expired(self, now: datetime) -> Sequence[Claim]:
        """Return the claims whose holder has not renewed them in time."""
        ...

    def take_over(self, claim: Claim, *, lease: timedelta, now: datetime) -> Claim | None:
        """Become the holder of an expired claim (or one of one's own run key); None when somebody else was faster."""
        ...

    def renew(self, claim: Claim, *, lease: timedelta, now: datetime) -> Claim:
        """Extend a claim. Raises ClaimLostError when this holder (key, epoch) does not hold it any more."""
        ...

    def release(self, claim: Claim) -> None:
        """Give claimed files back as they are. Nothing happens when the claim is not held any more."""
        ...

    def read(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file with the columns of ``table_schema()``, or some columns of ``message_schema()``."""
        ...

    def first(self, file: DataFile, limit: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the first rows of a file, highest priority first, then lowest lookup id; row groups behind them are not read.

        :param columns: ``lookup_id`` and ``priority`` among them; None: those of ``table_schema()``.
        """
        ...

    def select(self, file: DataFile, lookup_ids: Collection[int], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file with these lookup ids; row groups that cannot hold them are not read. Columns as in ``first``."""
        ...

    def stage(self, claim: Claim) -> str:
        """Return this holder's own stage folder, made if missing: outcome files go to ``<stage>/out``, journals to ``<stage>/journal``."""
        ...

    def begin(self, claim: Claim, note: str) -> None:
        """Write a note beside this holder's journals, ``<stage>/begun``, as durably as commits are: its delivery begins."""
        ...

    def journals(self, claim: Claim) -> Sequence[str]:
        """Return the journal folders of this claim's earlier holders, fenced: none of them can be opened for writing any more."""
        ...

    def stage_table(self, claim: Claim, table: pa.Table) -> None:
        """Write outcome rows (``table_schema()``, ``sub_queue`` and ``move_count`` say where to) into the stage, without Spark."""
        ...

    def manifest(self, claim: Claim) -> Manifest | None:
        """Return the sealed outcome of this claim or of an earlier holder of it; None when there is none."""
        ...

    def seal(self, claim: Claim, account: Callable[[Manifest], Mapping[str, object]]) -> Manifest:
        """List what was staged, let ``account`` check it and give the result, and write the manifest durably."""
        ...

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
        ...

    def result(self, key: str) -> Mapping[str, object] | None:
        """Return the result that the final commit of this run key recorded; None when it has not finished."""
        ...

    def has_number(self, names: Iterable[str]) -> bool:
        """Whether one of these names has a number: ``send:<key>``, ``run:<pass key>``, ``transact:<key>``. The log forgets them after 30 days."""
        ...

    # Maintenance: changes nothing that anybody reads, and may run beside everything and itself -------------------

    def compact(self, *, min_files: int) -> Compacted:
        """Join small unclaimed files that follow each other, of messages and of events, where at least ``min_files`` of them do.

        Raises ConservationError (nothing joined), TableChangedError.
        """
        ...

    def clean(self, *, retention: timedelta, safe_age: timedelta) -> Cleaned:
        """Remove what no version within the retention needs, and what killed verbs have left. Both spans are of the machine's time.

        :param safe_age: files of no version, temporary ones and those of sends stay while they are younger; a send that takes longer fails.
        """
        ...

    def shorten_log(self, *, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what the log needs for no version within the retention."""
        ...

    def merge_conversations(self, keep: Callable[[pa.Table], pa.Table], *, min_files: int) -> Compacted:
        """Join the files of conversation endpoints where there are at least ``min_files``; of each endpoint the highest version stays.

        :param keep: is given the rows that count, a row for each endpoint, and returns those of them that stay. Asked only when all files are
            joined: what it leaves out is then gone, and no older version comes back.
        Raises ConservationError when it returns others; nothing has changed then.
        """
        ...

    # The outbox, transmissions and history -----------------------------------------------------------------------

    def remove_outbox(self, files: Sequence[DataFile], now: datetime) -> None:
        """Remove outbox files whose messages have been sent on."""
        ...

    def remove_transmissions(self, files: Sequence[DataFile], now: datetime) -> None:
        """Remove files of dialog messages that their target queues have taken."""
        ...

    def events(self, since_version: int = -1, *, until_version: int | None = None, types: Collection[EventType] | None = None) -> Iterator[Event]:
        """Return the recorded events of later versions, in the order of their commits.

        :param until_version: the last version that counts; None: the newest.
        :param types: only events of these types; None: all.
        """
        ...

    def newest_events(
        self, limit: int, *, lookup_ids: Collection[int] | None = None, types: Collection[EventType] | None = None, since: datetime | None = None
    ) -> tuple[Sequence[Event], int]:
        """Return the newest recorded events, in the order of their commits, and how many earlier ones there are.

        Reads the row groups that hold them. The earlier ones are counted by statistics, or by the columns that decide.

        :param lookup_ids: only those of these messages; None: all, also of the queue itself.
        :param types: only those of these types. :param since: only those from then on.
        """
        ...


class QueueStore(Protocol):
    """A set of queues under one root."""

    @property
    def uri(self) -> str:
        """The root."""
        ...

    @property
    def absence(self) -> str:
        """That the root does not exist, and what to do, in words; empty when it does. That a store was never used is no error."""
        ...

    def create(self, name: str, control: Control, now: datetime) -> QueueTable:
        """Make a queue, or return it when it exists already (whatever its control row says). Raises QueueNameError."""
        ...

    def open(self, name: str, *, upgrade: bool = True) -> QueueTable:
        """Return a queue. Raises QueueNotFoundError, NewerFormatError, StoreUnreachableError.

        :param upgrade: bring a table of an earlier format to this one's, in one commit; False: leave it as it is, for those who only read.
        """
        ...

    def names(self) -> Sequence[str]:
        """Return the queues' names, sorted."""
        ...
