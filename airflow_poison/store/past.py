"""The history of a queue table from its log, version by version.

Reads only, and mends nothing: a check has to see what is damaged.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from airflow_poison.store import entries, log_damage
from airflow_poison.store.entries import LOG, Acknowledged, actions, details_of, files_of
from airflow_poison.store.files import SEQUENCE, DataFile
from airflow_poison.values.libraries import deltalake, pa, pq


@dataclass(frozen=True, slots=True)
class Version:
    """One version.

    :param operation: of a commit of ours: its own name; else what its writer calls it.
    :param details: what a commit of ours says of itself.
    :param removes: paths.
    :param numbers: the application transactions that it sets.
    :param configuration: the table's properties from this version on; None: as before.
    :param columns: the table's columns from this version on, as text to compare; empty: as before.
    :param protocol: what readers and writers have to know from this version on, as text to compare; empty: as before.
    """

    version: int
    ours: bool
    operation: str
    writer: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    adds: Sequence[DataFile] = ()
    removes: Sequence[str] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    configuration: Mapping[str, str] | None = None
    columns: str = ""
    protocol: str = ""


_NOTHING = Version(-1, ours=True, operation="", configuration={})
"""Before a table is made."""


@dataclass(frozen=True, slots=True)
class Past:
    """What the log still has.

    :param base: what was there before the first entry, as one version that made all of it.
    :param torn: names of entries and checkpoints that do not count: a loss of power cut them short.
    :param lost: acknowledged versions whose entry is gone or changed.
    :param damage: why the history cannot be followed to its end, in words; empty when it can.
    :param unmarked: the newest entry is damaged, and it is not known whether it was acknowledged.
    :param gap: why the history begins with a checkpoint although older entries are there, in words; empty when it does not.
    :param named: every path that the log names, also files that were removed before the first entry.
    """

    entries: Sequence[Version]
    base: Version
    torn: Sequence[str] = ()
    damage: str = ""
    named: frozenset[str] = frozenset()
    lost: Sequence[Acknowledged] = ()
    gap: str = ""
    unmarked: bool = False

    @property
    def version(self) -> int:
        """The newest version."""
        return self.entries[-1].version if self.entries else self.base.version

    def live(self, version: int | None = None) -> dict[str, DataFile]:
        """Return the live files of a version, by path; None: the newest."""
        files = {file.path: file for file in self.base.adds}
        for entry in self.entries:
            if version is not None and entry.version > version:
                break
            for path in entry.removes:
                files.pop(path, None)
            files.update((file.path, file) for file in entry.adds)
        return files

    def configuration(self, version: int) -> Mapping[str, str]:
        """Return the table's properties at a version."""
        return next(entry.configuration for entry in self._before(version) if entry.configuration is not None)

    def columns(self, version: int) -> str:
        """Return the table's columns at a version, as text to compare."""
        return next((entry.columns for entry in self._before(version) if entry.columns), "")

    def protocol(self, version: int) -> str:
        """Return what readers and writers have to know at a version, as text to compare."""
        return next((entry.protocol for entry in self._before(version) if entry.protocol), "")

    def _before(self, version: int) -> Iterator[Version]:
        yield from (entry for entry in reversed(self.entries) if entry.version <= version)
        yield self.base

    def numbers(self) -> dict[str, int]:
        """Return the newest number of each name."""
        found = dict(self.base.numbers)
        for entry in self.entries:
            found.update(entry.numbers)
        return found


def read_past(root: str) -> Past:
    """Return the history of the table at ``root``."""
    log = Path(root, LOG)
    found = log_damage.diagnose(root)
    torn = [path.name for path in (*found.shortcuts, *found.torn)]
    names = [entries.entry_path(root, version) for version in entries.versions(log) if version <= found.version]
    if not names:
        return Past((), _NOTHING, torn, f"{LOG} holds no commit: the table cannot be read", lost=found.lost)
    history, damage = _entries(names)
    if not damage and history[0].version and history[0].version not in _checkpoints(log):
        damage = f"{LOG} begins with version {history[0].version}, and no checkpoint says what was there"
    gap, covering = "", _covering(log, names) if damage else None
    if covering is not None:
        gap, (history, damage) = damage, _entries(names[names.index(entries.entry_path(root, covering)) :])
    if found.unmarked:
        damage = damage or f"{names[-1].name} is cut short, and no mark tells whether it was acknowledged"
    if found.lost:
        damage = damage or f"{LOG} is not what was acknowledged"
    if not history or (damage and history[0].version):
        return Past((), _NOTHING, torn, damage, lost=found.lost, gap=gap, unmarked=found.unmarked)
    try:
        base = _base(root, history[0])
    except deltalake.exceptions.DeltaError as error:
        return Past((), _NOTHING, torn, f"the checkpoint of version {history[0].version} in {LOG} cannot be read: {error}", lost=found.lost)
    if history[0].version:
        history = history[1:]  # the base is what it has left
    buried = frozenset(path for checkpoint in _checkpoints(log).values() for part in checkpoint for path in _removed(part))
    named = {file.path for entry in (base, *history) for file in entry.adds} | {path for entry in history for path in entry.removes}
    return Past(history, base, torn, damage, buried | named, found.lost, gap, found.unmarked)


def _checkpoints(log: Path) -> dict[int, list[Path]]:
    """Return the files of the whole checkpoints by version; a maintainer may remove some meanwhile."""
    found = dict[int, list[Path]]()
    for version, checkpoint in entries.checkpoints(log).items():
        with suppress(FileNotFoundError):
            if entries.is_whole(checkpoint):
                found[version] = checkpoint
    return found


def covering(root: str) -> int | None:
    """Return the oldest checkpoint of a log from which on every entry is there; None when there is none."""
    log = Path(root, LOG)
    names = [entries.entry_path(root, version) for version in entries.versions(log)]
    return _covering(log, names) if names else None


def _covering(log: Path, names: Sequence[Path]) -> int | None:
    """Return the oldest checkpoint from which on every entry is there; None when there is none."""
    wanted = int(names[-1].stem)
    for path in reversed(names):
        if int(path.stem) != wanted or not entries.is_readable(path):
            break
        wanted -= 1
    return min((version for version in _checkpoints(log) if wanted < version <= int(names[-1].stem)), default=None)


def _entries(names: Sequence[Path]) -> tuple[list[Version], str]:
    """Return the entries up to the first that is missing or cannot be read, and what is wrong with that."""
    found: list[Version] = []
    for path in names:
        version = int(path.stem)
        if found and version != found[-1].version + 1:
            return found, f"{LOG} has no commit of version {found[-1].version + 1}, but later ones"
        try:
            found.append(_entry(version, path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return found, f"{LOG}/{path.name} cannot be read ({type(error).__name__}: {error})"
    return found, ""


def _entry(version: int, content: bytes) -> Version:
    found: dict[str, list[Any]] = defaultdict(list)
    for kind, what in actions(content):
        found[kind].append(what)
    info: Mapping[str, Any] = next(iter(found["commitInfo"]), {})
    details = details_of(info)
    return Version(
        version=version,
        ours=details is not None,
        operation=str(info.get("operation", "") if details is None else details["operation"]),
        writer=str(info.get("engineInfo", "")),
        details=details or {},
        adds=[_file(add) for add in found["add"]],
        removes=[unquote(remove["path"]) for remove in found["remove"]],
        numbers={number["appId"]: number["version"] for number in found["txn"]},
        configuration=next((metadata.get("configuration") or {} for metadata in found["metaData"]), None),
        columns=next((_columns(metadata["schemaString"], metadata) for metadata in found["metaData"]), ""),
        protocol=next(map(_protocol, found["protocol"]), ""),
    )


def _columns(schema: str, metadata: Mapping[str, Any]) -> str:
    return json.dumps([json.loads(schema), metadata.get("partitionColumns", [])], sort_keys=True)


def _file(add: Mapping[str, Any]) -> DataFile:
    statistics = json.loads(add.get("stats") or "{}")
    least, greatest, place = statistics.get("minValues") or {}, statistics.get("maxValues") or {}, add["partitionValues"]
    return DataFile(
        path=unquote(add["path"]),
        sub_queue=str(place.get("sub_queue")),
        move_count=int(place.get("move_count") or 0),
        rows=statistics.get("numRecords") or 0,
        size=add["size"],
        min_lookup_id=least.get("lookup_id") or 0,
        max_lookup_id=greatest.get("lookup_id") or 0,
        min_priority=least.get("priority") or 0,
        max_priority=greatest.get("priority") or 0,
        min_enqueued_at=_instant(least.get("enqueued_at")),
        min_due_at=_instant(least.get("due_at")),
        max_due_at=_instant(greatest.get("due_at")),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _base(root: str, first: Version) -> Version:
    """Return what was there before the first entry; for a log that was cleaned up what a checkpoint says of that entry's version."""
    if first.version == 0:
        return _NOTHING
    table = deltalake.DeltaTable(root, version=first.version)
    seq, metadata, protocol = table.transaction_version(SEQUENCE), table.metadata(), table.protocol()
    return Version(
        version=first.version,
        ours=first.ours,
        operation=first.operation,
        writer=first.writer,
        adds=files_of(table),
        numbers={} if seq is None else {SEQUENCE: seq},
        configuration=metadata.configuration,
        columns=_columns(table.schema().to_json(), {"partitionColumns": metadata.partition_columns}),
        protocol=_protocol(
            {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                "readerFeatures": protocol.reader_features,
                "writerFeatures": protocol.writer_features,
            }
        ),
    )


def _protocol(action: Mapping[str, Any]) -> str:
    return json.dumps({name: sorted(value) if isinstance(value, list) else value for name, value in action.items() if value}, sort_keys=True)


def _removed(checkpoint: Path) -> Iterator[str]:
    try:
        with pq.ParquetFile(checkpoint) as parquet:
            cells = parquet.read(["remove.path"]).column("remove").to_pylist()
    except (OSError, pa.ArrowException):
        return
    yield from (unquote(cell["path"]) for cell in cells if cell is not None and cell.get("path"))
