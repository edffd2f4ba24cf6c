"""Browse: a queue and its messages as people are shown them, without a lock and without changing anything."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from airflow_poison.passes.messages import Chosen, find, with_columns
from airflow_poison.passes.take import SourcePosition, positions
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.decisions import Counts
from airflow_poison.store.control import NOT_BEFORE_RESTART, Control, OutageState, QueueState
from airflow_poison.values.errors import SettingError
from airflow_poison.values.masking import Masking
from airflow_poison.values.schema import SubQueue, message_schema, table_schema
from airflow_poison.values.texts import BodyText, Plain, body_text, plain

if TYPE_CHECKING:
    from airflow_poison.store.files import DataFile, Snapshot, SubQueueDepth
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock


_PLACES = tuple(SubQueue)


@dataclass(frozen=True, slots=True)
class ClaimView(Plain):
    """A claim as people see it.

    :param expired: the next receive task takes it over: it was not renewed in time, or its pass has given it up.
    :param given_up: its pass has ended, and has recorded it.
    """

    key: str
    sub_queue: str
    messages: int
    expires_at: datetime
    expired: bool
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue at one moment; messages are counted by statistics alone.

    :param state: of the endpoint that reads ``main``; ``poison_state``: of the one that reads ``poison``.
    :param blocked_until: the queue is blocked until then; the year 9999: until a restart or a removal.
    :param blocked_by: the message that blocks it; ``obstacle``: why it stays in the queue.
    :param policy: the recorded settings, with ``system``.
    :param outage: what the handler of ``main`` needs is away, as the last pass knows; ``poison_outage``: of the reader of ``poison``.
    :param outbox: messages on their way to other queues.
    :param unsent: messages of dialogs that wait here until the partners' queues take them (spec SB-19).
    :param sources: what is taken into the queue, and how far.
    """

    queue: str
    uri: str
    version: int
    at: datetime
    state: str
    reason: str
    poison_state: str
    poison_reason: str
    halted_by: int | None
    blocked_until: datetime | None
    policy: Mapping[str, object]
    counters: Mapping[str, int]
    sub_queues: Mapping[SubQueue, SubQueueDepth]
    outbox: int = 0
    unsent: int = 0
    claims: tuple[ClaimView, ...] = field(default_factory=tuple)
    outage: OutageState | None = None
    poison_outage: OutageState | None = None
    sources: tuple[SourcePosition, ...] = ()
    blocked_by: int | None = None
    obstacle: str = ""

    @property
    def halted(self) -> bool:
        """Whether one of its endpoints does not receive."""
        return {self.state, self.poison_state} != {QueueState.ENABLED.value}

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest message was sent that is still in the queue."""
        return min((depth.oldest_enqueued_at for depth in self.sub_queues.values() if depth.oldest_enqueued_at), default=None)

    @property
    def next_due_at(self) -> datetime | None:
        """When the next message falls due that waits in ``retry`` or ``postponed``."""
        return min((depth.next_due_at for depth in self.sub_queues.values() if depth.next_due_at), default=None)

    @property
    def expired_claims(self) -> int:
        """Claims that were not renewed in time; without those that their passes have given up."""
        return sum(claim.expired and not claim.given_up for claim in self.claims)

    def to_dict(self) -> dict[str, object]:
        """Return plain values: instants as ISO 8601 in UTC, ``restart`` for a block that no time ends."""
        same = {name: getattr(self, name) for name in ("queue", "uri", "version", "state", "reason", "poison_state", "poison_reason", "halted_by")}
        return same | {
            "blocked_until": "restart" if self.blocked_until == NOT_BEFORE_RESTART else plain(self.blocked_until),
            "blocked_by": self.blocked_by,
            "obstacle": self.obstacle,
            "outage": _plain_outage(self.outage),
            "poison_outage": _plain_outage(self.poison_outage),
            "policy": dict(self.policy),
            "counters": dict(self.counters),
            "sub_queues": {place.value: _plain(depth) for place, depth in self.sub_queues.items()},
            "outbox": self.outbox,
            "unsent": self.unsent,
            "oldest_enqueued_at": plain(self.oldest_at),
            "next_due_at": plain(self.next_due_at),
            "claims": plain(self.claims),
            "expired_claims": self.expired_claims,
            "sources": plain(self.sources),
        }


def _plain_outage(outage: OutageState | None) -> dict[str, object] | None:
    if outage is None:
        return None
    return {"since": plain(outage.since), "next_probe_at": plain(outage.next_probe_at), "fingerprint": outage.fingerprint}


def overview(table: QueueTable, clock: Clock) -> QueueOverview:
    """Look at a queue: one version, no message read."""
    now = clock.now()
    return overview_of(table, table.snapshot(), now)


def overview_of(table: QueueTable, snapshot: Snapshot, now: datetime) -> QueueOverview:
    """Return what one version of a queue shows at a time."""
    control: Control = snapshot.control
    blocked_until = control.blocked_until(now)
    return QueueOverview(
        queue=table.name,
        uri=table.uri,
        version=snapshot.version,
        at=now,
        state=control.state.value,
        reason=control.reason,
        poison_state=control.poison_state.value,
        poison_reason=control.poison_reason,
        halted_by=control.halted_by,
        blocked_until=blocked_until,
        blocked_by=None if blocked_until is None else control.blocked_by,
        obstacle="" if blocked_until is None else _obstacle(control.policy),
        policy=control.policy,
        counters=control.endpoint_counters,
        sub_queues={place: snapshot.depth(place, now) for place in SubQueue},
        outage=control.outage(),
        poison_outage=control.outage(SubQueue.POISON),
        outbox=sum(file.rows for file in snapshot.outbox),
        unsent=sum(file.rows for file in snapshot.transmissions),
        sources=positions(table, snapshot),
        claims=tuple(
            ClaimView(claim.key, claim.sub_queue, claim.messages, claim.expires_at, claim.expires_at <= now, claim.given_up)
            for claim in snapshot.claims
        ),
    )


def _obstacle(settings: Mapping[str, object]) -> str:
    try:
        return policy_from_dict(settings).obstacle
    except SettingError:  # another version's
        return ""


@dataclass(frozen=True, slots=True)
class BrowseResult:
    """Messages of a queue, by sub-queue and in the order in which they would be received.

    :param more: how many were left out, by sub-queue.
    """

    queue: str
    messages: tuple[MessageRow, ...]
    more: Mapping[SubQueue, int] = field(default_factory=dict)


def browse(table: QueueTable, places: Collection[SubQueue], limit: int, *, bodies: bool = False, unmask: bool = False) -> BrowseResult:
    """Return the first messages of some sub-queues, as a receive would take them. Claimed ones are there, too.

    :param limit: how many of each sub-queue, at least 1.
    :param bodies: read the bodies, too; without them they are empty.
    :param unmask: with the values that the queue hides.
    """
    snapshot, found, more = table.snapshot(), list[MessageRow](), dict[SubQueue, int]()
    masking = None if unmask else Masking.recorded(snapshot.control.desk)
    for place in (place for place in _PLACES if place in places):
        files = [file for file in snapshot.files if file.sub_queue == place]
        rows = first_rows(table, files, limit, bodies=bodies or masking is not None)
        left = sum(file.rows for file in files) - rows.num_rows
        more |= {place: left} if left else {}
        shown = (masked(row, masking) for row in MessageRow.of(rows))
        found += shown if bodies or masking is None else (replace(row, body=b"") for row in shown)
    return BrowseResult(table.name, tuple(found), more)


def look_up(table: QueueTable, chosen: Chosen, *, unmask: bool = False) -> tuple[MessageRow, ...]:
    """Return the chosen messages that are there, whole, wherever they are; claimed ones, too.

    :param unmask: with the values that the queue hides.
    """
    snapshot = table.snapshot()
    masking = None if unmask else Masking.recorded(snapshot.control.desk)
    rows = [row for holder in find(table, snapshot, chosen) for row in MessageRow.of(table.select(holder.file, holder.lookup_ids))]
    return tuple(sorted((masked(row, masking) for row in rows), key=lambda row: row.lookup_id))


def recorded_mask(table: QueueTable) -> Masking | None:
    """Return which values a queue hides; None: none."""
    return Masking.recorded(table.snapshot().control.desk)


def first_rows(table: QueueTable, files: Sequence[DataFile], limit: int, *, bodies: bool) -> pa.Table:
    """Return the first rows of files in queue order; files behind the last row that counts are not read.

    :param files: by highest priority, then lowest lookup id.
    """
    best = table_schema().empty_table()
    before = accumulate((file.rows for file in files), initial=0)
    table.bring([file for file, rows in zip(files, before, strict=False) if rows < limit])  # what is read at least
    for file in files:
        if best.num_rows >= limit and not _may_precede(file, best):
            break
        best = pa.concat_tables([best, _rows(table, file, limit, bodies=bodies)])
        best = best.sort_by([("priority", "descending"), ("lookup_id", "ascending")]).slice(0, limit)
    return best


def _may_precede(file: DataFile, best: pa.Table) -> bool:
    last = best.slice(best.num_rows - 1).to_pylist()[0]
    return (-file.max_priority, file.min_lookup_id) < (-(last["priority"] or 0), last["lookup_id"] or 0)


def _rows(table: QueueTable, file: DataFile, limit: int, *, bodies: bool) -> pa.Table:
    if bodies:
        return table.first(file, limit)
    light = table.first(file, limit, [name for name in message_schema().names if name != "body"])
    there = dict(zip(light.column_names, light.columns, strict=True))
    there |= {name: pa.nulls(light.num_rows, table_schema().field(name).type) for name in ("body", "sub_queue", "move_count")}
    rows = pa.table([there[name] for name in table_schema().names], schema=table_schema())
    return with_columns(rows, sub_queue=file.sub_queue, move_count=file.move_count)


def _plain(depth: SubQueueDepth) -> dict[str, object]:
    return {
        "messages": depth.messages,
        "claimed": depth.claimed,
        "due": depth.due,
        "oldest_enqueued_at": plain(depth.oldest_enqueued_at),
        "next_due_at": plain(depth.next_due_at),
        "by_move_count": {str(count): messages for count, messages in sorted(depth.by_move_count.items())},
    }


# Messages --------------------------------------------------------------------------------------------------------------


MOST_BODY_BYTES = 64 * 1024
_BODY = ("body", "body_encoding", "body_bytes", "body_cut")
"""How much of a body ``to_dict`` keeps."""


@dataclass(frozen=True, slots=True)
class MessageRow(Plain):
    """A message and where it is; the columns of a queue table.

    :param last_error: kind, type, message, fingerprint and trace of its last failure; None before the first.
    """

    lookup_id: int
    message_id: str
    sub_queue: str
    abort_count: int
    move_count: int
    crash_count: int = 0
    priority: int = 0
    group_id: str | None = None
    conversation_id: str | None = None
    message_type: str | None = None
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    enqueued_at: datetime | None = None
    expires_at: datetime | None = None
    due_at: datetime | None = None
    last_error: Mapping[str, str | None] | None = None
    reason: str | None = None

    @classmethod
    def of(cls, rows: pa.Table) -> Iterator[Self]:
        """Yield the messages of rows of ``table_schema()``."""
        for row in rows.to_pylist():
            numbers = {name: row[name] or 0 for name in ("abort_count", "move_count", "crash_count", "priority")}
            texts = {"body": row["body"] or b"", "message_id": row["message_id"] or "", "properties": dict(row["properties"] or ())}
            yield cls(**{**row, **numbers, **texts})

    @property
    def counts(self) -> Counts:
        """What rules count."""
        return Counts(self.abort_count, self.move_count)

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    @property
    def group(self) -> str:
        """Its conversation group; a message without one is a group of its own."""
        return self.group_id or self.conversation_id or f"#{self.lookup_id}"

    @property
    def text(self) -> str | None:
        """The body as UTF-8 text; None when it is none."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None

    def shown(self, most: int | None = None) -> BodyText | None:
        """Return the body as people read it: XML as it says itself, all else as UTF-8. None: it is no text."""
        return body_text(self.body, most)

    def without_body(self) -> dict[str, object]:
        """Return plain values without the body, for a table of many."""
        return {name: value for name, value in self.to_dict().items() if name not in _BODY}

    def to_dict(self) -> dict[str, object]:
        """Return plain values. The body is text where it is UTF-8, else Base64, of its first 64 KiB.

        ``body_encoding`` says which, ``body_bytes`` how long the whole body is, ``body_cut`` whether something is missing.
        """
        is_text = self.text is not None
        begin = self.body[:MOST_BODY_BYTES]
        return Plain.to_dict(self) | {
            "body": begin.decode(errors="ignore") if is_text else base64.b64encode(begin).decode(),
            "body_encoding": "text" if is_text else "base64",
            "body_bytes": self.size,
            "body_cut": self.size > MOST_BODY_BYTES,
        }


def masked(row: MessageRow, masking: Masking | None) -> MessageRow:
    """Return a message for users who may not see what its queue hides: its body, properties and the texts of its failures.

    :param row: with its body, which says what is hidden in texts.
    :param masking: None: it is as it is.
    """
    if masking is None:
        return row
    values = masking.values(row.body, row.properties)
    error = None if row.last_error is None else {**row.last_error}
    if error is not None:
        error["message"], error["trace"] = values.hide(error.get("message") or ""), values.hide_trace(error.get("trace") or "")
    return replace(
        row,
        body=masking.body(row.body),
        properties=masking.properties(row.properties),
        last_error=error,
        reason=None if row.reason is None else values.hide(row.reason),
    )
