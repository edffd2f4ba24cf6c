"""What dead holders of claims have left: their sealed outcome, and the journals of what they delivered.

Only of claims that have expired: those of the living change while one looks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.delivery.sessions.failurelog import FailureReader
from airflow_poison.core.delivery.sessions.journal import read
from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.passes.checking.findings import RESTORE, Finding, Kind, Severity
from airflow_poison.core.store.table import manifest, stage
from airflow_poison.core.store.table.layout import MANIFEST, STAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from airflow_poison.core.store.files import Claim

_AGAIN = "put it back from a backup if there is one; then run the receive task: what cannot be read counts for nothing, and is delivered again"
_RIGHTS = "give this user the right to read it; the receive task refuses to go on until then"


def check_staged(root: str, claims: Sequence[Claim], now: datetime) -> Iterator[Finding]:
    """Yield what is damaged of the stages of expired claims. Another pass may take one over meanwhile: what is gone with its folder is no finding."""
    for claim in claims:
        if claim.expires_at > now:
            continue
        for folder in _holders(root, claim):
            found = [*_check_manifest(root, folder), *_check_journals(root, folder / stage.JOURNAL)]
            if folder.is_dir():
                yield from found


def _holders(root: str, claim: Claim) -> list[Path]:
    """Return the folders of all holders of a claim, fenced or not."""
    paths = (Path(root, name) for attempt in (*claim.earlier, claim.attempt) for name in stage.names(claim.key, attempt))
    return [path for path in paths if path.is_dir()]


def _check_manifest(root: str, folder: Path) -> Iterator[Finding]:
    """Yield a manifest that cannot be read, and what it names that is not there as it was."""
    where = f"{folder.relative_to(root)}/{MANIFEST}"
    try:
        sealed = manifest.read(root, folder)
    except (TableChangedError, OSError) as error:
        what = f"the sealed outcome of a pass cannot be read ({error.__cause__ or error}): nobody can finish its claim"
        yield Finding(Kind.STAGE_DAMAGED, Severity.ERROR, what, where, f"{RESTORE}; without a copy, remove it: the journals beside it decide then")
        return
    for name, file in sealed.files if sealed is not None else ():
        why = manifest.difference(root, name, file)
        if why:
            what = f"a file of the sealed outcome of a pass is not what it was ({why}): nobody can finish its claim"
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
