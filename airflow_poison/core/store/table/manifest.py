"""The manifest: what was staged for a claim, listed once and durable before anything of it is committed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_poison.core.errors import ClaimLostError, ConservationError, TableChangedError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.schema import CONVERSATION, EVENT, OUTBOX, TALLY, TRANSMISSION_QUEUE, SubQueue
from airflow_poison.core.store import durability
from airflow_poison.core.store.files import DataFile, Manifest
from airflow_poison.core.store.table import stage
from airflow_poison.core.store.table.files import damaged, describe
from airflow_poison.core.store.table.layout import MANIFEST, STAGE, new_path, partition_of
from airflow_poison.core.store.table.outcomes import OutcomeWriter
from airflow_poison.core.store.table.rows import file_from_dict, file_to_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.table.base import Table

_BESIDE = frozenset({EVENT, OUTBOX, CONVERSATION, TRANSMISSION_QUEUE, TALLY})
_STAGED = _BESIDE | {place.value for place in SubQueue if place is not SubQueue.TRANSMISSION}


def stage_table(table: Table, claim: Claim, outcome: pa.Table) -> None:
    """Write outcome rows into the stage, a file for each partition."""
    with OutcomeWriter(stage.own(table.root, claim) / stage.OUT, uuid4().hex) as writer:
        writer.write(outcome)


def find(table: Table, claim: Claim) -> Manifest | None:
    """Return the manifest of this holder or of an earlier one: there is at most one, since each looks before it seals.

    Raises TableChangedError for a manifest that somebody has damaged: it was written whole.
    """
    for attempt in (*stage.earlier(table.root, claim), stage.own(table.root, claim)):
        sealed = read(table.root, attempt)
        if sealed is not None:
            return sealed
    return None


def read(root: str, attempt: Path) -> Manifest | None:
    """Return the manifest in a holder's folder. Raises TableChangedError for one that is damaged."""
    try:
        text = Path(attempt, MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise TableChangedError(damaged(root, f"{attempt.relative_to(root)}/{MANIFEST}", "it is a folder")) from error
    with _whole(root, attempt / MANIFEST):
        return _parse(text, str(attempt.relative_to(Path(root, STAGE))))


def difference(root: str, staged: str, file: DataFile) -> str:
    """Return how a staged file differs from what the manifest says of it, in words; empty when it does not."""
    import pyarrow as pa

    try:
        found = describe(str(Path(root, STAGE)), staged, (file.sub_queue, file.move_count))
    except FileNotFoundError:
        return "it is gone"
    except (pa.ArrowException, OSError) as error:
        return str(error).strip().partition("\n")[0]
    if (found.rows, found.size) == (file.rows, file.size):
        return ""
    return f"it has {found.rows} rows and {found.size} bytes; expected {file.rows} and {file.size}"


@contextmanager
def _whole(root: str, path: Path) -> Iterator[None]:
    """Turn what a damaged manifest raises into words."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TableChangedError(damaged(root, str(path.relative_to(root)), error)) from error


def seal(table: Table, claim: Claim, account: Callable[[Manifest], Mapping[str, object]]) -> Manifest:
    """List the stage and make it durable, with the account of it; returns the sealed one when that was done before."""
    sealed = find(table, claim)
    if sealed is not None:
        return sealed
    own = stage.own(table.root, claim)
    reach("store.seal.before_listing")
    listed = Manifest(files=tuple(_listed(own)), tallies=tuple(_tallies(own)))
    manifest = replace(listed, result=dict(account(listed)))
    if table.durable:
        durability.sync_files(str(own), [name for name, _ in manifest.files])
    reach("store.seal.before_manifest")
    try:
        _write(table, own, manifest)
    except FileNotFoundError as error:  # fenced while it was written
        raise ClaimLostError(stage.lost(claim)) from error
    prefix = own.relative_to(Path(table.root, STAGE))
    return replace(manifest, files=tuple((f"{prefix}/{name}", file) for name, file in manifest.files))


def _write(table: Table, own: Path, manifest: Manifest) -> None:
    """Write the manifest under another name first: whoever finds it finds all of it."""
    beside = own / f".{MANIFEST}"
    body = {
        "files": [[name, file_to_dict(file)] for name, file in manifest.files],
        "tallies": [dict(tally) for tally in manifest.tallies],
        "result": dict(manifest.result),
    }
    beside.write_text(json.dumps(body))
    if table.durable:
        durability.sync(beside)
    reach("store.seal.before_rename")
    beside.rename(own / MANIFEST)
    if table.durable:
        durability.sync_up(own, Path(table.root))
    reach("store.seal.after_rename")


def final_paths(root: str) -> Iterator[str]:
    """Yield the final paths that any manifest of the table names. Asked again until the stage has kept still: a take-over renames folders.

    Raises TableChangedError for a manifest that is damaged: what its pass needs cannot be told.
    """
    pattern = f"*/*/{MANIFEST}"
    while True:
        listed = sorted(Path(root, STAGE).glob(pattern))
        found = [read(root, path.parent) for path in listed]
        if None not in found and listed == sorted(Path(root, STAGE).glob(pattern)):
            break
    yield from (file.path for sealed in found if sealed is not None for _, file in sealed.files)


def _parse(text: bytes, prefix: str) -> Manifest:
    body = json.loads(text)
    return Manifest(
        files=tuple((f"{prefix}/{name}", file_from_dict(values)) for name, values in body["files"]),
        tallies=tuple(body["tallies"]),
        result=body["result"],
    )


def _listed(own: Path) -> Iterator[tuple[str, DataFile]]:
    """Return what will be added: the staged name below the holder's folder, and the file under its final path."""
    for name, place in _staged(own):
        if place[0] == TALLY:
            continue
        file = describe(str(own), name, place)
        if file.rows:
            yield name, replace(file, path=new_path(*place))


def _tallies(own: Path) -> Iterator[Mapping[str, object]]:
    import pyarrow.parquet as pq

    for name, place in _staged(own):
        if place[0] == TALLY:
            with pq.ParquetFile(own / name) as parquet:
                for body in parquet.read(["body"]).column("body").to_pylist():
                    yield json.loads(body or b"{}")


def _staged(own: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Return names of outcome files and their partitions, sorted; what Spark or a file system leaves beside them is passed over."""
    for path in sorted((own / stage.OUT).rglob("*.parquet")):
        below = path.relative_to(own / stage.OUT)
        if any(part.startswith(("_", ".")) for part in below.parts):
            continue
        place = partition_of(str(below))
        if place is None or place[0] not in _STAGED:
            message = f"The outcome file {path} lies in no known partition; expected sub_queue=<{', '.join(sorted(_STAGED))}>/move_count=<n>."
            raise ConservationError(message)
        yield f"{stage.OUT}/{below}", place
