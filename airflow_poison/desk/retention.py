"""Retention: poison that is older than a duration is reported; or written as Parquet, and then removed through a plan. Off unless it is set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.desk import sql
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply
from airflow_poison.desk.exporting import export_files
from airflow_poison.desk.masking import configure
from airflow_poison.desk.plans import OPEN, PlanView, cancel, find_plan, plan, record
from airflow_poison.desk.selection import Selection
from airflow_poison.rules import settings
from airflow_poison.store import object_store_of
from airflow_poison.store.files import PlanState
from airflow_poison.values.errors import PlanStateError, SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.plans import StoredPlan
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

PART = "retention"
"""The name of the retention among the settings of a queue's desk."""
WHY = "retention"


@dataclass(frozen=True, slots=True)
class Retention(Plain):
    """The retention of old poison. Raises SettingError.

    :param after: so long after it became poison it is old.
    :param export_to: a folder, or a prefix in an object store, where it is written; None: it is only reported.
    :param remove: it is removed once it is written. It is set with ``export_to``, because what stays would be written again by each run.
    """

    after: timedelta
    export_to: str | None = None
    remove: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        settings.duration("after", self.after, timedelta(seconds=1))
        place = self.export_to
        if place is not None and not (isinstance(place, str) and (object_store_of(place) or place.startswith(("/", "file:///")))):
            raise SettingError("export_to", place, "a whole path such as /archive/poison, or a prefix in an object store such as s3://lake/poison")
        if self.remove and self.export_to is None:
            raise SettingError("remove", self.remove, "False without export_to: what is removed is written somewhere first")
        if self.export_to is not None and not self.remove:
            raise SettingError("export_to", self.export_to, "None without remove=True: what stays would be written again by each run")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: ``after`` in seconds."""
        return {"after": self.after.total_seconds(), "export_to": self.export_to, "remove": self.remove}

    @classmethod
    def read(cls, values: object) -> Self | None:
        """Return the retention that plain values describe, as a control row or a DAG file gives them; None for none. Raises SettingError."""
        if values is None or isinstance(values, cls):
            return values
        if not isinstance(values, Mapping) or not {"after"} <= set(values) <= {"after", "export_to", "remove"}:
            raise SettingError(PART, values, "after (seconds, or a timedelta), export_to and remove")
        after = values["after"]
        return cls(
            after if isinstance(after, timedelta) else settings.seconds("after", after), values.get("export_to"), bool(values.get("remove", False))
        )


@dataclass(frozen=True, slots=True)
class RetainResult(Plain):
    """What a retention found and did.

    :param older: poison that was older than ``after`` seconds when it began; ``oldest_at``: since when the oldest of it is poison.
    :param removed: messages that were written and removed; ``waiting``: messages that passes have claimed, or whose plan is paused.
    :param plans: what removed them: each can be undone for as long as the table has its old files.
    :param files: where they were written.
    """

    queue: str
    at: datetime
    after: float
    older: int
    oldest_at: datetime | None = None
    removed: int = 0
    waiting: int = 0
    plans: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def recorded_retention(table: QueueTable) -> Retention | None:
    """Return the retention that is recorded in a queue; None: none is. Raises SettingError."""
    return Retention.read(table.snapshot().control.desk.get(PART))


def declare_retention(table: QueueTable, clock: Clock, retention: Retention | None) -> None:
    """Record the retention of a queue, in one commit, where it is another one; None: there is none any more."""
    if recorded_retention(table) != retention:
        configure(table, clock, **{PART: None if retention is None else retention.to_dict()})


def retain(
    table: QueueTable, clock: Clock, retention: Retention | None = None, *, who: str = WHY, store: QueueStore | None = None
) -> RetainResult | None:
    """Report poison that is too old; write and remove it where the retention says so. None: there is no retention.

    The messages are in a plan: it is recorded first, its messages are written, and only what was written is removed. Killed anywhere and run
    again, the plan goes on, and a file that is there is not written again. A plan that exports elsewhere and has removed nothing is cancelled.

    :param retention: None: the one that is recorded in the queue.
    :param who: for the events. :param store: of the queue: its options serve an export to an object store.
    Raises StoreUnreachableError, SettingError.
    """
    wanted = recorded_retention(table) if retention is None else retention
    if wanted is None:
        return None
    now = clock.now()
    old, oldest = _older(table, now - wanted.after)
    result = RetainResult(table.name, now, wanted.after.total_seconds(), len(old), oldest)
    if not wanted.remove:
        return result
    _cancel_elsewhere(table, clock, wanted, who)
    done = _finished(table, clock, store)
    if not any(view.state != PlanState.DONE for view in done) and _is_planned(table, clock, wanted, who):
        done += _finished(table, clock, store)
    return _told(table, result, done, store)


def _is_planned(table: QueueTable, clock: Clock, retention: Retention, who: str) -> bool:
    """Record the plan to remove what is too old now; return whether there is any."""
    assert retention.export_to is not None, "it is checked"
    before = clock.now() - retention.after
    old, _ = _older(table, before)
    if not old:
        return False
    made = plan(table, Selection(sub_queue=SubQueue.POISON, until=before), PlanAction(verb=Verb.REMOVE), clock, among=old)
    mine = record(table, made, clock, who=who, reason=WHY, export_to=retention.export_to)
    reach("desk.retain.after_record")
    first = next((each.plan for each in _open(table)), mine)
    if first != mine:  # another run does the same now
        cancel(table, mine, clock, who=who, reason=f"plan {first} does the same")
    return True


def _cancel_elsewhere(table: QueueTable, clock: Clock, retention: Retention, who: str) -> None:
    """Cancel plans whose place may never be written: the retention has another one now, and they have removed nothing."""
    for each in _open(table):
        if each.record["export_to"] != retention.export_to and not find_plan(table, each.plan).done:
            with suppress(PlanStateError):  # it has ended meanwhile
                cancel(table, each.plan, clock, who=who, reason=f"the retention exports to {retention.export_to} now")


def _finished(table: QueueTable, clock: Clock, store: QueueStore | None) -> list[PlanView]:
    """Go on with the plans of retentions, one after the other, the oldest first, and return them; the last one may have to wait."""
    done = list[PlanView]()
    for each in _open(table):
        done.append(apply(table, each.plan, clock, store=store))
        if done[-1].state != PlanState.DONE:
            break
    return done


def _open(table: QueueTable) -> list[StoredPlan]:
    return [each for each in table.stored_plans() if each.record.get("export_to") and each.state in OPEN]


def _told(table: QueueTable, result: RetainResult, done: list[PlanView], store: QueueStore | None) -> RetainResult:
    views = [find_plan(table, view.plan) for view in done]
    files = [name for view in views for name in export_files(table.name, view.plan, view.export_to, view.messages, store)]
    waiting = sum(view.messages - view.done for view in views if view.state != PlanState.DONE)
    removed = sum(view.done for view in views)
    return RetainResult(
        result.queue, result.at, result.after, result.older, result.oldest_at, removed, waiting, tuple(view.plan for view in views), tuple(files)
    )


# Since when messages are poison ---------------------------------------------------------------------------------------


def _older(table: QueueTable, before: datetime) -> tuple[list[int], datetime | None]:
    """Return the messages that became poison before an instant, and when the first of them did: by their last event, else by when they were sent."""
    files = [file for file in table.snapshot().files if file.sub_queue == SubQueue.POISON and _may_be_older(file.min_enqueued_at, before)]
    if not files:
        return [], None
    moved = f"event = '{EventType.MOVED_POISON.value}'"
    with sql.messages(table, files, events=True, unmask=True) as engine:
        engine.execute(
            f"""create temp table became as select lookup_id, max(occurred_at) as became_at from events
            where {moved} and lookup_id is not null and details->>'count' is null group by lookup_id"""
        )
        together = engine.execute(f"select details::varchar, occurred_at from events where {moved} and details->>'count' is not null").fetchall()
        for details, at in together:
            engine.execute("insert into became select unnest(?::bigint[]), ?", [list(table.messages_of(json.loads(details)) or ()), at])
        rows = engine.execute(
            """with latest as (select lookup_id, max(became_at) as became_at from became group by lookup_id)
            select lookup_id, coalesce(latest.became_at, enqueued_at) as since from messages left join latest using (lookup_id)
            where since < ? order by lookup_id""",
            [before],
        ).fetchall()
    oldest = min((since for _, since in rows if since is not None), default=None)
    return [number for number, _ in rows], None if oldest is None else oldest.astimezone(UTC)


def _may_be_older(earliest: datetime | None, before: datetime) -> bool:
    """Whether a file may hold such messages: one is sent before it is poison."""
    return earliest is None or earliest < before
