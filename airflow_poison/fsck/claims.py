"""Claims and stages: their holders, those that have expired, and those without a holder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.delivery.failurelog import FailureReader
from airflow_poison.delivery.journal import read
from airflow_poison.fsck.files import REPAIR, REPORT, RESTORE, Finding, Kind, Severity
from airflow_poison.store import data_files, stage
from airflow_poison.store.data_files import CLAIM, MANIFEST, STAGE
from airflow_poison.store.disk import LocalFolder
from airflow_poison.store.stage import stage_folder
from airflow_poison.values.errors import PoisonError, TableChangedError
from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from airflow_poison.store.files import Claim, DataFile
    from airflow_poison.store.past import Past


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
