"""Repair of a table itself, below the verbs: its log, commits of other programs, and files and commits that are lost for good.

A table goes on without the lost ones when people say so, and reports which messages they held.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from airflow_poison.fsck.files import Intrusion, Kind, check_files, intrusions, read_claims, restorable
from airflow_poison.fsck.ledger import MESSAGES
from airflow_poison.store import data_files, disk, history, log_damage
from airflow_poison.store.data_files import CLAIM, CONTROL
from airflow_poison.store.delta_log import DeltaLog
from airflow_poison.store.disk import LocalFolder
from airflow_poison.store.entries import LOG, entry_path
from airflow_poison.store.files import SEQUENCE, Commit, DataFile
from airflow_poison.store.past import covering, read_past
from airflow_poison.store.stage import stage_folder
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake, pa
from airflow_poison.values.schema import OUTBOX

if TYPE_CHECKING:
    from airflow_poison.values.clock import Clock


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
