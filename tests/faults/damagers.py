"""Damagers: people and cleaning jobs that cut, remove or spoil files below a queue, and the way back that loses nothing.

One damage of a queue at a time: a file beside the store says that there is one, and goes when a repair has said that nothing is left to do.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.store import disk
from airflow_poison.values.schema import SubQueue
from tests.faults import maintainers
from tests.faults.keeping import damaged_in
from tests.faults.ledger import note

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from tests.faults.actor import Actor

_rename, _link, _unlink = os.rename, os.link, os.unlink
"""As they were before a fault takes their place, and without the copy that the checker gets of what verbs remove."""
_MESSAGES = frozenset({SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON, SubQueue.POSTPONED})
_LONGEST = 0.6
"""Seconds until somebody sees what he has done."""
_PATIENCE = 20.0
_MOST = 3
_MARK = re.compile(r"(\d{20})-(\d+)-[0-9a-f]{8}\.json")


@dataclass(frozen=True, slots=True)
class Victim:
    """The folder of a queue.

    :param aside: where what was taken out of it is until the end of the episode.
    """

    root: Path
    aside: Path
    chance: random.Random

    @property
    def log(self) -> Path:
        return self.root / "_delta_log"

    @property
    def marker(self) -> Path:
        return self.aside.with_name(f"{self.root.name}.damaged")

    def entries(self) -> list[Path]:
        return sorted(path for path in self.log.glob("*.json") if path.stem.isdigit())

    def checkpoints(self) -> list[Path]:
        return sorted(self.log.glob("*.checkpoint.parquet"))

    def newest(self, most: int = 1) -> list[Path]:
        """Return the newest entries, of which copies are there: a loss of power may have taken copies back, and then a backup is needed."""
        sizes = {int(match[1]): (path, int(match[2])) for path in self.root.glob("_acknowledged/*") if (match := _MARK.fullmatch(path.name))}
        found: list[Path] = []
        for entry in self.entries()[: -most - 1 : -1]:
            copy, size = sizes.get(int(entry.stem), (None, 0))
            if copy is not None and copy.stat().st_size != size:
                break
            found.append(entry)
        return found

    def takes(self, path: Path, where: str) -> None:
        target = self.aside / where / path.relative_to(self.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        _rename(path, target)


def _cut(there: Victim) -> bool:
    for entry in there.newest():
        size = entry.stat().st_size
        os.truncate(entry, there.chance.randrange(1, size) if size > 1 else 0)
        return True
    return False


def _empty(there: Victim) -> bool:
    for entry in there.newest():
        os.truncate(entry, 0)
        return True
    return False


def _remove_newest(there: Victim) -> bool:
    entries = there.newest(there.chance.randint(1, _MOST))
    there.chance.shuffle(entries)
    for entry in entries:
        there.takes(entry, "newest")
    return bool(entries)


def _remove_checkpoint(there: Victim) -> bool:
    """Remove the newest checkpoint where the log can be read without it."""
    entries, checkpoints = [path.stem for path in there.entries()], there.checkpoints()
    needless = int(entries[0]) == 0 or any(path.name[:20] in entries for path in checkpoints[:-1])
    if checkpoints and needless:
        there.takes(checkpoints[-1], "newest")
    return bool(checkpoints) and needless


def _spoil_hint(there: Victim) -> bool:
    hint = there.log / "_last_checkpoint"
    if not hint.exists():
        return False
    hint.write_bytes(there.chance.choice([b"", b"garbage", b'{"version":', b'{"version": 99999, "size": 1}', b"\0" * 40]))
    return True


def _remove_covered(there: Victim) -> bool:
    """Remove old entries that a checkpoint covers."""
    covered = [path for path in there.entries() if there.checkpoints() and path.stem < there.checkpoints()[-1].name[:20]]
    whole = {path.name for path in there.newest(1_000)}
    covered = [path for path in covered if path.name in whole]
    found = there.chance.sample(covered, min(len(covered), there.chance.randint(1, _MOST)))
    for path in found:
        there.takes(path, "old")
    return bool(found)


DAMAGE: Mapping[str, tuple[int, Callable[[Victim], bool]]] = {
    "entry cut": (3, _cut),
    "entry emptied": (2, _empty),
    "entries removed": (3, _remove_newest),
    "checkpoint removed": (2, _remove_checkpoint),
    "hint spoiled": (2, _spoil_hint),
    "old entries removed": (2, _remove_covered),
}
AWAY = "file moved away"
_OFTEN = 3


def damages(actor: Actor) -> None:
    """Damage a queue in one way, and mend it a moment later; what was damaged before and is not mended yet comes first."""
    weights = {AWAY: _OFTEN} | {name: often for name, (often, _) in DAMAGE.items()}
    if begins(actor, actor.chance.choices([*weights], [*weights.values()])[0]):
        time.sleep(actor.chance.uniform(0, _LONGEST))
    mends(actor)


def begins(actor: Actor, name: str) -> bool:
    """Damage a queue; False when it is damaged already, or there is nothing to damage in this way."""
    there = _victim(actor)
    away = [file.path for file in actor.table.snapshot().files if file.sub_queue in _MESSAGES] if name == AWAY else []
    there.aside.mkdir(parents=True, exist_ok=True)
    try:
        there.marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    with suppress(FileNotFoundError):  # a maintainer was faster
        if _does(there, name, away):
            note("damage", queue=there.root.name, what=name)
            return True
    return False


def _does(there: Victim, name: str, away: list[str]) -> bool:
    if name != AWAY:
        return DAMAGE[name][1](there)
    if away:
        there.takes(there.root / there.chance.choice(away), "away")
    return bool(away)


def mends(actor: Actor) -> None:
    """Put back what was moved away, and repair until nothing is left to do, where a queue was damaged. Raises TimeoutError."""
    there, until = _victim(actor), time.monotonic() + _PATIENCE
    failed: tuple[str, ...] = ()
    while there.marker.exists():
        if time.monotonic() > until:
            message = f"{there.root} was damaged, and cannot be repaired: {failed}"
            raise TimeoutError(message)
        _put_files_back(there)
        failed = maintainers.repair_one(actor.store, actor.task.queue, actor.clock).failed
        if not failed:
            there.marker.unlink(missing_ok=True)
            return
        time.sleep(0.02)


def _put_files_back(there: Victim) -> None:
    away = there.aside / "away"
    for path in sorted(away.rglob("*.parquet")):
        name = path.relative_to(away)
        (there.root / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError, FileNotFoundError):  # another one was faster
            _link(path, there.root / name)
        with suppress(FileNotFoundError):
            disk.sync_files(str(there.root), [str(name)])
        with suppress(FileNotFoundError):
            _unlink(path)


def _victim(actor: Actor) -> Victim:
    queue = actor.task.queue
    return Victim(Path(actor.store.uri, queue), damaged_in(actor.place.folder) / queue, actor.chance)
