"""What every store can do: the seam between the verbs and the tables.

Two stores stand behind it, under one conformance suite: ``delta`` (queue tables in Delta Lake format) and ``memory`` (for tests and simulation).

A queue's content is a set of immutable *data files* (spec of the layout: docs/explanation/store.md). A pass claims whole files, delivers their
messages, stages what remains of them and ends with one compare-and-swap that adds what remains and removes what was claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from airflow_poison.core.message import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from airflow_poison.core.events import Event, EventType

FORMAT_VERSION = 2
"""Of tables that this version writes; see ``table.upgrading`` for what each one has brought."""


class QueueState(StrEnum):
    """Whether a queue's endpoint receives."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    STOPPED = "stopped"
    FAULTED = "faulted"


BLOCKED_UNTIL, BLOCKED_BY = "blocked_until_us", "blocked_by"
"""Counters of the control row: until when the queue is blocked, microseconds since 1970, and by which message."""
NOT_BEFORE_RESTART = datetime(9999, 12, 31, tzinfo=UTC)
"""The end of a block that only a restart of the broker, or the removal of the message, ends."""
HALTED_BY, POISON_HALTED_BY = "halted_by", "poison_halted_by"
"""Counters of the control row: the message that halted the endpoint, and the one that halted the reader of the poison sub-queue."""


def _is_ours(counter: str) -> bool:
    return counter.startswith(("told:", "telling:", "backlog:")) or counter in {BLOCKED_UNTIL, BLOCKED_BY, HALTED_BY, POISON_HALTED_BY}


@dataclass(frozen=True, slots=True)
class Control:
    """What a queue is told to do; one row of its table.

    :param policy: settings of the messaging system, as ``policy.to_dict()`` gives them.
    :param state: whether the endpoint receives.
    :param reason: why it does not, one line; empty when enabled.
    :param poison_state: the same of the reader of the poison sub-queue, which is an endpoint of its own (spec POI-1).
    :param poison_reason: why that one does not receive.
    :param counters: what the endpoint must remember over restarts, by name.
    :param format_version: version of the table's layout.
    """

    policy: Mapping[str, object]
    state: QueueState = QueueState.ENABLED
    reason: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    poison_state: QueueState = QueueState.ENABLED
    poison_reason: str = ""

    @property
    def endpoint_counters(self) -> Mapping[str, int]:
        """Return what the endpoint of the application queue left behind; the other counters are those of subscriptions, blocks and halts."""
        return {name: number for name, number in self.counters.items() if not _is_ours(name)}

    def with_endpoint_counters(self, counters: Mapping[str, int]) -> Control:
        """Return what the row says when the endpoint has left these counters behind."""
        ours = {name: number for name, number in self.counters.items() if _is_ours(name)}
        return replace(self, counters=ours | dict(counters))

    def blocked(self, lookup_id: int, until: datetime) -> Control:
        """Return what the row says while a message blocks the queue (spec DMP-14)."""
        return replace(self, counters={**self.counters, BLOCKED_UNTIL: int(until.timestamp() * 1_000_000), BLOCKED_BY: lookup_id})

    def unblocked(self) -> Control:
        """Return what the row says when nothing blocks the queue."""
        return self._without(BLOCKED_UNTIL, BLOCKED_BY)

    def blocked_until(self, now: datetime) -> datetime | None:
        """Return until when the queue is blocked; None when it is not, or not any more."""
        instant = self.counters.get(BLOCKED_UNTIL)
        until = None if instant is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=instant)
        return until if until is not None and until > now else None

    def endpoint(self, reads: SubQueue) -> tuple[QueueState, str]:
        """Return state and reason of the endpoint that reads a sub-queue."""
        return (self.poison_state, self.poison_reason) if reads is SubQueue.POISON else (self.state, self.reason)

    @property
    def holds_sends(self) -> bool:
        """Whether messages that are sent to the queue wait until it is enabled (spec SB-18, SB-19). A stopped or faulted one takes them."""
        return self.state is QueueState.DISABLED

    @property
    def halted_by(self) -> int | None:
        """The message that halted the endpoint, else the one that halted the reader of the poison sub-queue; None when none did."""
        return self.counters.get(HALTED_BY, self.counters.get(POISON_HALTED_BY))

    def halted(self, reads: SubQueue, state: QueueState, reason: str, lookup_id: int | None = None) -> Control:
        """Return what the row says when the endpoint that reads a sub-queue has halted; the other one goes on.

        A queue that people have disabled meanwhile stays so.

        :param lookup_id: the message that halted it; None: no single one.
        """
        named = POISON_HALTED_BY if reads is SubQueue.POISON else HALTED_BY
        row = self._without(named) if lookup_id is None else replace(self, counters={**self.counters, named: lookup_id})
        if reads is SubQueue.POISON:
            return replace(row, poison_state=state, poison_reason=reason)
        if self.holds_sends and self.reason:
            return replace(row, reason=f"{self.reason}; {reason}")
        return replace(row, state=QueueState.DISABLED if self.holds_sends else state, reason=reason)

    def enabled(self) -> Control:
        """Return what the row says when every endpoint of the queue receives."""
        row = self._without(HALTED_BY, POISON_HALTED_BY)
        return replace(row, state=QueueState.ENABLED, reason="", poison_state=QueueState.ENABLED, poison_reason="")

    def _without(self, *counters: str) -> Control:
        return replace(self, counters={name: number for name, number in self.counters.items() if name not in counters})


@dataclass(frozen=True, slots=True)
class DataFile:
    """One immutable file of messages and what its statistics say.

    :param path: relative to the queue's root, ``sub_queue=<s>/move_count=<n>/<name>.parquet``.
    :param rows: messages in it.
    :param size: bytes.
    :param max_due_at: when the last of its messages falls due; the file is due as a whole. Files that have returned to ``main`` keep it.
    """

    path: str
    sub_queue: str
    move_count: int
    rows: int
    size: int
    min_lookup_id: int
    max_lookup_id: int
    min_priority: int
    max_priority: int
    min_enqueued_at: datetime | None = None
    min_due_at: datetime | None = None
    max_due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The durable, expiring right of one pass to a set of files.

    :param key: the run key of the pass that made it; names its stage folder.
    :param epoch: raised by each takeover; a final commit with an older epoch changes nothing.
    :param attempt: names this holder's own folder below the stage (``_stage/<key>/<attempt>``).
    :param expires_at: when others may take it over unless it is renewed.
    :param files: the claimed files, in queue order: highest priority first, then lowest lookup id.
    :param exclusive: no other live claim may exist on the queue (policies that need one order).
    :param earlier: attempts of this claim's earlier holders, oldest first; what they left in the stage counts for this one.
    """

    key: str
    epoch: int
    attempt: str
    expires_at: datetime
    files: tuple[DataFile, ...]
    exclusive: bool = False
    earlier: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """Messages in the claimed files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The staged outcome of a claim, durable: from here on nothing is delivered again.

    :param files: what will be added, with paths below the stage (``staged``) and final paths (``path`` of the DataFile).
    :param tallies: what each task counted (rows of the ``_tally`` partition, parsed from JSON).
    :param result: the pass's own account, kept so that whoever finishes the claim reports the same.
    """

    files: tuple[tuple[str, DataFile], ...]
    tallies: tuple[Mapping[str, object], ...]
    result: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubQueueDepth:
    """What waits in one sub-queue: counts and ages from statistics alone, claimed messages included."""

    messages: int = 0
    claimed: int = 0
    oldest_enqueued_at: datetime | None = None
    next_due_at: datetime | None = None
    due: int = 0
    by_move_count: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a queue."""

    version: int
    control: Control
    files: tuple[DataFile, ...]  # of every sub-queue; in queue order
    claims: tuple[Claim, ...]
    outbox: tuple[DataFile, ...]

    def depth(self, sub_queue: SubQueue, now: datetime) -> SubQueueDepth:
        """Return what waits in a sub-queue; ``due`` counts messages whose due time has come."""
        files = [file for file in self.files if file.sub_queue == sub_queue]
        taken = {file.path for claim in self.claims for file in claim.files}
        by_move_count: dict[int, int] = {}
        for file in files:
            by_move_count[file.move_count] = by_move_count.get(file.move_count, 0) + file.rows
        ages = [file.min_enqueued_at for file in files if file.min_enqueued_at is not None]
        waits = sub_queue in {SubQueue.RETRY, SubQueue.POSTPONED}
        dues = [file.max_due_at for file in files if waits and file.max_due_at is not None]
        return SubQueueDepth(
            messages=sum(file.rows for file in files),
            claimed=sum(file.rows for file in files if file.path in taken),
            oldest_enqueued_at=min(ages, default=None),
            next_due_at=min(dues, default=None),
            due=sum(file.rows for file in files if waits and file.max_due_at is not None and file.max_due_at <= now),
            by_move_count=by_move_count,
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """What a send did: ids ``first_lookup_id`` .. ``first_lookup_id + messages - 1``; ``repeated`` when an earlier send with this key did it.

    :param held: of the messages, those that went into ``transmission`` because the queue was disabled then.
    """

    messages: int
    first_lookup_id: int
    repeated: bool = False
    held: int = 0


@dataclass(frozen=True, slots=True)
class Replacement:
    """A file and the rows that take its place.

    :param rows: ``table_schema()``; ``sub_queue`` and ``move_count`` say where each one goes (``_outbox``: it leaves for another queue).
    :param removed: how many of the file's messages go for good.
    """

    file: DataFile
    rows: pa.Table
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """What a return moved from ``retry`` to ``main``."""

    messages: int
    files: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction joined: ``files`` small ones with ``rows`` rows and ``size`` bytes became ``into``."""

    files: int = 0
    into: int = 0
    rows: int = 0
    size: int = 0

    def plus(self, other: Compacted) -> Compacted:
        """Return the sum."""
        return Compacted(self.files + other.files, self.into + other.into, self.rows + other.rows, self.size + other.size)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleaning removed from a table's folder, and what it kept although no version needs it now. All numbers but ``size`` are files.

    :param expired: of versions before the retention.
    :param orphans: of no version: what killed verbs had left.
    :param stages: folders of passes that have ended, and of sends that were killed.
    :param temporary: files that their writers had not finished.
    :param size: bytes of all of them. A file that has another name still keeps its place on the disk.
    :param kept_retention: removed from the table within the retention: readers of an older version need them.
    :param kept_young: of no version, and young: a send or a pass may be about to commit them.
    :param kept_staged: of no version, and named by what a pass has staged that somebody will finish.
    :param kept_told: named by an event that is told of each of their messages.
    """

    expired: int = 0
    orphans: int = 0
    stages: int = 0
    temporary: int = 0
    size: int = 0
    kept_retention: int = 0
    kept_young: int = 0
    kept_staged: int = 0
    kept_told: int = 0


@dataclass(frozen=True, slots=True)
class Shortened:
    """What became of the log.

    :param checkpoint: the version of the newest checkpoint; -1: none.
    :param entries: files of the log that were removed, with ``size`` bytes.
    :param oldest: the oldest version that can still be read.
    """

    checkpoint: int = -1
    entries: int = 0
    size: int = 0
    oldest: int = 0


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

    # The outbox and history ------------------------------------------------------------------------------------

    def remove_outbox(self, files: Sequence[DataFile], now: datetime) -> None:
        """Remove outbox files whose messages have been sent on."""
        ...

    def events(self, since_version: int = -1, *, until_version: int | None = None, types: Collection[EventType] | None = None) -> Iterator[Event]:
        """Return the recorded events of later versions, in the order of their commits.

        :param until_version: the last version that counts; None: the newest.
        :param types: only events of these types; None: all.
        """
        ...


class QueueStore(Protocol):
    """A set of queues under one root."""

    @property
    def uri(self) -> str:
        """The root."""
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
