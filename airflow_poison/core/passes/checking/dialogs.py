"""Dialogs: conversation endpoints and messages that wait for their target queues change only by the verbs that are for it, and keep their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.errors import TableChangedError
from airflow_poison.core.passes.checking.findings import REPORT, Finding, Kind, Severity
from airflow_poison.core.schema import CONVERSATION, TRANSMISSION_QUEUE
from airflow_poison.core.store.table import files
from airflow_poison.core.store.table.layout import commit_version, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_poison.core.store.delta.past import Entry, Past
    from airflow_poison.core.store.files import DataFile

_BRING = {CONVERSATION: frozenset({"finish", "transact", "merge"}), TRANSMISSION_QUEUE: frozenset({"finish", "transact"})}
_TAKE = {CONVERSATION: frozenset({"transact", "merge"}), TRANSMISSION_QUEUE: frozenset({"transact", "remove_transmissions"})}
_ANYTHING = frozenset({"restore", "accept"})


def check_dialogs(root: str, past: Past, live: Iterable[DataFile]) -> Iterator[Finding]:
    """Yield what our commits cannot have done to dialogs, and versions of an endpoint of which nobody can tell which one counts."""
    for entry in past.entries:
        if entry.ours and entry.operation not in _ANYTHING:
            yield from _impossible(entry)
            yield from _misplaced(entry)
    yield from _twice(root, [file for file in live if file.sub_queue == CONVERSATION])


def _impossible(entry: Entry) -> Iterator[Finding]:
    for verb, paths, allowed in (("adds", [file.path for file in entry.adds], _BRING), ("removes", entry.removes, _TAKE)):
        for path in paths:
            place = partition_of(path)
            if place is not None and entry.operation not in allowed.get(place[0], {entry.operation}):
                what = f"the commit '{entry.operation}' {verb} {path}, which is not for it"
                yield Finding(Kind.HISTORY_IMPOSSIBLE, Severity.ERROR, what, f"version {entry.version}", REPORT)


def _misplaced(entry: Entry) -> Iterator[Finding]:
    """Yield files of dialog messages whose name does not say their version."""
    for file in entry.adds:
        if file.sub_queue == TRANSMISSION_QUEUE and commit_version(file.path) != entry.version:
            what = f"dialog messages that were committed with version {entry.version} say another in their name: they are sent out of order"
            yield Finding(Kind.TRANSMISSION_ORDER, Severity.ERROR, what, file.path, REPORT)


def _twice(root: str, live: Iterable[DataFile]) -> Iterator[Finding]:
    known: dict[tuple[str, int], str] = {}
    for file in live:
        try:
            rows = files.read_columns(root, file.path, ["conversation_id", "lookup_id"])
        except TableChangedError:  # another finding tells
            continue
        for row in rows.to_pylist():
            key = (row["conversation_id"], row["lookup_id"])
            if key in known:
                what = f"version {key[1]} of the conversation endpoint {key[0]} is there twice, in {known[key]}, too: which one counts cannot be told"
                yield Finding(Kind.ENDPOINT_TWICE, Severity.ERROR, what, file.path, REPORT)
            known[key] = file.path
