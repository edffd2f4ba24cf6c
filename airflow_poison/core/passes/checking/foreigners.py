"""Commits of somebody else that still count, and what protects the table from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.passes.checking.findings import REPAIR, Finding, Kind, Severity
from airflow_poison.core.store.delta.creation import CONSTRAINT, PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_poison.core.store.delta.past import Entry, Past
    from airflow_poison.core.store.files import DataFile


@dataclass(frozen=True, slots=True)
class Intrusion:
    """Versions of somebody else in a row, with what they changed in sum.

    :param last_own: the version of ours before them.
    :param fresh: of the added files, those that no earlier version had.
    :param seen: a commit of ours came after them: it let them stand.
    """

    entries: Sequence[Entry]
    last_own: int
    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    fresh: Sequence[DataFile]
    properties: bool
    columns: bool
    last_id: bool
    seen: bool

    @property
    def changed(self) -> bool:
        """Whether anything differs from before."""
        return bool(self.removed or self.added or self.properties or self.columns or self.last_id)


def intrusions(past: Past) -> Iterator[Intrusion]:
    """Yield each row of foreign versions; those that made the table are none."""
    entries = list(past.entries)
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


def _intrusion(past: Past, entries: Sequence[Entry], seen: bool) -> Intrusion:  # noqa: FBT001
    last_own = entries[0].version - 1
    before, after = past.live(last_own), past.live(entries[-1].version)
    then = _configuration(past, last_own)
    earlier = past.base.keys() | {file.path for entry in past.entries if entry.version <= last_own for file in entry.adds}
    added = [file for path, file in after.items() if before.get(path) != file]
    return Intrusion(
        entries=entries,
        last_own=last_own,
        removed=[file for path, file in before.items() if after.get(path) != file],
        added=added,
        fresh=[file for file in added if file.path not in earlier],
        properties=_protocol(past, entries[-1].version) != _protocol(past, last_own) or _configuration(past, entries[-1].version) != then,
        columns=_columns(past, entries[-1].version) != _columns(past, last_own),
        last_id=any("seq" in entry.numbers for entry in entries),
        seen=seen,
    )


def _configuration(past: Past, version: int) -> Mapping[str, str]:
    known = [entry.configuration for entry in past.entries if entry.version <= version and entry.configuration is not None]
    return known[-1] if known else past.configuration


def _protocol(past: Past, version: int) -> str:
    return next((entry.protocol for entry in reversed(past.entries) if entry.version <= version and entry.protocol), "")


def _columns(past: Past, version: int) -> str:
    known = [entry.columns for entry in past.entries if entry.version <= version and entry.columns]
    return known[-1] if known else past.base_columns


def check_foreign(past: Past) -> Iterator[Finding]:
    """Yield the foreign commits at the end of the history: verbs refuse the table for them. Earlier ones were undone or accepted."""
    for found in intrusions(past):
        if found.seen or not found.changed:
            continue
        first, last = found.entries[0], found.entries[-1]
        where = f"version {first.version}" + ("" if first is last else f" to {last.version}")
        who = ", ".join(dict.fromkeys(f"{entry.operation} by {entry.writer or 'somebody'}" for entry in found.entries))
        what = [f"{verb} {len(files)} file(s) with {sum(file.rows for file in files)} row(s)" for verb, files in _verbs(found) if files]
        what += (
            ["changed the table's properties"] * found.properties
            + ["changed the columns"] * found.columns
            + ["changed the last lookup id"] * found.last_id
        )
        mendable = restorable(found)
        todo = REPAIR if mendable else f"look at what was changed, then RESTORE the table to version {found.last_own}"
        yield Finding(
            Kind.FOREIGN_COMMIT,
            Severity.ERROR,
            f"somebody else has committed ({who}) and {'; '.join(what)}, so every verb refuses the table",
            where,
            f"find who writes there and stop that; {todo}, or run the check with --accept to go on with the table as it is",
            mendable,
        )


def _verbs(found: Intrusion) -> tuple[tuple[str, Sequence[DataFile]], ...]:
    return ("removed", found.removed), ("added", found.added)


def restorable(found: Intrusion) -> bool:
    """Whether going back to the last version of ours loses nothing: what was added was there before, or was written again from what was removed."""
    again, back = sum(file.rows for file in found.fresh), sum(file.rows for file in found.removed)
    kept = again <= back and all(_inside(file, found.removed) for file in found.fresh)
    return kept and not found.last_id and not any(entry.protocol and entry.configuration is None for entry in found.entries)


def _inside(file: DataFile, removed: Sequence[DataFile]) -> bool:
    """Whether the ids of a foreign file are among those of files that were removed, as far as statistics tell."""
    known = [other for other in removed if other.sub_queue == file.sub_queue]
    if not known or file.max_lookup_id == 0:
        return bool(known)
    return min(other.min_lookup_id for other in known) <= file.min_lookup_id and file.max_lookup_id <= max(other.max_lookup_id for other in known)


def check_protection(past: Past) -> Iterator[Finding]:
    """Yield properties that the table was made with and has no more."""
    now = _configuration(past, past.version)
    wanted = PROPERTIES | {f"delta.constraints.{name}": rule for name, rule in CONSTRAINT.items()}
    for name, value in wanted.items():
        if now.get(name) != value:
            what = f"the table's property {name} is {now.get(name, 'missing')!r}; expected {value!r}"
            todo = f"set it ({name} = {value}), then run the check with --accept"
            yield Finding(Kind.PROTECTION_MISSING, Severity.WARNING, what, "", todo)
