"""Check and repair of a queue table.

A check holds a table against everything that a store promises, over its whole history: it reads the log version by version, messages one by one as
far as files of both sides of a commit are still there (``fsck.ledger``), then files, claims and state as they are now; and whether the content of
files is what was written. It changes nothing.

A repair mends the table itself, below the verbs: its log, commits of other programs, and files and commits that are lost for good. A table goes on
without the lost ones when people say so, and reports which messages they held.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from airflow_poison.fsck.files import (
    MOVE_AWAY,
    REPAIR,
    REPORT,
    RESTORE,
    Finding,
    Intrusion,
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
    intrusions,
    read_claims,
    restorable,
)
from airflow_poison.fsck.ledger import MESSAGES, Account, Step, account, check_account, check_dialogs, check_ids, check_rows, check_steps, steps
from airflow_poison.rules import policy_from_dict
from airflow_poison.store import QueueStore, data_files, disk, history, log_damage
from airflow_poison.store.control import BLOCKED_BY, BLOCKED_UNTIL, Control
from airflow_poison.store.data_files import CLAIM, CONTROL
from airflow_poison.store.delta_store import DeltaLog, left_over
from airflow_poison.store.disk import LocalFolder, why
from airflow_poison.store.entries import LOG, entry_path, remains
from airflow_poison.store.files import SEQUENCE, Commit, DataFile
from airflow_poison.store.past import Past, covering, read_past
from airflow_poison.store.stage import stage_folder
from airflow_poison.values.errors import InputError, NewerFormatError, PoisonError, SettingError, StoreUnreachableError, TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake, pa
from airflow_poison.values.schema import LANDING, OUTBOX, SubQueue
from airflow_poison.values.texts import Plain, first_line

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
    queues = [_checked(store, name, clock, safe_age) for name in store.names()]
    left = (*_left_creations(Path(store.uri), safe_age), *_other_tables(store))
    return (*([CheckResult("", store.uri, -1, left, Account())] if left else []), *queues)


def _checked(store: QueueStore, name: str, clock: Clock, safe_age: timedelta) -> CheckResult:
    """Check one of all queues. That it cannot be read is a finding: the others are checked."""
    try:
        return check_queue(store, name, clock, safe_age=safe_age)
    except (PoisonError, OSError) as error:
        todo = "give this user the right to read all of it, and look at the disk; the other queues are checked"
        unread = Finding(Kind.QUEUE_UNREADABLE, Severity.ERROR, f"nothing was checked: {first_line(error)}", "", todo)
        return CheckResult(name, f"{store.uri.rstrip('/')}/{name}", -1, (unread,), Account())


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
    for name, noted in control.counters.items():
        if name.startswith(("told:", "telling:")) and noted > version:
            what = f"{name} says version {noted}, and the newest is {version}: no alert is sent for what happens until then"
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


_BROKEN = frozenset({Kind.FILE_MISSING, Kind.FILE_CHANGED})


# The log --------------------------------------------------------------------------------------------------------------


def repair_log(root: str, *, accept_loss: bool) -> Iterator[str]:
    """Repair the log itself. Raises TableChangedError for what needs people's consent, or a backup."""
    if log_damage.set_aside(root):
        yield "took away what a loss of power had left of the log"
    back = log_damage.restore_entries(root)
    if back:
        yield f"put {len(back)} damaged commit(s) back from their copies: version {', '.join(map(str, back))}"
    found = log_damage.diagnose(root)
    checkpoint = covering(root) if found.lost else None
    if checkpoint is not None and found.lost[-1].version < checkpoint:
        yield _cut_behind(root, checkpoint)
        found = log_damage.diagnose(root)
    if found.lost or found.unmarked:
        if not accept_loss:
            lost = [mark.version for mark in found.lost] or [found.version]
            raise TableChangedError(
                f"The log of the queue table {root} has lost {len(lost)} commit(s), from version {lost[0]} on, and no copy is whole. Restore "
                f"{LOG} from a backup; or go on without them, and without the messages that they brought: add --accept-loss."
            )
        yield give_up_commits(root)
    past = read_past(root)
    if past.gap and not past.damage and (checkpoint := covering(root)) is not None:
        yield _cut_behind(root, checkpoint)


def _cut_behind(root: str, checkpoint: int) -> str:
    aside = log_damage.cut_behind_checkpoint(root, checkpoint)
    return f"set {len(aside)} entries of the log aside that a checkpoint covers"


# Commits of other programs ----------------------------------------------------------------------------------------------


def settle_foreign(root: str, *, accept: bool) -> Iterator[str]:
    """Undo or accept the last commits of another program."""
    past = read_past(root)
    last = [found for found in intrusions(past) if not found.seen and found.changed]
    for found in last:
        if accept:
            _force(root, found)
            yield _accept(root, found)
        elif restorable(found):
            _force(root, found)
            yield _restore(root, found)


def _force(root: str, found: Intrusion) -> None:
    """Force commits and files of other programs to disk before one of ours is built upon them: other writers may not do so themselves."""
    for path in (*(entry_path(root, entry.version) for entry in found.entries), *(Path(root, file.path) for file in found.fresh)):
        disk.sync_if_there(path)
    disk.sync(Path(root, LOG))


def _accept(root: str, found: Intrusion) -> str:
    log = DeltaLog(root, durable=True)
    state = log.newest()
    details = {"from": found.entries[0].version, "to": found.entries[-1].version}
    if state.version != found.entries[-1].version or not log.commit(state, Commit("accept", details=details)):
        raise TableChangedError(f"Somebody has committed to {root} while its changes were being accepted. Look again with a check.")
    return f"accepted what somebody else has committed: version {details['from']} to {details['to']}"


def _restore(root: str, found: Intrusion) -> str:
    """Go back to the last version of ours, with our mark: what was there after it is no part of the table any more, and stays on disk."""
    details = {"operation": "restore", "mark": uuid4().hex, "to": found.last_own}
    properties = deltalake.transaction.CommitProperties(max_commit_retries=0, custom_metadata={"userMetadata": json.dumps(details)})
    table = deltalake.DeltaTable(root)
    if table.version() != found.entries[-1].version:
        raise TableChangedError(f"Somebody has committed to {root} while it was being mended. Look again with a check.")
    reach("pass.repair.before_restore")
    try:
        table.restore(found.last_own, commit_properties=properties)
    except deltalake.exceptions.DeltaError as error:
        cause = str(error).partition("\n")[0]
        message = f"The queue table {root} cannot go back to version {found.last_own}: {cause}. Restore the missing files from a backup."
        raise TableChangedError(message) from error
    log = DeltaLog(root, durable=True)
    log.confirm(log.newest())
    return f"went back to version {found.last_own}: undid what somebody else has committed since"


# What is lost for good ------------------------------------------------------------------------------------------------


def give_up_files(root: str, clock: Clock) -> Iterator[str]:
    """Take files that are gone, or not what was committed, out of the table, in one commit that says so.

    A claim of such a file goes with it: what its pass did is forgotten, and the messages of its other files are delivered again.
    Raises TableChangedError where the control row is lost, or another program commits at the same moment.
    """
    log = DeltaLog(root, durable=True)
    state = log.newest()
    live = {file.path: file for file in state.files}
    broken = [live[finding.where] for finding in check_files(root, live.values()) if finding.kind in _BROKEN]
    if not broken:
        return
    if any(file.sub_queue == CONTROL for file in broken):
        raise TableChangedError(f"The control row of the queue table {root} is lost: its policy and state. Restore the file from a backup.")
    claims = _claims_of(root, live, {file.path for file in broken})
    messages = [file for file in broken if file.sub_queue in MESSAGES or file.sub_queue == OUTBOX]
    lost = {file.path: _lookup_ids(root, file, live.values()) for file in messages}
    events = [Event(EventType.LOST, clock.now(), details={"place": file.sub_queue, **lost[file.path]}) for file in messages]
    details = {"removed": sum(file.rows for file in messages), "files": [file.path for file in broken]}
    remains = [path for path in (Path(root, file.path) for file in broken) if path.exists()]
    for path in remains:
        log_damage.keep(root, path)
    added = data_files.write_events(LocalFolder(root), state.version + 1, events)
    removed = {file.path: file for file in (*broken, *claims.values())}
    if not log.commit(state, Commit("lose", add=added, remove=[*removed.values()], details=details, scratch=added)):
        raise TableChangedError(f"Somebody has committed to {root} while lost files were being given up. Run the repair again.")
    for path in remains:
        path.unlink(missing_ok=True)
    for key in claims:
        folder = Path(root, stage_folder(key))
        if folder.exists():
            log_damage.put_aside(root, folder)
        yield f"gave up the claim of the pass {key}: what it had done is forgotten, and its other messages are delivered again"
    for file in broken:
        ids = lost.get(file.path, {})
        what = f"{file.rows} message(s) with the lookup ids {', '.join(ids.values())}" if ids else f"{file.rows} row(s)"
        yield f"went on without {file.path}: {what} are lost"


def give_up_commits(root: str) -> str:
    """Put entries in which nothing happens in the place of the newest lost commits, and set aside the files of messages that these had brought.

    Returns what was done. Raises TableChangedError, OSError.
    """
    found = log_damage.diagnose(root)
    before = min((mark.version for mark in found.lost), default=found.version)
    known = _sequence(root, before - 1)
    on_disk = list(_files_on_disk(root))
    brought = [file for file in on_disk if file.min_lookup_id > known]
    last = max((file.max_lookup_id for file in on_disk), default=known)
    for file in brought:
        log_damage.keep(root, Path(root, file.path))
    broken = log_damage.accept_loss(root, max(known, last))
    for file in brought:
        Path(root, file.path).unlink(missing_ok=True)
    which = f"version {broken[0]}" + (f" to {broken[-1]}" if len(broken) > 1 else "")
    ids = f"; lookup ids {known + 1} to {last} are lost, their files are in {log_damage.ASIDE}" if last > known else ""
    return f"went on without {len(broken)} lost commit(s), {which}{ids}; neither versions nor lookup ids are used again"


def _sequence(root: str, version: int) -> int:
    """Return the last lookup id that had been given at a version. Raises TableChangedError when that cannot be read."""
    try:
        return deltalake.DeltaTable(root, version=version).transaction_version(SEQUENCE) or 0
    except deltalake.exceptions.DeltaError as error:
        cause = str(error).partition("\n")[0]
        raise TableChangedError(f"Version {version} of the queue table {root} cannot be read: {cause}. Restore {LOG} from a backup.") from error


def _files_on_disk(root: str) -> Iterator[DataFile]:
    """Yield every file of messages below a table's folder that can be read, whether a version names it or not."""
    for place in sorted(MESSAGES):
        for path in sorted(Path(root).glob(f"sub_queue={place}/move_count=*/*.parquet")):
            try:
                yield data_files.describe(path, path.relative_to(root).as_posix())
            except (OSError, pa.ArrowException):
                continue


def _claims_of(root: str, live: Mapping[str, DataFile], broken: set[str]) -> dict[str, DataFile]:
    """Return the rows of claims that are broken, or hold what is, by run key."""
    found = {}
    for row in (file for file in live.values() if file.sub_queue == CLAIM):
        for claim in read_claims(root, {row.path: row}).found:
            if broken.intersection(file.path for file in claim.files):
                found[claim.key] = row
    return found


def _lookup_ids(root: str, file: DataFile, live: Iterable[DataFile]) -> dict[str, str]:
    """Return the lookup ids of a lost file as an event's detail: those between its first and last that are in no other file.

    Those that have left the queue cannot be distinguished from lost ones; where there are any, the detail says among which ids the lost ones are.
    """
    wanted = np.arange(file.min_lookup_id, file.max_lookup_id + 1)
    for other in live:
        if other.path != file.path and other.sub_queue in MESSAGES and other.max_lookup_id >= wanted[0] and other.min_lookup_id <= wanted[-1]:
            try:
                wanted = np.setdiff1d(wanted, data_files.read_columns(LocalFolder(root), other.path, ["lookup_id"]).column("lookup_id").to_numpy())
            except (TableChangedError, OSError, pa.ArrowException):
                continue
            if not len(wanted):
                break
    ranges = history.as_ranges(wanted.tolist())
    return {"lookup_ids": ranges} if len(wanted) == file.rows else {"among": f"{file.rows} of {ranges}"}
