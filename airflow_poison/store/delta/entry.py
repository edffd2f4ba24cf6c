"""One entry of a Delta log: what a commit of ours says, and the actions of any entry."""

from __future__ import annotations

import json
import time
from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow_poison.values.schema import CONVERSATION, LANDING, OUTBOX, PLAN, TRANSMISSION_QUEUE, SubQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from airflow_poison.store.files import DataFile
    from airflow_poison.store.log import Commit

WITH_STATISTICS = frozenset({*(place.value for place in SubQueue), OUTBOX, CONVERSATION, LANDING, PLAN, TRANSMISSION_QUEUE})


def actions(content: bytes, *kinds: str) -> Iterator[tuple[str, Any]]:
    """Yield the actions of an entry, each with its kind (``add``, ``remove``, ``txn``, ``commitInfo`` …), in their order.

    :param kinds: only these; lines without their names are not parsed. None: all.
    Raises ValueError for a line that is not one JSON object.
    """
    names = [f'"{kind}"'.encode() for kind in kinds]
    for line in content.splitlines():
        if names and not any(name in line for name in names):
            continue
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError(f"{line[:40]!r} is not an action")  # noqa: TRY004  (what json.loads raises, too)
        yield from ((kind, what) for kind, what in found.items() if not kinds or kind in kinds)


def details_of(info: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the details of a commit of ours from its ``commitInfo``; None for a commit of another writer."""
    try:
        details = json.loads(str(info.get("userMetadata") or "null"))
    except ValueError:
        return None
    return details if isinstance(details, dict) and {"operation", "mark"} <= details.keys() else None


def entry_of(commit: Commit, mark: str) -> bytes:
    """Return the entry that makes a commit, as delta-rs writes it.

    :param mark: what no other commit has. With it stands the number of actions, which says when some of them are missing.
    """
    numbers: list[dict[str, object]] = [{"appId": name, "version": number, "lastUpdated": now_ms()} for name, number in commit.numbers.items()]
    numbers += [{"appId": name, "version": number} for name, number in commit.lasting.items()]
    change = commit.data_change
    gone = [{**_place(file), "deletionTimestamp": now_ms(), "dataChange": change, "extendedFileMetadata": True} for file in commit.remove]
    come = [{**_place(file), "modificationTime": now_ms(), "dataChange": change, "stats": statistics_of(file)} for file in commit.add]
    parts = [{kind: each} for kind, them in (("txn", numbers), ("remove", gone), ("add", come)) for each in them]
    info = {
        "timestamp": now_ms(),
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": "airflow-poison",
        "userMetadata": json.dumps({**commit.details, "operation": commit.operation, "mark": mark, "actions": len(parts)}),
    }
    return b"".join(json.dumps(part).encode() + b"\n" for part in ({"commitInfo": info}, *parts))


def _place(file: DataFile) -> dict[str, object]:
    return {"path": file.path, "partitionValues": {"sub_queue": file.sub_queue, "move_count": str(file.move_count)}, "size": file.size}


def statistics_of(file: DataFile) -> str:
    """Return Delta's statistics of a file. Events, claims and control rows get their number only: their columns mean other things."""
    least: dict[str, int | str] = {}
    greatest: dict[str, int | str] = {}
    if file.sub_queue in WITH_STATISTICS:
        least |= {"lookup_id": file.min_lookup_id, "priority": file.min_priority}
        greatest |= {"lookup_id": file.max_lookup_id, "priority": file.max_priority}
        if file.min_enqueued_at is not None:
            least["enqueued_at"] = _instant_text(file.min_enqueued_at)
        if file.min_due_at is not None and file.max_due_at is not None:
            least["due_at"], greatest["due_at"] = _instant_text(file.min_due_at), _instant_text(file.max_due_at)
    return json.dumps({"numRecords": file.rows, "minValues": least, "maxValues": greatest, "nullCount": {}})


def _instant_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def now_ms() -> int:
    """Return the machine's time: retention of removed files and of numbers is a matter of the disk, not of the queue's clock."""
    return time.time_ns() // 1_000_000
