"""Damage of a Delta log: what of it never counted, what is damage, and the ways back from both.

A loss of power can cut the newest entries short. One without a mark (see ``acknowledged``) was never acknowledged to anybody: it does not count, and
the next commit sets it aside. One with a mark counts: it is put back from its copy, or people accept its loss. Nothing is deleted: what is taken out
of the log lies in ``_repaired`` afterwards. ``diagnose`` only reads.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.store import durability
from airflow_poison.core.store.delta import acknowledged, foreign

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_poison.core.store.delta.acknowledged import Acknowledged

LOG = "_delta_log"
ASIDE = "_repaired"
HINT = "_last_checkpoint"
_MAGIC = b"PAR1"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a log.

    :param version: the newest version that counts; -1: none.
    :param torn: entries that a loss of power cut short, none of them acknowledged; what is not there any more does not count either.
    :param shortcuts: checkpoints, and the file that names the last one, which cannot be read or say more than the entries do.
    :param lost: acknowledged versions whose entry is gone or changed, oldest first.
    :param unmarked: the log has no mark at all, so nobody can tell whether a damaged newest entry was acknowledged.
    """

    version: int = -1
    torn: tuple[Path, ...] = ()
    shortcuts: tuple[Path, ...] = ()
    lost: tuple[Acknowledged, ...] = ()
    unmarked: bool = False

    @property
    def harmless(self) -> bool:
        """Whether something is wrong that concerns no acknowledged commit: the log counts up to ``version``."""
        return bool(self.torn or self.shortcuts) and not self.lost


def remains(place: Path) -> bool:
    """Whether a folder without a log has been a queue table."""
    try:
        return any(name.startswith("sub_queue=") or name == acknowledged.FOLDER for name in os.listdir(place))  # noqa: PTH208  (names only)
    except (FileNotFoundError, NotADirectoryError):
        return False


def diagnose(root: str) -> Diagnosis:
    """Look at a log."""
    marks = acknowledged.read(root)  # before the entries: whatever is marked now is there already
    log = Path(root, LOG)
    last = max(marks, default=-1)
    entries = versions(log)
    oldest = entries[0] if entries else -1
    torn = [_entry(log, number) for number in (_torn(log, entries, last) if marks else ())]
    entries = entries[: len(entries) - len(torn)]
    version = entries[-1] if entries else -1
    lost = tuple(mark for number, mark in marks.items() if number >= oldest and _is_lost(_entry(log, number), mark))
    if lost:  # not what a maintainer has removed meanwhile
        oldest = min(versions(log), default=oldest)
        lost = tuple(mark for mark in lost if mark.version >= oldest)
    unmarked = not marks and len(entries) > 1 and not is_readable(_entry(log, version))
    return Diagnosis(version, tuple(torn), tuple(_shortcuts(log, max(version, last))), lost, unmarked)


def _torn(log: Path, entries: Sequence[int], last: int) -> Sequence[int]:
    """Return the newest entries that do not count: the first that is cut short and has no mark, and strangers' that were built upon it."""
    for place, number in enumerate(entries):
        if place and number > last and not is_readable(_entry(log, number)):
            later = entries[place + 1 :]
            return () if any(_is_ours(_entry(log, each)) for each in later) else entries[place:]
    return ()


def _is_ours(entry: Path) -> bool:
    return foreign.details_of(foreign.commit_info(entry) or {}) is not None


def versions(log: Path, pattern: re.Pattern[str] = _ENTRY) -> list[int]:
    """Return the versions of which a log has an entry (or what else the pattern says), sorted."""
    try:
        return sorted(int(match[1]) for name in os.listdir(log) if (match := pattern.fullmatch(name)))  # noqa: PTH208  (names only)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_readable(entry: Path) -> bool:
    """Whether every line of an entry is an action, and a commit of ours has all of its lines."""
    content = read(entry)
    return content is not None and is_complete(content)


def read(entry: Path) -> bytes | None:
    """Return what an entry holds; None when it is not there."""
    try:
        return entry.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_complete(content: bytes) -> bool:
    """Whether every line of what an entry holds is an action, and a commit of ours has all of its lines."""
    try:
        lines = [json.loads(line) for line in content.decode().splitlines()]
        if not lines or not all(isinstance(line, dict) for line in lines):
            return False
        info: Mapping[str, str] = next((line["commitInfo"] for line in lines if "commitInfo" in line), {})
        return len(lines) > int(json.loads(info.get("userMetadata") or "{}").get("actions", 0))
    except (ValueError, AttributeError, TypeError):
        return False


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint ends as a Parquet file does."""
    size = checkpoint.stat().st_size
    if size < 2 * len(_MAGIC):
        return False
    with checkpoint.open("rb") as file:
        file.seek(-len(_MAGIC), os.SEEK_END)
        return file.read() == _MAGIC


def have_their_sizes(root: str, marks: Mapping[int, Acknowledged]) -> bool:
    """Whether each entry has the size that its mark says, or was cleaned up. Asked at every look."""
    log = Path(root, LOG)
    for version, mark in marks.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            if _entry(log, version).stat().st_size != mark.size:
                return False
    return True


def _is_lost(entry: Path, mark: Acknowledged) -> bool:
    return mark.content(entry) is None


def _shortcuts(log: Path, version: int) -> Iterator[Path]:
    """Yield what readers begin with and cannot use, or must not: a checkpoint of a version that does not count."""
    usable = set[int]()
    try:
        names = sorted(os.listdir(log))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is None:
            continue
        with suppress(FileNotFoundError):
            if int(match[1]) <= version and is_whole(log / name):
                usable.add(int(match[1]))
            else:
                yield log / name
    hint = log / HINT
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

    One process at a time: between its look and its removal nobody can have put another entry of that number there.
    """
    with _alone(root):
        found = diagnose(root)
        moved = [path.name for path in (*found.shortcuts, *found.torn)]
        for path in (*found.shortcuts, *found.torn):
            put_aside(root, path, durable=durable)
    return moved


def put_aside(root: str, path: Path, *, durable: bool = True) -> Path:
    """Move a file out of the log, or out of the table, to where copies are kept, and return its new place. Raises OSError."""
    target = _place_aside(root, path)
    reach("store.repair.before_aside")
    path.rename(target)
    if durable:
        durability.sync(target.parent)
        durability.sync(target.parent.parent)
        durability.sync(path.parent)
    return target


def keep(root: str, path: Path) -> None:
    """Give a file that is to leave the table a second name where copies are kept: who is killed meanwhile has lost none. Raises OSError."""
    target = _place_aside(root, path)
    reach("store.repair.before_aside")
    try:
        os.link(path, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, target)
        durability.sync(target)
    durability.sync(target.parent)
    durability.sync(target.parent.parent)


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


def put_back(root: str) -> list[int]:
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
            acknowledged.note(root, version, nothing, durable=True)
    return broken


def _nothing(last_lookup_id: int | None) -> bytes:
    details = {"operation": "lost", "mark": uuid4().hex, "actions": 0 if last_lookup_id is None else 1}
    info = {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE", "engineInfo": "airflow-poison", "userMetadata": json.dumps(details)}
    lines: list[dict[str, object]] = [{"commitInfo": info}]
    if last_lookup_id is not None:
        lines.append({"txn": {"appId": "seq", "version": last_lookup_id}})
    return "\n".join(json.dumps(line) for line in lines).encode()


def cut_behind_checkpoint(root: str, checkpoint: int) -> list[str]:
    """Set entries before a checkpoint aside, between which others are gone, and return their names. Raises OSError."""
    log = Path(root, LOG)
    with _alone(root):
        needless = [_entry(log, number) for number in versions(log) if number < checkpoint]
        needless += [path for path in log.iterdir() if (match := _CHECKPOINT.fullmatch(path.name)) and int(match[1]) < checkpoint]
        for path in needless:
            put_aside(root, path)
    return [path.name for path in needless]


def _put(root: str, version: int, content: bytes) -> None:
    """Give a version this entry; what is there is set aside."""
    place = _entry(Path(root, LOG), version)
    beside = Path(root, LOG, f".tmp-{uuid4().hex}")
    beside.write_bytes(content)
    durability.sync(beside)
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
    durability.sync(place.parent)


def _entry(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


# Words ----------------------------------------------------------------------------------------------------------------


def told(root: str, found: Diagnosis, cause: str) -> str:
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
            f"cannot be told, because the table has no folder {acknowledged.FOLDER!r} (it is older, or somebody removed that). Nothing was committed "
            f"by this verb. Restore {LOG} from a backup; or go on without that commit: 'airflow poison check {name} --repair --accept-loss'."
        )
    if found.shortcuts:
        names = ", ".join(path.name for path in found.shortcuts)
        return (
            f"The log of the queue table {root} cannot be read from its checkpoint: {names} in {LOG} is damaged, or names what is gone. No message "
            f"is concerned. The next verb that writes sets it aside, and 'airflow poison check {name} --repair' does, too."
        )
    return (
        f"The log of the queue table {root} cannot be read: {cause}. Look at it with 'airflow poison check {name}', or restore {LOG} from a backup."
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")  # noqa: PLR2004
