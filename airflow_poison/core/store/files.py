"""Files: the immutable files that a queue consists of, and what takes hold of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import pyarrow as pa

    from airflow_poison.core.events import Event


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
class Replacement:
    """A file and the rows that take its place.

    :param rows: ``table_schema()``; ``sub_queue`` and ``move_count`` say where each one goes (``_outbox``: it leaves for another queue).
    :param removed: how many of the file's messages go for good.
    """

    file: DataFile
    rows: pa.Table
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a verb from outside a pass does to conversations, all or nothing.

    :param rows: ``table_schema()``, in their order; ``sub_queue`` is ``_conversation`` or ``_transmission``. Those without ``enqueued_at`` get the
        time of the commit. None: no rows.
    :param replacements: of unclaimed files of messages.
    :param events: what that means.
    :param alone: nobody may have a claim on the queue, expired or not.
    :param remove: files of ``_conversation`` and ``_transmission`` that go.
    """

    rows: pa.Table | None = None
    replacements: tuple[Replacement, ...] = ()
    events: tuple[Event, ...] = ()
    alone: bool = False
    remove: tuple[DataFile, ...] = ()
