"""The stage of a claim: one folder for each holder, with the files that its tasks leave, and the fence that shuts earlier holders out of theirs.

``_stage/<run key>/<attempt>/`` is made before the commit of the claim that names it, and never again. A take-over renames it to ``<attempt>.fenced``:
a holder that wakes up too late finds no folder to open a journal in or to put a manifest in, and what it had put there before stays readable. A
folder that such a holder makes anew under the old name is never looked at.

Arrow writes the files where the messages were delivered. A file gets its name when its task has finished, so the stage never lists half a file. A
task that runs again waits for its earlier attempt, if that still lives, and removes what it had left: the attempt journal knows the same ends, and
they are written again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from airflow_poison.store import disk
from airflow_poison.store.data_files import (
    MANIFEST,
    STAGE,
    content_difference,
    damaged,
    describe,
    file_from_dict,
    file_to_dict,
    moved_path,
    new_path,
    partition_of,
)
from airflow_poison.store.disk import Folder, LocalFolder, named, why
from airflow_poison.store.files import Claim, DataFile, Manifest
from airflow_poison.values.errors import ClaimLostError, ConservationError, ServerSessionError, StoreUnreachableError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import pa, pc, pq
from airflow_poison.values.machine import PRIVATE
from airflow_poison.values.schema import CONVERSATION, EVENT, LANDING, OUTBOX, TALLY, TRANSMISSION_QUEUE, SubQueue, message_schema

if TYPE_CHECKING:
    from airflow_poison.store.queue_table import Table

_GROUP_ROWS = 20_000
_GROUP_BYTES = 32 * 1024 * 1024
_OF_TABLES = {"compression": "lz4", "use_dictionary": False}
"""How rows on their way to an output are written: whole tables, which are read once; a fifth of the time of what suits bodies."""
_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.05


class OutcomeWriter:
    """Writes the outcome rows of one task, a file for each partition. Memory stays at one row group for each.

    A file falls due as a whole, so what waits in ``postponed`` without a due time (spec DMP-10) gets a file of its own.

    :param out: the folder ``out`` of the claim's stage.
    :param task: names the task, the same for each of its attempts.
    """

    def __init__(self, out: Path, task: str) -> None:
        self._out, self._task = out, task
        self._parts: dict[tuple[str, int, bool], _Part] = {}
        self._lock = -1

    def __enter__(self) -> Self:
        with named(str(self._out)):
            self._lock = self._locked()
            for leftover in self._out.glob(f"*/*/task-{self._task}-*.parquet"):
                leftover.unlink()
        return self

    def write(self, rows: pa.Table) -> None:
        """Add outcome rows (``table_schema()``); ``sub_queue`` and ``move_count`` say where to. Raises StoreUnreachableError."""
        with named(str(self._out)):
            self._write(rows)

    def _write(self, rows: pa.Table) -> None:
        places = rows.group_by(["sub_queue", "move_count"]).aggregate([]).to_pylist()
        for place in places:
            sub_queue, move_count = place["sub_queue"], place["move_count"]
            mask = pc.and_(pc.equal(rows["sub_queue"], sub_queue), pc.equal(rows["move_count"], move_count))
            here = (rows if len(places) == 1 else rows.filter(mask)).select(message_schema().names)
            if sub_queue != SubQueue.POSTPONED:
                self._part(sub_queue, move_count).add(here)
                continue
            never = pc.is_null(here["due_at"])
            for due, part in ((True, here.filter(pc.invert(never))), (False, here.filter(never))):
                if part.num_rows:
                    self._part(sub_queue, move_count, due=due).add(part)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            reach("store.outcomes.before_names")
            self._close(keep=kind is None)
        except FileNotFoundError as error:  # a later holder of the claim has renamed the stage
            raise ClaimLostError(
                f"The stage folder {str(self._out)!r} is gone: this try was given up by its driver. What the task wrote there changes nothing."
            ) from error
        except OSError as error:
            self._close(keep=False)
            raise StoreUnreachableError(f"The stage folder {str(self._out)!r} cannot be written: {why(error)}.") from error
        finally:
            os.close(self._lock)

    def _close(self, *, keep: bool) -> None:
        for part in self._parts.values():
            part.close(keep=keep)
            reach("store.outcomes.after_name")

    def _locked(self) -> int:
        """Return a descriptor whose lock every attempt of the task takes; the kernel lets go of it when its holder dies."""
        self._out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._out / f".task-{self._task}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        if disk.lock(descriptor, _WAIT_SECONDS, _POLL_SECONDS):
            return descriptor
        os.close(descriptor)
        raise ServerSessionError(
            f"An earlier attempt of task {self._task} still writes to {str(self._out)!r}. End that process, then run the task again."
        )

    def _part(self, sub_queue: str, move_count: int, *, due: bool = True) -> _Part:
        place = (sub_queue, move_count, due)
        if place not in self._parts:
            path = self._out / moved_path(f"task-{self._task}-{uuid4().hex}.parquet", sub_queue, move_count)
            self._parts[place] = _Part(path, _OF_TABLES if sub_queue == LANDING else {})
        return self._parts[place]


class _Part:
    """The file of one partition, under a hidden name until it is whole.

    :param options: of the writer.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._path, self._hidden, self._options = path, path.with_name(f".{path.name}"), options
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows; written when there is enough for a row group."""
        self._waiting.append(rows)
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def close(self, *, keep: bool) -> None:
        """Finish the file and give it its name, or remove it."""
        if keep:
            self._flush()
        if self._writer is None:
            return
        if keep:
            self._writer.close()
            self._hidden.rename(self._path)
        else:
            with suppress(OSError):  # its footer is not needed, and there may be no space for it
                self._writer.close()
            self._hidden.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._hidden, message_schema(), write_page_checksum=True, **self._options)
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._rows, self._bytes = [], 0, 0


OUT = "out"
JOURNAL = "journal"
BEGUN = "begun"
_FENCED = ".fenced"
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def stage_folder(key: str) -> str:
    """Return the folder of a run key below the root. Keys that cannot be a folder's name are hashed."""
    if _FOLDER.fullmatch(key):
        return f"{STAGE}/{key}"
    return f"{STAGE}/{sha256(key.encode()).hexdigest()}"


@dataclass(slots=True)
class HolderFolder:
    """The folder of a new holder: made when a claim is about to be committed, another one for each try of that commit (see ``compaction``)."""

    root: str
    key: str
    _name: str = ""

    def made(self) -> str:
        """Make a folder and return its name; an earlier try's goes."""
        if self._name:
            remove_tree(Path(self.root, stage_folder(self.key), self._name))
        self._name = token_hex(8)
        journal = Path(self.root, stage_folder(self.key), self._name, JOURNAL)
        while True:
            with suppress(FileNotFoundError):  # the empty folder of the key was removed at this very moment
                journal.mkdir(parents=True, exist_ok=True)
                return self._name

    def drop(self) -> None:
        """Remove the folder of a holder that never was."""
        if self._name:
            remove_tree(Path(self.root, stage_folder(self.key), self._name))
            with suppress(OSError):  # others use the key's folder
                Path(self.root, stage_folder(self.key)).rmdir()


def own_folder(root: str, claim: Claim) -> Path:
    """Return this holder's folder. Raises ClaimLostError when a later holder has fenced it."""
    folder = Path(root, stage_folder(claim.key), claim.attempt)
    if not Path(folder, JOURNAL).is_dir():
        raise ClaimLostError(lost(claim))
    return folder


def stage(table: Table, claim: Claim) -> str:
    """Return this holder's own stage folder, made if missing: outcome files go to ``<stage>/out``, journals to ``<stage>/journal``.

    Raises ClaimLostError when a later holder has fenced it.
    """
    return str(own_folder(table.folder.root, claim))


def begin(table: Table, claim: Claim, note: str) -> None:
    """Write a holder's note of how its delivery begins. Raises ClaimLostError when a later holder has fenced it."""
    own = own_folder(table.folder.root, claim)
    try:
        (own / BEGUN).write_text(note)
        table.folder.share([f"{own.relative_to(table.folder.root)}/{BEGUN}"])
    except FileNotFoundError as error:  # fenced while it was written
        raise ClaimLostError(lost(claim)) from error


def sharing(table: Table, claim: Claim) -> Callable[[str, int, bytes], None] | None:
    """Return what takes the journals of this holder for other nodes; None where everybody sees them."""
    return table.folder.sharing(f"{stage_folder(claim.key)}/{claim.attempt}", JOURNAL)


def leave(table: Table, claim: Claim) -> None:
    """Take the note back: no journal of this try was lost, and each later holder of the claim can read them. Raises OSError."""
    own = own_folder(table.folder.root, claim)
    table.folder.leave(str(own.relative_to(table.folder.root)), BEGUN)


def close(table: Table, claim: Claim) -> None:
    """Shut this holder out before there is a later one: tasks of its on other nodes begin nothing more, and end by themselves. Raises OSError."""
    table.folder.close(f"{stage_folder(claim.key)}/{claim.attempt}")


def lost(claim: Claim) -> str:
    """Return the words for a claim that is not held any more."""
    return (
        f"The claim {claim.key!r} (epoch {claim.epoch}) is not held any more: it expired and was taken over, was released, or is finished. "
        "This pass changes nothing; its messages are with the later holder. Run the task again if it should look for further work."
    )


def fence(folder: Folder, claim: Claim) -> None:
    """Fence the earlier holders. Safe to repeat, by any process. Raises OSError when one could not be fenced.

    Whatever such a holder has done is looked for behind the fence: to go on without would deliver it again. A journal that is about to get its
    name goes: the system may have found its folder before the fence, and give it the name afterwards.
    """
    for attempt in claim.earlier:
        before, fenced = folder_names(claim.key, attempt)
        folder.shut_out(before, fenced)
        for unnamed in Path(folder.root, fenced, JOURNAL).glob(".*"):
            unnamed.unlink(missing_ok=True)


def earlier_folders(root: str, claim: Claim) -> Sequence[Path]:
    """Return the fenced folders of earlier holders, oldest first."""
    folder = Path(root, stage_folder(claim.key))
    fenced = [folder / (attempt + _FENCED) for attempt in claim.earlier]
    return [path for path in fenced if path.is_dir()]


def folder_names(key: str, attempt: str) -> tuple[str, str]:
    """Return where, below the table's root, the folder of a holder of a claim may lie: before the fence and after it."""
    folder = f"{stage_folder(key)}/{attempt}"
    return folder, folder + _FENCED


def journals(table: Table, claim: Claim) -> Sequence[str]:
    """Return the journal folders of this claim's earlier holders, fenced: none of them can be opened for writing any more."""
    return [str(folder / JOURNAL) for folder in earlier_folders(table.folder.root, claim)]


def clear(folder: Folder, key: str) -> None:
    """Remove everything staged under a run key; what cannot be removed is harmless (maintenance sweeps it)."""
    folder.remove_tree(stage_folder(key))


def remove_tree(folder: Path) -> None:
    """Remove a folder as far as possible: a shut-out holder may still write below it."""
    shutil.rmtree(folder, ignore_errors=True)


# The manifest: what was staged for a claim, listed once and durable before anything of it is committed ----------------


_BESIDE = frozenset({EVENT, OUTBOX, CONVERSATION, LANDING, TRANSMISSION_QUEUE, TALLY})
_STAGED = _BESIDE | {place.value for place in SubQueue if place is not SubQueue.TRANSMISSION}


def stage_table(table: Table, claim: Claim, outcome: pa.Table) -> None:
    """Write outcome rows (``table_schema()``, ``sub_queue`` and ``move_count`` say where to) into the stage, without Spark."""
    with OutcomeWriter(own_folder(table.folder.root, claim) / OUT, uuid4().hex) as writer:
        writer.write(outcome)


def unstage(table: Table, claim: Claim) -> None:
    """Remove the outcomes that were staged so far: they are made anew. Raises ClaimLostError when a later holder has fenced the stage."""
    remove_tree(own_folder(table.folder.root, claim) / OUT)


def manifest(table: Table, claim: Claim) -> Manifest | None:
    """Return the sealed outcome of this claim or of an earlier holder of it; None when there is none. Each looks before it seals.

    Raises TableChangedError for a damaged manifest, which was written whole, and for a damaged file of it.
    """
    for attempt in (*earlier_folders(table.folder.root, claim), own_folder(table.folder.root, claim)):
        sealed = read_manifest(table.folder.root, attempt)
        if sealed is not None:
            for path in (f"{STAGE}/{name}" for name, _ in sealed.files):
                with suppress(FileNotFoundError):  # the commit says so
                    if why := content_difference(table.folder, path):
                        raise TableChangedError(damaged(table.folder.uri, path, why))
            return sealed
    return None


def read_manifest(root: str, attempt: Path) -> Manifest | None:
    """Return the manifest in a holder's folder. Raises TableChangedError for one that is damaged."""
    path, prefix = attempt / MANIFEST, attempt.relative_to(Path(root, STAGE))
    try:
        body = json.loads(path.read_bytes())
        return Manifest(
            files=tuple((f"{prefix}/{name}", file_from_dict(values)) for name, values in body["files"]),
            tallies=tuple(body["tallies"]),
            result=body["result"],
        )
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise TableChangedError(damaged(root, str(path.relative_to(root)), "it is a folder")) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TableChangedError(damaged(root, str(path.relative_to(root)), error)) from error


def staged_difference(root: str, staged: str, file: DataFile) -> str:
    """Return how a staged file differs from what the manifest says of it, in words; empty when it does not."""
    try:
        found = describe(Path(root, STAGE, staged), staged, (file.sub_queue, file.move_count))
    except FileNotFoundError:
        return "it is gone"
    except (pa.ArrowException, OSError) as error:
        return str(error).strip().partition("\n")[0]
    if (found.rows, found.size) == (file.rows, file.size):
        return content_difference(LocalFolder(root), f"{STAGE}/{staged}")
    return f"it has {found.rows} rows and {found.size} bytes; expected {file.rows} and {file.size}"


def seal(table: Table, claim: Claim, account: Callable[[Manifest], Mapping[str, object]]) -> Manifest:
    """List what was staged, let ``account`` check it and give the result, and write the manifest durably; an earlier one is returned."""
    sealed = manifest(table, claim)
    if sealed is not None:
        return sealed
    own = own_folder(table.folder.root, claim)
    reach("store.seal.before_listing")
    staged = list(_staged(own))
    listed = Manifest(files=tuple(_listed(own, staged)), tallies=tuple(_tallies(own, staged)))
    made = replace(listed, result=dict(account(listed)))
    prefix = own.relative_to(Path(table.folder.root, STAGE))
    table.folder.share([f"{STAGE}/{prefix}/{name}" for name, _ in made.files])
    reach("store.seal.before_manifest")
    try:
        _write(table, own, made)
    except FileNotFoundError as error:  # fenced while it was written
        raise ClaimLostError(lost(claim)) from error
    return replace(made, files=tuple((f"{prefix}/{name}", file) for name, file in made.files))


def _write(table: Table, own: Path, made: Manifest) -> None:
    """Write the manifest under another name first, so that it is always found whole."""
    beside = own / f".{MANIFEST}"
    body = {
        "files": [[name, file_to_dict(file)] for name, file in made.files],
        "tallies": [dict(tally) for tally in made.tallies],
        "result": dict(made.result),
    }
    beside.write_text(json.dumps(body))
    table.folder.place(beside, str((own / MANIFEST).relative_to(table.folder.root)))
    reach("store.seal.after_rename")


def final_paths(root: str) -> Iterator[str]:
    """Yield the final paths that any manifest of the table names. Asked again until the stage has kept still: a take-over renames folders.

    Raises TableChangedError for a manifest that is damaged: what its pass needs is not known.
    """
    pattern = f"*/*/{MANIFEST}"
    while True:
        listed = sorted(Path(root, STAGE).glob(pattern))
        found = [read_manifest(root, path.parent) for path in listed]
        if None not in found and listed == sorted(Path(root, STAGE).glob(pattern)):
            break
    yield from (file.path for sealed in found if sealed is not None for _, file in sealed.files)


def _listed(own: Path, staged: Sequence[tuple[str, tuple[str, int]]]) -> Iterator[tuple[str, DataFile]]:
    """Return what will be added: the staged name below the holder's folder, and the file under its final path."""
    for name, place in staged:
        if place[0] == TALLY:
            continue
        file = describe(own / name, name, place)
        if file.rows:
            yield name, replace(file, path=new_path(*place))


def _tallies(own: Path, staged: Sequence[tuple[str, tuple[str, int]]]) -> Iterator[Mapping[str, object]]:
    for name, place in staged:
        if place[0] == TALLY:
            with pq.ParquetFile(own / name) as parquet:
                for body in parquet.read(["body"]).column("body").to_pylist():
                    yield json.loads(body or b"{}")


def _staged(own: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Return names of outcome files and their partitions, sorted; what Spark or a file system leaves beside them is passed over."""
    for path in sorted((own / OUT).rglob("*.parquet")):
        below = path.relative_to(own / OUT)
        if any(part.startswith(("_", ".")) for part in below.parts):
            continue
        place = partition_of(str(below))
        if place is None or place[0] not in _STAGED:
            message = f"The outcome file {path} lies in no known partition; expected sub_queue=<{', '.join(sorted(_STAGED))}>/move_count=<n>."
            raise ConservationError(message)
        yield f"{OUT}/{below}", place
