"""The entries of a Delta log: where one lies, what it says of itself, the mark that it was acknowledged, and which are damaged.

For each commit that somebody was told of there is a mark outside the log, with a copy of the entry. The mark is written after the entry was forced
to disk and before the commit is acknowledged. So an entry that is damaged and has no mark was never acknowledged to anybody (a loss of power cut it
short), and one that has a mark was: only damage from outside can have changed it. The mark is the file's *name*, which says version, size and
checksum of the entry; its content is a copy that a repair can put back.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.fault_points import reach
from airflow_poison.core.store import disk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOG = "_delta_log"
FOLDER = "_acknowledged"
HINT = "_last_checkpoint"
KEPT = 40  # marks; more than there are entries since the last checkpoint, which are those that a reader takes from the log
ENTRY = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
_MARK = re.compile(r"(\d{20})-(\d+)-([0-9a-f]{8})\.json")
_MAGIC = b"PAR1"


def entry_path(root: str, version: int) -> Path:
    """Return where a version's commit lies."""
    return Path(root, LOG, f"{version:020d}.json")


def commit_info(path: Path) -> Mapping[str, object] | None:
    """Return what a commit says of itself, from its first lines; None when it was cleaned up."""
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                info = json.loads(line).get("commitInfo")
                if info is not None:
                    found: Mapping[str, object] = info
                    return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return {}
    return {}


def details_of(info: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the details of a commit of ours; None for somebody else's."""
    try:
        details = json.loads(str(info.get("userMetadata") or "null"))
    except ValueError:
        return None
    return details if isinstance(details, dict) and {"operation", "mark"} <= details.keys() else None


# Marks of acknowledged versions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One acknowledged version.

    :param size: bytes of its entry in the log; ``checksum``: their CRC-32.
    """

    version: int
    size: int
    checksum: int

    @property
    def name(self) -> str:
        """The name of its mark."""
        return f"{self.version:020d}-{self.size}-{self.checksum:08x}.json"

    def copy(self, root: str) -> bytes | None:
        """Return the copy of the entry; None when it is not whole: its writer died, or the disk was full."""
        return self.content(Path(root, FOLDER, self.name))

    def content(self, path: Path) -> bytes | None:
        """Return what a file holds when it is this entry; None otherwise."""
        found = read_entry(path)
        return found if found is not None and self.is_of(found) else None

    def is_of(self, entry: bytes) -> bool:
        """Whether an entry with this content is the one that was acknowledged."""
        return (len(entry), zlib.crc32(entry)) == (self.size, self.checksum)


def read_marks(root: str) -> dict[int, Acknowledged]:
    """Return the marks by version, the oldest first; none: the table was made by a release without marks, or somebody removed them."""
    try:
        names = os.listdir(Path(root, FOLDER))  # noqa: PTH208  (names only; asked at every look)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = (Acknowledged(int(match[1]), int(match[2]), int(match[3], 16)) for name in sorted(names) if (match := _MARK.fullmatch(name)))
    return {each.version: each for each in found}


def note(root: str, version: int, content: bytes, *, durable: bool) -> None:
    """Mark a version whose entry, with this content, is on disk, and remove marks that are too old to be needed. Raises OSError."""
    mark = Acknowledged(version, len(content), zlib.crc32(content))
    folder = Path(root, FOLDER)
    known = read_marks(root)
    there = known.get(version)
    if there != mark:
        _write(folder, mark, content, durable=durable)
        reach("store.log.before_mark_is_synced")
        if durable:
            disk.sync(folder)
        if there is not None:  # of an entry that a restored backup or a repair has replaced
            (folder / there.name).unlink(missing_ok=True)
    for old in [*known.values()][:-KEPT]:
        (folder / old.name).unlink(missing_ok=True)


def _write(folder: Path, mark: Acknowledged, content: bytes, *, durable: bool) -> None:
    """Write a mark. Its name has to be there; a copy for which the disk has no room is left out."""
    try:
        descriptor = os.open(folder / mark.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        folder.mkdir(exist_ok=True)
        if durable:
            disk.sync(folder.parent)
        descriptor = os.open(folder / mark.name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file, suppress(OSError):
        file.write(content)


# Damage ---------------------------------------------------------------------------------------------------------------


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
        return any(name.startswith("sub_queue=") or name == FOLDER for name in os.listdir(place))  # noqa: PTH208  (names only)
    except (FileNotFoundError, NotADirectoryError):
        return False


def diagnose(root: str) -> Diagnosis:
    """Look at a log."""
    marks = read_marks(root)  # before the entries: whatever is marked now is there already
    log = Path(root, LOG)
    last = max(marks, default=-1)
    entries = versions(log)
    oldest = entries[0] if entries else -1
    torn = [entry_path(root, number) for number in (_torn(root, entries, last) if marks else ())]
    entries = entries[: len(entries) - len(torn)]
    version = entries[-1] if entries else -1
    lost = tuple(mark for number, mark in marks.items() if number >= oldest and mark.content(entry_path(root, number)) is None)
    if lost:  # not what a maintainer has removed meanwhile
        oldest = min(versions(log), default=oldest)
        lost = tuple(mark for mark in lost if mark.version >= oldest)
    unmarked = not marks and len(entries) > 1 and not is_readable(entry_path(root, version))
    return Diagnosis(version, tuple(torn), tuple(_shortcuts(log, max(version, last))), lost, unmarked)


def _torn(root: str, entries: Sequence[int], last: int) -> Sequence[int]:
    """Return the newest entries that do not count: the first that is cut short and has no mark, and strangers' that were built upon it."""
    for place, number in enumerate(entries):
        if place and number > last and not is_readable(entry_path(root, number)):
            later = entries[place + 1 :]
            return () if any(_is_ours(entry_path(root, each)) for each in later) else entries[place:]
    return ()


def _is_ours(entry: Path) -> bool:
    return details_of(commit_info(entry) or {}) is not None


def versions(log: Path, pattern: re.Pattern[str] = ENTRY) -> list[int]:
    """Return the versions of which a log has an entry (or what else the pattern says), sorted."""
    try:
        return sorted(int(match[1]) for name in os.listdir(log) if (match := pattern.fullmatch(name)))  # noqa: PTH208  (names only)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_readable(entry: Path) -> bool:
    """Whether every line of an entry is an action, and a commit of ours has all of its lines."""
    content = read_entry(entry)
    return content is not None and is_complete(content)


def read_entry(entry: Path) -> bytes | None:
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
    for version, mark in marks.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            if entry_path(root, version).stat().st_size != mark.size:
                return False
    return True


def _shortcuts(log: Path, version: int) -> Iterator[Path]:
    """Yield what readers begin with and cannot use, or must not: a checkpoint of a version that does not count."""
    usable = set[int]()
    try:
        names = sorted(os.listdir(log))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        match = CHECKPOINT.fullmatch(name)
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
