"""Findings about a queue table: what is wrong, where, and what to do; checks of its files, its log, and its claims.

What the log names is there, whole; what it does not name is an orphan; who else has committed there. Claims and stages: their holders, those that
have expired, and those without a holder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.delivery.failurelog import FailureReader
from airflow_poison.delivery.journal import read
from airflow_poison.store import data_files, stage
from airflow_poison.store.data_files import CLAIM, MANIFEST, STAGE, WAITING, content_difference, footer_difference, partition_of
from airflow_poison.store.delta_store import CONSTRAINT, PROPERTIES
from airflow_poison.store.disk import LocalFolder
from airflow_poison.store.entries import LOG, WITH_STATISTICS, files_of
from airflow_poison.store.files import SEQUENCE, DataFile
from airflow_poison.store.past import Past, Version, covering
from airflow_poison.store.stage import stage_folder
from airflow_poison.values.errors import PoisonError, StoreUnreachableError, TableChangedError
from airflow_poison.values.libraries import deltalake, pa
from airflow_poison.values.schema import EVENT
from airflow_poison.values.texts import Plain

if TYPE_CHECKING:
    from airflow_poison.store.files import Claim, DataFile
    from airflow_poison.store.past import Past


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Messages are missing, doubled, changed or unreadable, or verbs refuse the table."""
    WARNING = "warning"
    """Something was left undone; nothing is lost."""
    NOTE = "note"
    """A file that is not needed was left behind."""


class Kind(StrEnum):
    """What is wrong."""

    LOG_DAMAGED = "log_damaged"
    LOG_GAP = "log_gap"
    LAST_COMMIT_TORN = "last_commit_torn"
    CHECKPOINT_TORN = "checkpoint_torn"
    CHECKPOINT_DIFFERS = "checkpoint_differs"
    FOREIGN_COMMIT = "foreign_commit"
    PROTECTION_MISSING = "protection_missing"
    FORMAT_NEWER = "format_newer"
    QUEUE_UNREADABLE = "queue_unreadable"
    CONTROL_ROWS = "control_rows"
    CONTROL_UNREADABLE = "control_unreadable"
    BLOCK_INCONSISTENT = "block_inconsistent"
    SUBSCRIPTION_AHEAD = "subscription_ahead"
    POLICY_UNKNOWN = "policy_unknown"
    HELD_MESSAGES = "held_messages"
    OUTBOX_LEFT = "outbox_left"
    LANDING_LEFT = "landing_left"
    FILE_MISSING = "file_missing"
    FILE_CHANGED = "file_changed"
    FILE_UNREADABLE = "file_unreadable"
    FILE_MISPLACED = "file_misplaced"
    ORPHANED_FILES = "orphaned_files"
    NOT_CONSERVED = "not_conserved"
    HISTORY_IMPOSSIBLE = "history_impossible"
    MESSAGE_TWICE = "message_twice"
    MESSAGE_UNKNOWN = "message_unknown"
    MESSAGES_MISSING = "messages_missing"
    COUNT_FELL = "count_fell"
    EVENT_ORDER = "event_order"
    TRANSMISSION_ORDER = "transmission_order"
    ENDPOINT_TWICE = "endpoint_twice"
    CLAIM_UNREADABLE = "claim_unreadable"
    CLAIM_EXPIRED = "claim_expired"
    CLAIM_FILES_GONE = "claim_files_gone"
    CLAIMS_OVERLAP = "claims_overlap"
    STAGE_LEFT = "stage_left"
    STAGE_DAMAGED = "stage_damaged"
    JOURNAL_DAMAGED = "journal_damaged"
    CREATION_LEFT = "creation_left"
    OTHER_TABLE = "other_table"
    CONDITION_IGNORED = "condition_ignored"


@dataclass(frozen=True, slots=True)
class Finding(Plain):
    """One thing that is wrong.

    :param what: what is wrong, a sentence without a full stop.
    :param where: a path below the queue's folder, a version, a run key; empty: the whole table.
    :param todo: what to do, a sentence without a full stop.
    :param mendable: ``repair`` can mend it without guessing.
    """

    kind: Kind
    severity: Severity
    what: str
    where: str
    todo: str
    mendable: bool = False


REPAIR = "run the check with --repair"
RESTORE = "restore the table or the file from a backup, and find who changes it: only the package may write there"
GO_ON_WITHOUT = "to go on without it, run the check with --repair --accept-loss"
MOVE_AWAY = "stop all senders and passes, and copy the objects to a store that honours If-None-Match on PUT, or update the store or its proxy"
REPORT = "keep a copy of the table, and report it with the output of this check"


_OF_MESSAGES = ("rows", "min_lookup_id", "max_lookup_id", "min_priority", "max_priority", "min_enqueued_at")
_DUE = ("min_due_at", "max_due_at")
"""Compared where messages wait: elsewhere due times have passed, and a file that is moved whole keeps them in its rows alone."""


def check_files(root: str, live: Iterable[DataFile]) -> Iterator[Finding]:
    """Yield live files that are gone, changed, unreadable or misplaced. Reads all of them: pages have checksums."""
    for file in live:
        if partition_of(file.path) != (file.sub_queue, file.move_count):
            what = f"a file of sub_queue={file.sub_queue}, move_count={file.move_count} lies under a path that says something else"
            yield Finding(Kind.FILE_MISPLACED, Severity.ERROR, what, file.path, RESTORE)
            continue
        names = (*_OF_MESSAGES, *(_DUE if file.sub_queue in WAITING else ())) if file.sub_queue in WITH_STATISTICS else ("rows",)
        try:
            difference = footer_difference(LocalFolder(root), file, names) or content_difference(LocalFolder(root), file.path)
        except (StoreUnreachableError, OSError) as error:
            what = f"it cannot be read: {error.__cause__ or error}"
            yield Finding(Kind.FILE_UNREADABLE, Severity.ERROR, what, file.path, "give this user the right to read it")
        except TableChangedError:
            yield _changed(root, file)
        else:
            if difference:
                yield Finding(Kind.FILE_CHANGED, Severity.ERROR, difference, file.path, f"{RESTORE}; {GO_ON_WITHOUT}")


def _changed(root: str, file: DataFile) -> Finding:
    try:
        size = Path(root, file.path).stat().st_size
    except FileNotFoundError:
        what = f"a file with {file.rows} row(s){_ids(file)} is gone, and no commit removed it"
        return Finding(Kind.FILE_MISSING, Severity.ERROR, what, file.path, f"{RESTORE}; {GO_ON_WITHOUT}")
    what = f"it has {size} bytes; expected {file.size}"
    return Finding(Kind.FILE_CHANGED, Severity.ERROR, what + _ids(file), file.path, f"{RESTORE}; {GO_ON_WITHOUT}")


def _ids(file: DataFile) -> str:
    return f", lookup ids {file.min_lookup_id} to {file.max_lookup_id}," if file.max_lookup_id else ""


# Orphans --------------------------------------------------------------------------------------------------------------


def check_orphans(root: str, past: Past, safe_age: timedelta) -> Iterator[Finding]:
    """Yield files that no version names, a finding for each folder. Young ones may be a send's or a pass's that is under way."""
    for folder in sorted(Path(root).glob("sub_queue=*/move_count=*")):
        found: dict[str, int] = {}  # their sizes
        below = folder.relative_to(root).as_posix()
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and f"{below}/{entry.name}" not in past.named:
                seen = entry.stat(follow_symlinks=False)
                if time.time() - max(seen.st_mtime, seen.st_ctime) >= safe_age.total_seconds():
                    found[entry.name] = seen.st_size
        if found:
            size = sum(found.values())
            what = f"{len(found)} file(s) with {size} bytes are named by no version, such as {next(iter(found))}: a verb that was killed left them"
            yield Finding(Kind.ORPHANED_FILES, Severity.NOTE, what, below, REPAIR, mendable=True)


# The log itself -------------------------------------------------------------------------------------------------------


def check_log(root: str, past: Past) -> Iterator[Finding]:
    """Yield what is wrong with the log's own files."""
    checkpoint = covering(root) if past.lost else None
    for mark in past.lost:
        if mark.copy(root) is not None:
            copy, todo, mendable = "its copy is whole", f"{REPAIR}: it puts the copy back", True
        elif checkpoint is not None and mark.version < checkpoint:
            copy, todo, mendable = "a checkpoint covers it", f"{REPAIR}: it sets the older entries aside", True
        else:
            copy, todo, mendable = "no copy of it is whole", f"restore {LOG} from a backup, or {GO_ON_WITHOUT}", False
        what = f"an acknowledged commit is gone or not what was committed; {copy}"
        yield Finding(Kind.LOG_DAMAGED, Severity.ERROR, what, f"{LOG}/{mark.version:020d}.json", todo, mendable=mendable)
    if past.damage and not past.lost:
        todo = f"restore {LOG} from a backup, or {GO_ON_WITHOUT}" if past.unmarked else f"restore {LOG} from a backup; {REPORT}"
        yield Finding(Kind.LOG_DAMAGED, Severity.ERROR, past.damage, LOG, todo)
    if past.gap and not past.lost:
        what = f"{past.gap}: a checkpoint covers it, so no message is concerned, but the history begins with that checkpoint"
        yield Finding(Kind.LOG_GAP, Severity.WARNING, what, LOG, f"{REPAIR}: it sets the older entries aside", mendable=True)
    for name in past.torn:
        where = f"{LOG}/{name}"
        if name.endswith(".json"):
            what = "the last commit is empty or cut short, as a loss of power leaves it: it was never acknowledged, and does not count"
            yield Finding(Kind.LAST_COMMIT_TORN, Severity.WARNING, what, where, f"{REPAIR}, or let the next commit set it aside", mendable=True)
        else:
            what = "a shortcut for readers is damaged: a checkpoint that is cut short, gone, or of a version that does not count"
            yield Finding(Kind.CHECKPOINT_TORN, Severity.WARNING, what, where, REPAIR, mendable=True)
    if not past.damage and not past.torn:
        yield from _check_checkpoint(root, past)


def _check_checkpoint(root: str, past: Past) -> Iterator[Finding]:
    """Yield when readers, who begin with a checkpoint, see other files than the commits say."""
    try:
        seen = {file.path for file in files_of(deltalake.DeltaTable(root, version=past.version))}
    except (deltalake.exceptions.DeltaError, OSError) as error:
        what = f"readers cannot open version {past.version}: {str(error).partition(chr(10))[0]}"
        yield Finding(Kind.CHECKPOINT_DIFFERS, Severity.ERROR, what, LOG, RESTORE)
        return
    live = past.live()
    differing = seen.symmetric_difference(live)
    if differing:
        what = f"readers see {len(seen)} files where the commits say {len(live)}: a checkpoint is wrong about {min(differing)}"
        yield Finding(Kind.CHECKPOINT_DIFFERS, Severity.ERROR, what, LOG, f"remove the newest checkpoint and _last_checkpoint; {REPORT}")


def check_events(past: Past) -> Iterator[Finding]:
    """Yield event files whose name, their place in history, is not the version that they were committed with."""
    for entry in past.entries:
        for file in entry.adds:
            if file.sub_queue == EVENT and entry.ours and not _in_place(file.path, entry.version, entry.operation):
                what = f"events that were committed with version {entry.version} say another in their name: alerts are sent out of order"
                yield Finding(Kind.EVENT_ORDER, Severity.ERROR, what, file.path, REPORT)


def _in_place(path: str, version: int, operation: str) -> bool:
    """Whether a file of events is where it belongs; joined ones say the first and the last version that they hold."""
    words = path.rpartition("/")[2].split("-")
    versions = [int(word) for word in words[:2] if word.isdigit() and len(word) == 20]  # noqa: PLR2004  (digits of a version)
    if operation == "compact":
        return len(versions) > 0 and max(versions) < version
    return versions == [version]


# Commits of other programs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intrusion:
    """Versions of another program in a row, with their changes in sum.

    :param last_own: the version of ours before them.
    :param fresh: of the added files, those that no earlier version had.
    :param unknown: the log begins with them, so what was there before is not known.
    :param seen: a commit of ours came after them: it let them stand.
    """

    entries: Sequence[Version]
    last_own: int
    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    fresh: Sequence[DataFile]
    properties: bool
    columns: bool
    last_id: bool
    seen: bool
    unknown: bool

    @property
    def changed(self) -> bool:
        """Whether anything differs from before."""
        return bool(self.unknown or self.removed or self.added or self.properties or self.columns or self.last_id)


def intrusions(past: Past) -> Iterator[Intrusion]:
    """Yield each row of foreign versions; those that made the table are none."""
    entries = [*([] if past.base.ours else [past.base]), *past.entries]
    own = [index for index, entry in enumerate(entries) if entry.ours]
    start = own[0] if own and entries[0].version <= 1 else 0
    index = start
    while index < len(entries):
        end = index
        while end < len(entries) and not entries[end].ours:
            end += 1
        if end > index:
            yield _intrusion(past, entries[index:end], end < len(entries))
        index = end + 1


def _intrusion(past: Past, entries: Sequence[Version], seen: bool) -> Intrusion:  # noqa: FBT001
    last_own, last = entries[0].version - 1, entries[-1].version
    before, after = past.live(last_own), past.live(last)
    earlier = {file.path for entry in (past.base, *past.entries) if entry.version <= last_own for file in entry.adds}
    added = [file for path, file in after.items() if before.get(path) != file]
    return Intrusion(
        entries=entries,
        last_own=last_own,
        removed=[file for path, file in before.items() if after.get(path) != file],
        added=added,
        fresh=[file for file in added if file.path not in earlier],
        properties=past.protocol(last) != past.protocol(last_own) or past.configuration(last) != past.configuration(last_own),
        columns=past.columns(last) != past.columns(last_own),
        last_id=any(SEQUENCE in entry.numbers for entry in entries if entry is not past.base),
        seen=seen,
        unknown=entries[0] is past.base,
    )


def check_foreign(past: Past) -> Iterator[Finding]:
    """Yield the foreign commits at the end of the history: verbs refuse the table for them. Earlier ones were undone or accepted."""
    for found in intrusions(past):
        if found.seen or not found.changed:
            continue
        first, last = found.entries[0], found.entries[-1]
        where = f"version {first.version}" + ("" if first is last else f" to {last.version}")
        who = ", ".join(dict.fromkeys(f"{entry.operation} by {entry.writer or 'somebody'}" for entry in found.entries))
        changed = (("removed", found.removed), ("added", found.added))
        what = [f"{verb} {len(files)} file(s) with {sum(file.rows for file in files)} row(s)" for verb, files in changed if files]
        what += (
            ["changed the table's properties"] * found.properties
            + ["changed the columns"] * found.columns
            + ["changed the last lookup id"] * found.last_id
            + ["the log is cut behind them, so what they changed is not known"] * found.unknown
        )
        mendable = restorable(found)
        undo = f"RESTORE the table to version {found.last_own}" if not found.unknown else "put the table back from a backup"
        todo = REPAIR if mendable else f"look at what was changed, then {undo}"
        yield Finding(
            Kind.FOREIGN_COMMIT,
            Severity.ERROR,
            f"somebody else has committed ({who}) and {'; '.join(what)}, so every verb refuses the table",
            where,
            f"find who writes there and stop that; {todo}, or run the check with --accept to go on with the table as it is",
            mendable,
        )


def restorable(found: Intrusion) -> bool:
    """Whether going back to the last version of ours loses nothing: what was added was there before, or was written again from what was removed."""
    if found.unknown:
        return False
    again, back = sum(file.rows for file in found.fresh), sum(file.rows for file in found.removed)
    kept = again <= back and all(_inside(file, found.removed) for file in found.fresh)
    return kept and not found.last_id and not any(entry.protocol and entry.configuration is None for entry in found.entries)


def _inside(file: DataFile, removed: Sequence[DataFile]) -> bool:
    """Whether the ids of a foreign file are among those of files that were removed, as far as statistics show."""
    known = [other for other in removed if other.sub_queue == file.sub_queue]
    if not known or file.max_lookup_id == 0:
        return bool(known)
    return min(other.min_lookup_id for other in known) <= file.min_lookup_id and file.max_lookup_id <= max(other.max_lookup_id for other in known)


def check_protection(past: Past) -> Iterator[Finding]:
    """Yield properties that the table was made with and has no more."""
    now = past.configuration(past.version)
    wanted = PROPERTIES | {f"delta.constraints.{name}": rule for name, rule in CONSTRAINT.items()}
    for name, value in wanted.items():
        if now.get(name) != value:
            what = f"the table's property {name} is {now.get(name, 'missing')!r}; expected {value!r}"
            todo = f"set it ({name} = {value}), then run the check with --accept"
            yield Finding(Kind.PROTECTION_MISSING, Severity.WARNING, what, "", todo)


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a version.

    :param unreadable: rows that are no claims: the file, and why.
    """

    found: Sequence[Claim]
    unreadable: Sequence[tuple[str, str]]


def read_claims(root: str, live: Mapping[str, DataFile]) -> Claims:
    """Return the claims that can be read."""
    found: list[Claim] = []
    unreadable: list[tuple[str, str]] = []
    for file in live.values():
        if file.sub_queue == CLAIM:
            try:
                found.append(data_files.claim_from_row(data_files.read_columns(LocalFolder(root), file.path, data_files.CLAIM_COLUMNS)))
            except (PoisonError, OSError, ValueError, KeyError, TypeError, IndexError, pa.ArrowException) as error:
                unreadable.append((file.path, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"))
    return Claims(found, unreadable)


def check_claims(root: str, claims: Claims, live: Mapping[str, DataFile], now: datetime) -> Iterator[Finding]:
    """Yield claims that cannot be kept."""
    for path, why in claims.unreadable:
        yield Finding(Kind.CLAIM_UNREADABLE, Severity.ERROR, f"a claim cannot be read ({why})", path, RESTORE)
    holders: dict[str, str] = {}
    for claim in claims.found:
        gone = [file.path for file in claim.files if file.path not in live]
        if gone:
            what = f"a claim names {len(gone)} file(s) that are no part of the queue any more, such as {gone[0]}: its pass can never end"
            yield Finding(Kind.CLAIM_FILES_GONE, Severity.ERROR, what, claim.key, RESTORE)
        shared = [file.path for file in claim.files if file.path in holders]
        if shared:
            what = f"two claims hold {len(shared)} file(s), such as {shared[0]}: the other is {holders[shared[0]]}"
            yield Finding(Kind.CLAIMS_OVERLAP, Severity.ERROR, what, claim.key, REPORT)
        holders |= {file.path: claim.key for file in claim.files}
        if claim.expires_at <= now:
            yield _expired(root, claim, now, whole=not gone)


def _expired(root: str, claim: Claim, now: datetime, *, whole: bool) -> Finding:
    """Return the finding for a claim that was not renewed, or was given up; it can be given back only when no process has worked on its messages."""
    ago = timedelta(seconds=int((now - claim.expires_at).total_seconds()))
    left = worked(root, claim)
    ended = "was given up" if claim.given_up else "expired"
    what = f"the claim of {claim.messages} messages {ended} {ago} ago and no pass has taken it over: {left or 'nothing of it was delivered'}"
    todo = REPAIR if not left else "run the receive task of the queue: it goes on where that pass stopped, and delivers nothing twice"
    severity = Severity.NOTE if claim.given_up else Severity.WARNING
    return Finding(Kind.CLAIM_EXPIRED, severity, what, claim.key, todo, mendable=not left and whole)


def worked(root: str, claim: Claim) -> str:
    """Return what a claim's holders have left that must not be forgotten, in words; empty: nothing."""
    folder = Path(root, stage_folder(claim.key))
    for attempt in folder.glob("*"):
        if (attempt / MANIFEST).exists():
            return "its outcome is sealed and waits for its commit"
    journals = {path.name.partition(".")[0] for path in folder.glob(f"*/{stage.JOURNAL}/*.journal*")}  # in an object store they are in pieces
    if journals:
        return f"{len(journals)} journal(s) say what was delivered"
    logs = [path for path in folder.glob(f"*/{stage.JOURNAL}/*.log*") if path.stat().st_size]
    return f"{len(logs)} log(s) of failures say that something was delivered" if logs else ""


# Stages ---------------------------------------------------------------------------------------------------------------


def check_stages(root: str, claims: Claims, past: Past, safe_age: timedelta) -> Iterator[Finding]:
    """Yield folders of the stage without a claim. Young ones may be about to get one."""
    stages = Path(root, STAGE)
    if claims.unreadable or not stages.is_dir():
        return  # their claim is not known
    held = {stage_folder(claim.key) for claim in claims.found}
    finished = {stage_folder(name.removeprefix("run:")) for name in past.numbers() if name.startswith("run:")}
    for folder in sorted(path for path in stages.iterdir() if path.is_dir()):
        where = f"{STAGE}/{folder.name}"
        if where in held or _age(folder) < safe_age.total_seconds():
            continue
        whose = "of a pass that has ended" if where in finished else "that no claim names: its pass was released, or its claim was removed"
        yield Finding(Kind.STAGE_LEFT, Severity.NOTE, f"a stage {whose}", where, REPAIR, mendable=True)


def _age(folder: Path) -> float:
    """Return the age of the youngest file in a folder, in seconds."""
    times = [path.lstat().st_mtime for path in (folder, *folder.rglob("*"))]
    return time.time() - max(times)


# What killed holders of claims have left: their sealed outcome, and the journals of what they delivered -----------------


_AGAIN = "put it back from a backup if there is one; then run the receive task: what cannot be read counts for nothing, and is delivered again"
_RIGHTS = "give this user the right to read it; the receive task refuses to go on until then"


def check_staged(root: str, claims: Sequence[Claim], now: datetime) -> Iterator[Finding]:
    """Yield what is damaged of the stages of expired claims: stages of live claims change while they are read.

    Another pass may take one over meanwhile: what is gone with its folder is no finding.
    """
    for claim in claims:
        if claim.expires_at > now:
            continue
        for folder in _holders(root, claim):
            found = [*_check_manifest(root, folder), *_check_journals(root, folder / stage.JOURNAL)]
            if folder.is_dir():
                yield from found


def _holders(root: str, claim: Claim) -> list[Path]:
    """Return the folders of all holders of a claim, fenced or not."""
    paths = (Path(root, name) for attempt in (*claim.earlier, claim.attempt) for name in stage.folder_names(claim.key, attempt))
    return [path for path in paths if path.is_dir()]


def _check_manifest(root: str, folder: Path) -> Iterator[Finding]:
    """Yield a manifest that cannot be read, and what it names that is not there as it was."""
    where = f"{folder.relative_to(root)}/{MANIFEST}"
    try:
        sealed = stage.read_manifest(root, folder)
    except (TableChangedError, OSError) as error:
        what = f"the sealed outcome of a pass cannot be read ({error.__cause__ or error}): no run can finish its claim"
        yield Finding(Kind.STAGE_DAMAGED, Severity.ERROR, what, where, f"{RESTORE}; without a copy, remove it: the journals beside it decide then")
        return
    for name, file in sealed.files if sealed is not None else ():
        why = stage.staged_difference(root, name, file)
        if why:
            what = f"a file of the sealed outcome of a pass is not what it was ({why}): no run can finish its claim"
            todo = f"{RESTORE}; without a copy, remove {where}: the journals beside it decide then"
            yield Finding(Kind.STAGE_DAMAGED, Severity.ERROR, what, f"{STAGE}/{name}", todo)


def _check_journals(root: str, folder: Path) -> Iterator[Finding]:
    """Yield journals and logs of failures that cannot be read, or have lost each other."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        yield _damaged("the folder of the journals is gone", folder, root)
        return
    except OSError as error:
        yield _damaged(f"the folder of the journals cannot be listed ({error.strerror})", folder, root, _RIGHTS)
        return
    journals, logs = ({name.removesuffix(end) for name in names if name.endswith(end)} for end in (".journal", ".log"))
    for name in sorted(journals):
        yield from (_damaged(what, folder / f"{name}.journal", root, todo) for what, todo in _journal(folder / f"{name}.journal"))
        if name not in logs:
            yield _damaged("the log of failures beside it is gone: why its messages failed is not known", folder / f"{name}.journal", root)
    for name in sorted(logs):
        yield from (_damaged(what, folder / f"{name}.log", root, todo) for what, todo in _log(folder / f"{name}.log", alone=name not in journals))


def _journal(path: Path) -> Iterator[tuple[str, str]]:
    try:
        reading = read(path.read_bytes())
        written = path.with_suffix(".log").stat().st_size if path.with_suffix(".log").is_file() else 0
    except OSError as error:
        yield _unreadable(error)
        return
    yield from ((what, _AGAIN) for what in reading.damage)
    if not reading.sections and not reading.damage and written:
        yield "it is empty, and there are failures in the log beside it", _AGAIN


def _log(path: Path, *, alone: bool) -> Iterator[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            reader = FailureReader(file.fileno())
            entries = sum(1 for _ in reader.news()) + len(reader.halts)
    except OSError as error:
        yield _unreadable(error)
        return
    if reader.unreadable:
        yield f"{reader.unreadable} line(s) of failures cannot be read: why those messages failed is not known", _AGAIN
    if alone and (entries or reader.unreadable):
        yield f"the journal beside it is gone: {entries} line(s) of failures are all that is left of it", _AGAIN


def _unreadable(error: OSError) -> tuple[str, str]:
    return f"it cannot be read ({error.strerror})", _AGAIN if isinstance(error, IsADirectoryError) else _RIGHTS


def _damaged(what: str, path: Path, root: str, todo: str = _AGAIN) -> Finding:
    severity = Severity.ERROR if todo is _RIGHTS else Severity.WARNING
    return Finding(Kind.JOURNAL_DAMAGED, severity, what, path.relative_to(root).as_posix(), todo)
