"""Maintain: keep a queue's folder small and its log short, while senders and passes go on; and repair what a check has found.

A repair does what needs no guess. No message is ever deleted, and nothing that a journal says is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.dialogs.acts import ConversationState
from airflow_poison.fsck.check import SAFE_AGE, CheckResult, check_queue, give_up_files, repair_log, settle_foreign
from airflow_poison.fsck.files import worked
from airflow_poison.passes.due import return_held
from airflow_poison.passes.relay import relay
from airflow_poison.rules.settings import duration, whole_number
from airflow_poison.store.disk import named
from airflow_poison.store.files import Claim, PlanState
from airflow_poison.values.errors import InputError, PoisonError
from airflow_poison.values.events import EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.plans import StoredPlan
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

LEASE = timedelta(minutes=2)
_EVERYTHING = timedelta(days=365_000)
"""A retention that keeps every file of every version: to remove them is maintenance, not repair."""


@dataclass(frozen=True, slots=True)
class RepairResult(Plain):
    """What a repair did.

    :param done: what was mended, a sentence each.
    :param failed: what could not be, and why.
    """

    queue: str
    done: tuple[str, ...]
    failed: tuple[str, ...]
    after: CheckResult


def repair(
    store: QueueStore, name: str, clock: Clock, *, accept: bool = False, accept_loss: bool = False, safe_age: timedelta = SAFE_AGE
) -> RepairResult:
    """Repair a queue as far as that needs no guess.

    What a loss of power left of the log is set aside; damaged entries of the log are put back from their copies; commits of other programs are
    undone where that loses nothing; the outbox is sent on, held messages come to ``main``; expired claims of
    which nothing was delivered are given back; orphans and stages without a claim are removed. Safe beside every other verb, and to repeat.
    In an object store, whose log is not mended here, that begins with the outbox.

    :param accept: accept the commits of other programs, as they are now.
    :param accept_loss: go on without files of the table, and without the newest commits, that are damaged or gone and of which there is no copy.
        Their messages are lost. An event and the result have the lookup ids; what is left of the files is kept in the folder ``_repaired``.
    """
    done: list[str] = []
    failed: list[str] = []
    try:
        if store.is_folder:
            done += _table(str(Path(store.uri, name)), clock, accept=accept, accept_loss=accept_loss)
        elif accept or accept_loss:
            raise InputError(
                f"The queue {name!r} is in the object store {store.uri}: what somebody else has committed there, and what is lost, is no matter of a "
                "repair. RESTORE the table to the last version of ours with any Delta writer, or put the objects back from a backup."
            )
        table = store.open(name)
    except PoisonError as error:
        failed.append(str(error))
    else:
        for step in (_relay(store, table, clock), _bring_held(table, clock), _release(table, clock), _clean(table, safe_age)):
            try:
                done += step
            except PoisonError as error:
                failed.append(str(error))
    return RepairResult(name, tuple(done), tuple(failed), check_queue(store, name, clock, safe_age=safe_age))


def _table(root: str, clock: Clock, *, accept: bool, accept_loss: bool) -> Iterator[str]:
    """Mend the table itself, in the folder in which it lies."""
    with named(root):
        yield from repair_log(root, accept_loss=accept_loss)
    yield from settle_foreign(root, accept=accept)
    if accept_loss:
        yield from give_up_files(root, clock)


def repair_store(store: QueueStore) -> tuple[str, ...]:
    """Remove what killed makers of queues have left beside the queues."""
    return tuple(f"removed {name}, a queue that was never made" for name in store.sweep(SAFE_AGE))


# What was left undone: each step does its work when it is asked what it did ------------------------------------------


def _relay(store: QueueStore, table: QueueTable, clock: Clock) -> Iterator[str]:
    if sent := relay(store, table, clock):
        yield f"sent {sent} message(s) of the outbox on"


def _bring_held(table: QueueTable, clock: Clock) -> Iterator[str]:
    if moved := return_held(table, clock.now()):
        yield f"brought {moved} held message(s) to main"


def _release(table: QueueTable, clock: Clock) -> Iterator[str]:
    """Give expired claims back of which nothing was delivered: looked at again when no earlier holder can write any more."""
    for claim in table.expired(clock.now()):
        if worked(table.root, claim):
            continue
        mine = table.take_over(claim, lease=LEASE, now=clock.now())
        if mine is not None and not worked(table.root, mine):
            table.release(mine)
            yield f"gave {mine.messages} message(s) of the expired claim {mine.key} back"


def _clean(table: QueueTable, safe_age: timedelta) -> Iterator[str]:
    cleaned = table.clean(retention=_EVERYTHING, safe_age=safe_age)
    numbers = {"orphaned file(s)": cleaned.orphans, "stage folder(s)": cleaned.stages, "unfinished file(s)": cleaned.temporary}
    if text := ", ".join(f"{number} {name}" for name, number in numbers.items() if number):
        yield f"removed {text}"


RETENTION = timedelta(days=7)
WHILE_ROWS_WAIT = timedelta(days=3_650)
"""The retention while returned rows wait for their outputs: a message whose row is refused comes back from such a version."""
SAFE_AGE = timedelta(days=1)
REMEMBER = timedelta(days=30)
MIN_FILES = 16


@dataclass(frozen=True, slots=True)
class MaintainResult(Plain):
    """What a maintenance did.

    :param relayed: messages that a killed pass had left in the outbox, sent on now.
    :param compacted: small files that were joined, files of conversation endpoints among them: ``files``, ``into``, ``rows``, ``size`` (bytes).
    :param removed: files, folders and plans that are gone, by reason: ``expired``, ``orphans``, ``stages``, ``temporary``, ``log_entries``,
        ``creations`` (of queues of the same store whose maker was killed), ``plans`` (that have ended more than 30 days ago).
    :param kept: files that stay although no version needs them now, by reason: ``retention``, ``young``, ``staged``, ``history``.
    :param freed_bytes: what the removal has given back to the disk.
    :param oldest_version: the oldest version that can still be read; ``checkpoint``: the newest checkpoint's, -1: none.
    :param expired_claims: claims that are not renewed: ``key``, ``sub_queue``, ``messages``, ``expired_at``. The next receive task finishes them.
    """

    queue: str
    relayed: int = 0
    compacted: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    freed_bytes: int = 0
    oldest_version: int = 0
    checkpoint: int = -1
    expired_claims: tuple[Mapping[str, object], ...] = ()


def maintain(
    table: QueueTable,
    clock: Clock,
    *,
    store: QueueStore | None = None,
    retention: timedelta = RETENTION,
    safe_age: timedelta = SAFE_AGE,
    min_files: int = MIN_FILES,
    remember: timedelta = REMEMBER,
) -> MaintainResult:
    """Join small files, remove files that are no longer needed, shorten the log. Each step is whole by itself: killed anywhere, run it again.

    :param store: where messages are sent on that a killed pass had left in the outbox, and where what killed makers of queues have left is removed;
        without it they wait.
    :param retention: how long versions of the table can still be read; longer than the longest pass and the slowest reader.
    :param safe_age: what belongs to no version stays so long: a send that takes longer may lose its files, fails, and sends nothing.
    :param min_files: as many small files have to follow each other before they are joined.
    :param remember: how long it is known that a conversation has ended: messages that come later belong to none.

    Claims are left alone; expired ones are reported. Raises SettingError, TableChangedError, ConservationError; nothing is lost then.
    """
    _check(retention, safe_age, min_files)
    reach("pass.maintain.before_relay")
    relayed = relay(store, table, clock) if store is not None else 0
    plans = _remove_plans(table, clock.now() - REMEMBER)
    reach("pass.maintain.before_compaction")
    compacted = table.compact(min_files=min_files)
    reach("pass.maintain.before_merging")
    compacted = compacted.plus(table.merge_conversations(_remembered(clock.now() - remember), min_files=min_files))
    if table.snapshot().landings:  # the bodies of their messages are in files of earlier versions
        retention = max(retention, WHILE_ROWS_WAIT)
    reach("pass.maintain.before_cleaning")
    cleaned = table.clean(retention=retention, safe_age=safe_age)
    reach("pass.maintain.before_shortening")
    shortened = table.shorten_log(retention=retention)
    reach("pass.maintain.after_shortening")
    creations = store.sweep(safe_age) if store is not None else []
    gone = {name: getattr(cleaned, name) for name in ("expired", "orphans", "stages", "temporary")}
    return MaintainResult(
        queue=table.name,
        relayed=relayed,
        compacted=asdict(compacted),
        removed=gone | {"log_entries": shortened.entries, "creations": len(creations), "plans": plans},
        kept={name: getattr(cleaned, f"kept_{name}") for name in ("retention", "young", "staged", "history")},
        freed_bytes=cleaned.size + shortened.size,
        oldest_version=shortened.oldest,
        checkpoint=shortened.checkpoint,
        expired_claims=tuple(_reported(claim) for claim in table.expired(clock.now())),
    )


_ENDED = frozenset({PlanState.DONE, PlanState.CANCELLED, PlanState.UNDONE})


def _remove_plans(table: QueueTable, before: datetime) -> int:
    """Remove plans that ended before an instant, and plans whose state the log has forgotten; return how many."""
    ended = [each for each in table.stored_plans() if each.state in _ENDED and _recorded_before(each, before)]
    if ended:
        late = {event.details.get("plan") for event in table.events(types={EventType.PLAN_CHANGED}) if event.at >= before}
        ended = [each for each in ended if each.plan not in late]
    return table.remove_plans(ended)


def _recorded_before(plan: StoredPlan, before: datetime) -> bool:
    """Whether a plan was recorded before an instant; not one that does not say when."""
    try:
        return datetime.fromisoformat(plan.record["at"]) < before
    except (LookupError, TypeError, ValueError):
        return False


def _remembered(since: datetime) -> Callable[[pa.Table], pa.Table]:
    """Return what leaves out the conversation endpoints that were closed before."""

    def keep(endpoints: pa.Table) -> pa.Table:
        states = zip(*(endpoints.column(name).to_pylist() for name in ("message_type", "enqueued_at")), strict=True)
        stays = [state != ConversationState.CLOSED or at is None or at >= since for state, at in states]
        return endpoints.filter(pa.array(stays, pa.bool_()))

    return keep


def _check(retention: timedelta, safe_age: timedelta, min_files: int) -> None:
    duration("retention", retention)
    duration("safe_age", safe_age)
    whole_number("min_files", min_files, 2)


def _reported(claim: Claim) -> Mapping[str, object]:
    return {
        "key": claim.key,
        "sub_queue": claim.sub_queue,
        "messages": claim.messages,
        "expired_at": claim.expires_at.isoformat(),
    }
