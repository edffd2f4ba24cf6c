"""The ways back from damage of a Delta log: what never counted is set aside, what counts is put back, and the words for both.

A loss of power can cut the newest entries short. One without a mark (see ``entries``) was never acknowledged to anybody: it does not count, and
the next commit sets it aside. One with a mark counts: it is put back from its copy, or people accept its loss. Nothing is deleted: what is taken out
of the log lies in ``_repaired`` afterwards.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from airflow_poison.store import disk, entries
from airflow_poison.store.entries import CHECKPOINT, FOLDER, LOG, details_of, entry_path, is_readable, is_whole, versions
from airflow_poison.store.files import SEQUENCE
from airflow_poison.values.errors import TableChangedError
from airflow_poison.values.fault_points import reach

ASIDE = "_repaired"


# Damage -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a log.

    :param version: the newest version that counts; -1: none.
    :param torn: entries that a loss of power cut short, none of them acknowledged; what is not there any more does not count either.
    :param shortcuts: checkpoints, and the file that names the last one, which cannot be read or say more than the entries do.
    :param lost: acknowledged versions whose entry is gone or changed, oldest first.
    :param unmarked: the log has no mark at all, so it is not known whether a damaged newest entry was acknowledged.
    :param begins: whether its entries, or a checkpoint that can be read, say what the table was at first.
    """

    version: int = -1
    torn: tuple[Path, ...] = ()
    shortcuts: tuple[Path, ...] = ()
    lost: tuple[entries.Acknowledged, ...] = ()
    unmarked: bool = False
    begins: bool = True

    @property
    def harmless(self) -> bool:
        """Whether something is wrong that concerns no acknowledged commit: the log counts up to ``version``."""
        return bool(self.torn or self.shortcuts) and not self.lost


def diagnose(root: str) -> Diagnosis:
    """Look at a log."""
    marks = entries.read_marks(root)  # before the entries: whatever is marked now is there already
    log = Path(root, LOG)
    last = max(marks, default=-1)
    there = versions(log)
    oldest = there[0] if there else -1
    torn = [entry_path(root, number) for number in (_torn(root, there, last) if marks else ())]
    there = there[: len(there) - len(torn)]
    version = there[-1] if there else -1
    lost = tuple(mark for number, mark in marks.items() if number >= oldest and mark.content(entry_path(root, number)) is None)
    if lost:  # not what a maintainer has removed meanwhile
        oldest = min(versions(log), default=oldest)
        lost = tuple(mark for mark in lost if mark.version >= oldest)
    unmarked = not marks and len(there) > 1 and not is_readable(entry_path(root, version))
    shortcuts = tuple(_shortcuts(log, max(version, last)))
    usable = (number for number, checkpoint in entries.checkpoints(log).items() if not {*checkpoint} & {*shortcuts})
    begins = not there or there[0] == 0 or any(number >= there[0] - 1 for number in usable)
    return Diagnosis(version, tuple(torn), shortcuts, lost, unmarked, begins)


def _torn(root: str, there: Sequence[int], last: int) -> Sequence[int]:
    """Return the newest entries that do not count: the first that is cut short and has no mark, and strangers' that were built upon it."""
    for place, number in enumerate(there):
        if place and number > last and not is_readable(entry_path(root, number)):
            later = there[place + 1 :]
            return () if any(_is_ours(entry_path(root, each)) for each in later) else there[place:]
    return ()


def _is_ours(entry: Path) -> bool:
    return details_of(entries.commit_info(entry) or {}) is not None


def _shortcuts(log: Path, version: int) -> Iterator[Path]:
    """Yield what readers begin with and cannot use, or must not: a checkpoint of a version that does not count."""
    usable = set[int]()
    for number, checkpoint in entries.checkpoints(log).items():
        with suppress(FileNotFoundError):
            if number <= version and is_whole(checkpoint):
                usable.add(number)
            else:
                yield from checkpoint
    hint = log / entries.HINT
    with suppress(FileNotFoundError):
        try:
            named = int(json.loads(hint.read_text())["version"])
        except (ValueError, KeyError, TypeError):
            named = -1
        if named not in usable:
            yield hint


# Setting aside --------------------------------------------------------------------------------------------------------


def set_aside(root: str, *, durable: bool = True) -> list[str]:
    """Take out of the log what does not count, and return the names; a copy stays. Raises OSError.

    One process at a time: between its look and its removal no process can have put another entry of that number there.
    """
    with _alone(root):
        found = diagnose(root)
        moved = [path.name for path in (*found.shortcuts, *found.torn)]
        for path in (*found.shortcuts, *found.torn):
            put_aside(root, path, durable=durable)
    return moved


def put_aside(root: str, path: Path, *, durable: bool = True) -> None:
    """Move a file out of the log, or out of the table, to where copies are kept. Raises OSError."""
    target = _place_aside(root, path)
    reach("store.repair.before_aside")
    path.rename(target)
    if durable:
        disk.sync(target.parent)
        disk.sync(target.parent.parent)
        disk.sync(path.parent)


def keep(root: str, path: Path) -> None:
    """Give a file that is to leave the table a second name where copies are kept: who is killed meanwhile has lost none. Raises OSError."""
    target = _place_aside(root, path)
    reach("store.repair.before_aside")
    try:
        os.link(path, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, target)
        disk.sync(target)
    disk.sync(target.parent)
    disk.sync(target.parent.parent)


def _place_aside(root: str, path: Path) -> Path:
    folder = Path(root, ASIDE)
    folder.mkdir(exist_ok=True)
    return folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid4().hex[:8]}-{path.name}"


@contextmanager
def _alone(root: str) -> Iterator[None]:
    descriptor = os.open(Path(root, LOG), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# The ways back of a repair --------------------------------------------------------------------------------------------


def restore_entries(root: str) -> list[int]:
    """Put lost entries back whose copies are whole, and return their versions. Raises OSError."""
    done: list[int] = []
    with _alone(root):
        for mark in diagnose(root).lost:
            copy = mark.copy(root)
            if copy is not None:
                _put(root, mark.version, copy)
                done.append(mark.version)
    return done


def accept_loss(root: str, last_lookup_id: int) -> list[int]:
    """Put entries in which nothing happens in the place of the newest lost ones, and return their versions.

    Versions are never used twice, and with ``last_lookup_id`` in the last of them no lookup id is either.
    Raises TableChangedError when an older entry is lost, which later ones rest on; OSError.
    """
    with _alone(root):
        found = diagnose(root)
        broken = sorted({mark.version for mark in found.lost} | ({found.version} if found.unmarked else set()))
        if not broken:
            return []
        last = max(broken[-1], found.version)
        if broken != list(range(broken[0], last + 1)):
            raise TableChangedError(
                f"The log of the queue table {root} has lost version {broken[0]}, which later ones rest on, and no copy of it is whole. "
                f"Restore {LOG} from a backup."
            )
        for version in broken:
            nothing = _nothing(last_lookup_id if version == last else None)
            _put(root, version, nothing)
            entries.note(root, version, nothing, durable=True)
    return broken


def _nothing(last_lookup_id: int | None) -> bytes:
    details = {"operation": "lost", "mark": uuid4().hex, "actions": 0 if last_lookup_id is None else 1}
    info = {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE", "engineInfo": "airflow-poison", "userMetadata": json.dumps(details)}
    lines: list[dict[str, object]] = [{"commitInfo": info}]
    if last_lookup_id is not None:
        lines.append({"txn": {"appId": SEQUENCE, "version": last_lookup_id}})
    return "\n".join(json.dumps(line) for line in lines).encode()


def cut_behind_checkpoint(root: str, checkpoint: int) -> list[str]:
    """Set entries before a checkpoint aside, between which others are gone, and return their names. Raises OSError."""
    log = Path(root, LOG)
    with _alone(root):
        needless = [entry_path(root, number) for number in versions(log) if number < checkpoint]
        needless += [path for path in log.iterdir() if (match := CHECKPOINT.fullmatch(path.name)) and int(match[1]) < checkpoint]
        for path in needless:
            put_aside(root, path)
    return [path.name for path in needless]


def _put(root: str, version: int, content: bytes) -> None:
    """Give a version this entry; what is there is set aside."""
    place = entry_path(root, version)
    beside = Path(root, LOG, f".tmp-{uuid4().hex}")
    beside.write_bytes(content)
    disk.sync(beside)
    if place.exists():
        put_aside(root, place)
    reach("store.repair.before_put_back")
    try:
        os.link(beside, place)
    except FileExistsError as error:
        raise TableChangedError(f"Somebody has committed to {root} while its log was being repaired. Look again with a check.") from error
    except OSError:  # a file system without hard links
        beside.rename(place)
    beside.unlink(missing_ok=True)
    disk.sync(place.parent)


# Words ----------------------------------------------------------------------------------------------------------------


def damage_text(root: str, found: Diagnosis, cause: str) -> str:
    """Return the words for a log that cannot be read."""
    name = Path(root).name
    if found.lost:
        which = _listed([mark.version for mark in found.lost])
        return (
            f"The log of the queue table {root} is damaged: the entry of version {which} was acknowledged, and is gone or not what was committed. "
            f"Nothing was committed by this verb. 'airflow poison check {name} --repair' puts it back from its copy; find who changes files there."
        )
    if found.unmarked:
        return (
            f"The log of the queue table {root} is damaged: the entry of version {found.version} is cut short, and whether it was acknowledged "
            f"is not known, because the table has no folder {FOLDER!r} (it is older, or somebody removed that). Nothing was committed "
            f"by this verb. Restore {LOG} from a backup; or go on without that commit: 'airflow poison check {name} --repair --accept-loss'."
        )
    names = ", ".join(path.name for path in found.shortcuts)
    if not found.begins:
        return (
            f"The log of the queue table {root} is damaged: {names or 'its checkpoint'} in {LOG} cannot be read or is gone, and so are the entries "
            f"from before it. Nothing was committed by this verb. Restore {LOG} from a backup, and find who changes files there."
        )
    if found.shortcuts:
        return (
            f"The log of the queue table {root} cannot be read from its checkpoint: {names} in {LOG} is damaged, or names what is gone. No message "
            f"is concerned. The next verb that writes sets it aside, and 'airflow poison check {name} --repair' does, too."
        )
    return (
        f"The log of the queue table {root} cannot be read: {cause}. Look at it with 'airflow poison check {name}', or restore {LOG} from a backup."
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")  # noqa: PLR2004
