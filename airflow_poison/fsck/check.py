"""Check: hold a queue table against everything that a store promises, over its whole history. Reads numbers and footers, and whether
the content of files is what was written.

The log is read version by version, messages one by one as far as files of both sides of a commit are still there (`fsck.ledger`), then files,
claims and state as they are now. Nothing is repaired: see ``table_repair`` and the verb ``repair``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.fsck.files import (
    MOVE_AWAY,
    REPAIR,
    REPORT,
    RESTORE,
    Finding,
    Kind,
    Severity,
    check_claims,
    check_events,
    check_files,
    check_foreign,
    check_log,
    check_orphans,
    check_protection,
    check_staged,
    check_stages,
    read_claims,
)
from airflow_poison.fsck.ledger import Account, Step, account, check_account, check_dialogs, check_ids, check_rows, check_steps, steps
from airflow_poison.rules import policy_from_dict
from airflow_poison.store import QueueStore, data_files
from airflow_poison.store.control import BLOCKED_BY, BLOCKED_UNTIL, Control
from airflow_poison.store.data_files import CONTROL
from airflow_poison.store.delta_store import left_over
from airflow_poison.store.disk import LocalFolder, why
from airflow_poison.store.entries import LOG, remains
from airflow_poison.store.files import SEQUENCE, DataFile
from airflow_poison.store.past import Past, read_past
from airflow_poison.values.errors import InputError, NewerFormatError, PoisonError, SettingError, StoreUnreachableError
from airflow_poison.values.libraries import pa
from airflow_poison.values.schema import LANDING, OUTBOX, SubQueue
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

SAFE_AGE = timedelta(days=1)
"""How old a file without a reference must be before it counts as left behind, by the machine's clock."""
_LANDS_WITHIN = 600.0  # seconds
_SEVERITIES = tuple(Severity)


@dataclass(frozen=True, slots=True)
class CheckResult(Plain):
    """What a check found.

    :param queue: the queue; empty: the store itself.
    :param version: the newest version that can be read, -1: none.
    """

    queue: str
    uri: str
    version: int
    findings: tuple[Finding, ...]
    account: Account


def check(table: QueueTable, clock: Clock, *, safe_age: timedelta = SAFE_AGE) -> CheckResult:
    """Check a queue; of an object store a copy of all that is there.

    :param safe_age: what is younger and named by no version may belong to a verb that is under way, and is passed over.
    Raises InputError for a store that keeps no log, StoreUnreachableError when the folder cannot be read.
    """
    with table.folder.copied() as root:
        if not Path(root, LOG).is_dir():
            raise InputError(f"The queue {table.name!r} has no log: a check reads tables in Delta format, and the store in memory keeps no log.")
        found = check_folder(table.name, root, clock, safe_age=safe_age)
    return replace(found, uri=table.uri)


def check_queue(store: QueueStore, name: str, clock: Clock, *, safe_age: timedelta = SAFE_AGE) -> CheckResult:
    """Check a queue of a store, also one that no verb can open; of an object store a copy of all that is there. Raises InputError."""
    with store.copied(name) as root:
        found = check_folder(name, root, clock, safe_age=safe_age)
    ignored = [Finding(Kind.CONDITION_IGNORED, Severity.ERROR, what, "", MOVE_AWAY)] if (what := store.unkept(name)) else []
    return replace(found, uri=f"{store.uri.rstrip('/')}/{name}", findings=(*ignored, *found.findings))


def check_store(store: QueueStore, clock: Clock, *, safe_age: timedelta = SAFE_AGE) -> tuple[CheckResult, ...]:
    """Check the store's own folder (under the name ``""``) and every queue in it, also those that no verb can open."""
    queues = [check_queue(store, name, clock, safe_age=safe_age) for name in store.names()]
    left = (*_left_creations(Path(store.uri), safe_age), *_other_tables(store))
    return (*([CheckResult("", store.uri, -1, left, Account())] if left else []), *queues)


def check_folder(name: str, root: str, clock: Clock, *, safe_age: timedelta = SAFE_AGE) -> CheckResult:
    """Check the queue table in a folder. Raises InputError, StoreUnreachableError."""
    if not Path(root, LOG).is_dir():
        if remains(Path(root)):
            what = "the folder is gone, and there are files of messages: verbs refuse the table"
            gone = Finding(Kind.LOG_DAMAGED, Severity.ERROR, what, LOG, f"restore {LOG} from a backup")
            return CheckResult(name, root, -1, (gone,), Account())
        raise InputError(f"{root} holds no queue table in Delta format, which is what a check reads (the store in memory keeps no log).")
    try:
        past = read_past(root)
        history = list(steps(past))
        total = account(past, history)
        found = sorted(set(_findings(name, root, past, history, total, clock, safe_age)), key=_order)
    except PermissionError as error:
        message = f"The queue table {root} cannot be read: {error}. Give this user the right to read all of it; nothing was checked."
        raise StoreUnreachableError(message) from error
    except OSError as error:
        raise StoreUnreachableError(f"The queue table {root} cannot be read, so nothing was checked: {why(error)}.") from error
    return CheckResult(name, root, past.version, tuple(found), total)


def _order(finding: Finding) -> tuple[int, str, str]:
    return _SEVERITIES.index(finding.severity), finding.where, finding.what


def _findings(  # noqa: PLR0917
    name: str, root: str, past: Past, found: Sequence[Step], total: Account, clock: Clock, safe_age: timedelta
) -> Iterator[Finding]:
    yield from check_log(root, past)
    if past.damage:
        return  # which files count is not known
    live, now = past.live(), clock.now()
    yield from check_foreign(past)
    yield from check_protection(past)
    yield from check_steps(found)
    yield from check_account(total)
    yield from check_rows(root, found)
    yield from check_ids(root, live.values(), past.numbers().get(SEQUENCE, 0))
    yield from check_files(root, live.values())
    yield from check_orphans(root, past, safe_age)
    yield from check_events(past)
    yield from check_dialogs(root, past, live.values())
    held = read_claims(root, live)
    yield from check_claims(root, held, live, now)
    yield from check_staged(root, held.found, now)
    yield from check_stages(root, held, past, safe_age)
    control = _read_control(root, name, live)
    if isinstance(control, Finding):
        yield control
    else:
        yield from _check_state(control, live, past.version, now)
    yield from _check_outbox(live)
    yield from _check_landing(root, live, safe_age)


def _left_creations(root: Path, safe_age: timedelta) -> Iterator[Finding]:
    """Yield folders of queues that were being made when their maker was killed."""
    for folder in left_over(root, safe_age.total_seconds()):
        what = "a queue was being made here when its maker was killed; no queue of the store is meant"
        yield Finding(Kind.CREATION_LEFT, Severity.NOTE, what, folder.name, f"{REPAIR}, or maintain any queue of the store", mendable=True)


def _other_tables(store: QueueStore) -> Iterator[Finding]:
    """Yield the tables beside the queues that are none: they are passed over."""
    for name in store.others():
        what = "a Delta table that is no queue, for example an output: it is passed over, and no queue can have its name"
        yield Finding(Kind.OTHER_TABLE, Severity.NOTE, what, name, "nothing, or move it out of the store's root")


# The control row: policy, blocks, subscriptions, held messages; and the outbox ----------------------------------------


def _read_control(root: str, name: str, live: Mapping[str, DataFile]) -> Control | Finding:
    paths = [file.path for file in live.values() if file.sub_queue == CONTROL]
    if len(paths) != 1:
        what = f"the queue has {len(paths)} control rows instead of one: verbs cannot tell its policy and state"
        return Finding(Kind.CONTROL_ROWS, Severity.ERROR, what, f"sub_queue={CONTROL}", RESTORE)
    try:
        return data_files.control_from_row(data_files.read_columns(LocalFolder(root), paths[0], data_files.CONTROL_COLUMNS), name)
    except NewerFormatError as error:
        todo = "install the version that wrote it, or a newer one, wherever the queue is used"
        return Finding(Kind.FORMAT_NEWER, Severity.ERROR, str(error).partition(";")[0], paths[0], todo)
    except (PoisonError, OSError, ValueError, KeyError, TypeError, IndexError, pa.ArrowException) as error:
        what = f"the control row cannot be read ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        return Finding(Kind.CONTROL_UNREADABLE, Severity.ERROR, what, paths[0], RESTORE)


def _check_state(control: Control, live: Mapping[str, DataFile], version: int, now: datetime) -> Iterator[Finding]:
    try:
        policy_from_dict(control.policy)
    except SettingError as error:
        what = f"the recorded policy is none that this version knows ({error})"
        yield Finding(Kind.POLICY_UNKNOWN, Severity.WARNING, what, "", "run the receive task: it records its own policy")
    yield from _check_block(control, live, now)
    yield from _check_subscriptions(control, version)
    held = sum(file.rows for file in live.values() if file.sub_queue == SubQueue.TRANSMISSION)
    if held and not control.holds_sends:
        what = f"{held} message(s) wait in {SubQueue.TRANSMISSION} although the queue is {control.state.value}: nothing brings them to main"
        yield Finding(Kind.HELD_MESSAGES, Severity.ERROR, what, f"sub_queue={SubQueue.TRANSMISSION}", REPAIR, mendable=True)


def _check_block(control: Control, live: Mapping[str, DataFile], now: datetime) -> Iterator[Finding]:
    """Yield half a block, and a block by a message that has left."""
    until, by = control.counters.get(BLOCKED_UNTIL), control.counters.get(BLOCKED_BY)
    if (until is None) != (by is None):
        what = f"the queue has half a block ({BLOCKED_UNTIL}={until}, {BLOCKED_BY}={by})"
        yield Finding(Kind.BLOCK_INCONSISTENT, Severity.ERROR, what, "", "enable the queue, or restart its broker")
    elif by is not None and control.blocked_until(now) is not None and not _may_hold(live, by):
        what = f"the queue is blocked by message {by}, which is not in it any more"
        yield Finding(Kind.BLOCK_INCONSISTENT, Severity.ERROR, what, "", "enable the queue, or restart its broker")


def _may_hold(live: Mapping[str, DataFile], lookup_id: int) -> bool:
    """Whether statistics allow a message to be in the queue."""
    places = set(SubQueue)
    return any(file.sub_queue in places and file.min_lookup_id <= lookup_id <= file.max_lookup_id for file in live.values())


def _check_subscriptions(control: Control, version: int) -> Iterator[Finding]:
    for name, told in control.counters.items():
        if name.startswith(("told:", "telling:")) and told > version:
            what = f"{name} says version {told}, and the newest is {version}: nobody is told of what happens until then"
            yield Finding(Kind.SUBSCRIPTION_AHEAD, Severity.ERROR, what, "", f"the log lost versions, or the table is a copy; {REPORT}")


def _check_outbox(live: Mapping[str, DataFile]) -> Iterator[Finding]:
    """Yield what waits in the outbox: the pass that should have sent it on has died, or sends it right now."""
    waiting = [file for file in live.values() if file.sub_queue == OUTBOX]
    if waiting:
        what = f"{sum(file.rows for file in waiting)} message(s) wait in the outbox: the relay that should have sent them on has died"
        todo = f"run the receive task, or {REPAIR}; those for a Kafka topic: send-to-kafka, or send-to-kafka --take-back"
        yield Finding(Kind.OUTBOX_LEFT, Severity.WARNING, what, f"sub_queue={OUTBOX}", todo, mendable=True)


def _check_landing(root: str, live: Mapping[str, DataFile], safe_age: timedelta) -> Iterator[Finding]:
    """Yield rows that wait for their outputs; not while the pass that has written them may be putting them there."""
    landing = [file for file in live.values() if file.sub_queue == LANDING]
    if landing and _age(root, landing) >= min(safe_age.total_seconds(), _LANDS_WITHIN):
        what = f"rows of {len(landing)} file(s) that handlers returned are not in their outputs: the pass that should have put them there has died"
        yield Finding(Kind.LANDING_LEFT, Severity.WARNING, what, f"sub_queue={LANDING}", "run the receive task")


def _age(root: str, files: Sequence[DataFile]) -> float:
    """Return how many seconds ago the newest of these files was written; those that are gone by now are new."""
    try:
        return time.time() - max(Path(root, file.path).stat().st_mtime for file in files)
    except FileNotFoundError:
        return 0.0
