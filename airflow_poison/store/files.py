"""Types of a queue table: immutable files, claims, snapshots, commits and results of changes.

``Log`` is the interface between a queue table and the log that decides which of its files count. There are two: Delta's (``delta_log``) and one in
memory (``memory``). A log knows versions, files and numbers by name; it knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_poison.store.control import Control
    from airflow_poison.values.events import Event

COUNTS = ("read", "landed", "filtered")
"""The counts of rows that were transformed in place: ``read = landed + filtered`` and the messages that came of those that failed."""
SEQUENCE = "seq"
"""The number of the queue's last lookup id; never forgotten."""


class LogState(Protocol):
    """One version of the log."""

    @property
    def version(self) -> int:
        """Its number; the next commit that succeeds makes the following one."""

    @property
    def files(self) -> Sequence[DataFile]:
        """Every live file of every partition, in no order."""

    def paths(self, sub_queue: str) -> Sequence[str]:
        """Return the paths of the live files of one partition, without the cost of listing all others."""

    def number(self, name: str) -> int | None:
        """Return the number last committed under a name; None when there is none."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of the log, all or nothing.

    :param operation: what it is, for the history and the fault points.
    :param numbers: numbers that are set by name; the log forgets them when they have not been set for long (Delta's: 30 days).
    :param lasting: numbers that are set by name and never forgotten.
    :param details: further facts, JSON, kept with the version.
    :param data_change: False when the rows stay the same (a split).
    :param scratch: added files that only this try can use; removed when another commit was faster.
    """

    operation: str
    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    lasting: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    data_change: bool = True
    scratch: Sequence[DataFile] = ()


class Log(Protocol):
    """Versions of one table."""

    def identity(self) -> str:
        """Return the table's identity, under any name and place; a copy has the same."""

    def load(self) -> LogState:
        """Return the newest version. Raises TableChangedError when it cannot be read."""

    def mark(self, version: int) -> Hashable | None:
        """Return a version's identity, while it is the newest; None when it is not. Reads nothing."""

    def commit(self, base: LogState, commit: Commit) -> bool:
        """Make the version after ``base``; False when another process has made it, and then nothing happened.

        Raises TableChangedError when a file to be added is not there, StoreUnreachableError when the log cannot be written.
        """

    def removals(self) -> Mapping[str, float]:
        """Return when files were removed from the table, in seconds since 1970 of the machine, as far back as the log goes."""

    def shorten(self, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what is needed for no version that was the newest at some time within the retention."""

    def confirm(self, state: LogState) -> None:
        """Make a version as durable as one's own commit is: its maker may have died before it did so.

        Called before an answer is given that rests on another process's version: the work has been done already.
        """

    def files_at(self, version: int) -> Sequence[DataFile] | None:
        """Return the live files of an earlier version; None when the log does not have it any more. Changes nothing."""

    def details(self, version: int) -> Mapping[str, object] | None:
        """Return the details committed with a version; None when the log keeps them no longer."""


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
    :param given_up: its holder has ended and said so: the next pass goes on with it.
    """

    key: str
    epoch: int
    attempt: str
    expires_at: datetime
    files: tuple[DataFile, ...]
    exclusive: bool = False
    earlier: tuple[str, ...] = ()
    given_up: bool = False

    @property
    def messages(self) -> int:
        """Messages in the claimed files."""
        return sum(file.rows for file in self.files)

    @property
    def sub_queue(self) -> str:
        """The sub-queue that they are in."""
        return self.files[0].sub_queue


@dataclass(frozen=True, slots=True)
class Manifest:
    """The staged outcome of a claim, durable: from here on nothing is delivered again.

    :param files: what will be added, with paths below the stage and final paths (``path`` of the DataFile).
    :param tallies: what each task counted (rows of the ``_tally`` partition, parsed from JSON).
    :param result: the result of the pass, stored so that a later run that finishes the claim reports the same.
    """

    files: tuple[tuple[str, DataFile], ...]
    tallies: tuple[Mapping[str, object], ...]
    result: Mapping[str, object] = field(default_factory=dict)


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
class PlanStep:
    """What a change counts for a plan of people, in the same commit. It is made only while the plan is in one of these states.

    :param plan: the plan's id.
    :param messages: so many more are done.
    """

    plan: str
    messages: int
    states: frozenset[PlanState]


@dataclass(frozen=True, slots=True)
class Advance:
    """Progress of a source that a send commits with its messages; the commit fails when another send advanced the source meanwhile.

    :param before: path of the file with the previous progress; None when there is none.
    :param record: the new progress, as plain JSON values.
    :param keys: are added to the keys of earlier takes: the columns ``key`` and ``at``.
    :param keys_since: keys with a smaller ``at`` are forgotten. None: none is.
    """

    source: str
    before: str | None
    record: Mapping[str, object]
    keys: pa.Table | None = None
    keys_since: int | None = None


class PlanState(StrEnum):
    """How far a plan of people has come."""

    RUNNING = "running"
    PAUSED = "paused"
    CANARY = "canary"
    STOPPED = "stopped"
    DONE = "done"
    CANCELLED = "cancelled"
    UNDOING = "undoing"
    UNDONE = "undone"
    FAILED = "failed"  # the last one: the log has their numbers


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a verb from outside a pass does to conversations, all or nothing.

    :param rows: ``table_schema()``, in their order; ``sub_queue`` is ``_conversation`` or ``_transmission``. Those without ``enqueued_at`` get the
        time of the commit. None: no rows.
    :param replacements: of unclaimed files of messages.
    :param events: what that means.
    :param alone: require that the queue has no claims, not even expired ones.
    :param remove: files of ``_conversation`` and ``_transmission`` that go.
    """

    rows: pa.Table | None = None
    replacements: tuple[Replacement, ...] = ()
    events: tuple[Event, ...] = ()
    alone: bool = False
    remove: tuple[DataFile, ...] = ()


# One version ----------------------------------------------------------------------------------------------------------


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
    """One version of a queue.

    :param files: of every sub-queue, in queue order.
    :param conversations: of conversation endpoints, a row for each version of one; the row with the highest ``lookup_id`` of a handle counts.
    :param landings: of returned rows that are not in their outputs yet, in the order of the commits that brought them.
    :param plans: files of operators' plans, oldest first.
    :param sources: files with the progress of sources, in no order.
    :param transmissions: files of dialog messages that wait for their target queues, in commit order.
    """

    version: int
    control: Control
    files: tuple[DataFile, ...]
    claims: tuple[Claim, ...]
    outbox: tuple[DataFile, ...]
    conversations: tuple[DataFile, ...] = ()
    transmissions: tuple[DataFile, ...] = ()
    landings: tuple[DataFile, ...] = ()
    plans: tuple[DataFile, ...] = ()
    sources: tuple[DataFile, ...] = ()

    @property
    def claimed_paths(self) -> set[str]:
        """The paths of the files that passes have claimed."""
        return {file.path for claim in self.claims for file in claim.files}

    @property
    def has_conversations(self) -> bool:
        """Whether the queue has conversations, or has had a service whose dialogs may still bring messages."""
        return bool(self.control.has_had_services or self.conversations or self.transmissions)

    def depth(self, sub_queue: SubQueue, now: datetime) -> SubQueueDepth:
        """Return what waits in a sub-queue; ``due`` counts messages whose due time has come."""
        files = [file for file in self.files if file.sub_queue == sub_queue]
        taken = self.claimed_paths
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


# Results of changes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """What a send did: ids ``first_lookup_id`` .. ``first_lookup_id + messages - 1``; ``repeated`` when an earlier send with this key did it.

    :param held: of the messages, those that went into ``transmission`` because the queue was disabled then.
    :param malformed: of the messages, those that came with an error and went into ``poison``. Their ids are the last.
    :param counts: what came with the messages: the ``counts`` of the append.
    """

    messages: int
    first_lookup_id: int
    repeated: bool = False
    held: int = 0
    malformed: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


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
    :param kept_young: unreferenced files kept because they are young: a send or a pass may still commit them.
    :param kept_staged: unreferenced files kept because the staged outcome of an unfinished pass refers to them.
    :param kept_history: files kept because a history event still refers to them.
    """

    expired: int = 0
    orphans: int = 0
    stages: int = 0
    temporary: int = 0
    size: int = 0
    kept_retention: int = 0
    kept_young: int = 0
    kept_staged: int = 0
    kept_history: int = 0


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
