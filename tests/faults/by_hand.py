"""Histories that no verb of ours makes: commits, files and rows by hand, for tests of the checker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.faults.actor import Place

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hand:
    """A hand in the folder of a queue."""

    place: Place
    queue: str

    @property
    def root(self) -> Path:
        return Path(self.place.folder, "store", self.queue)

    @property
    def entries(self) -> list[Path]:
        return sorted(self.root.glob("_delta_log/*.json"))

    def live(self, sub_queue: str) -> list[str]:
        """Return the paths of the newest version's files in a place."""
        found: list[str] = []
        for entry in self.entries:
            for action in (json.loads(line) for line in entry.read_text().splitlines()):
                if "remove" in action and action["remove"]["path"] in found:
                    found.remove(action["remove"]["path"])
                if "add" in action and action["add"]["partitionValues"]["sub_queue"] == sub_queue:
                    found.append(action["add"]["path"])
        return found

    def rows(self, path: str) -> list[Row]:
        with pq.ParquetFile(self.root / path) as parquet:
            rows: list[Row] = parquet.read().to_pylist()
        return rows

    def written(self, rows: Sequence[Row], sub_queue: str, m: int = 0, name: str = "") -> str:
        """Write a file; return its path."""
        path = f"sub_queue={sub_queue}/move_count={m}/{name}{uuid4().hex}.parquet"
        schema = pq.read_schema(next(self.root.glob("sub_queue=*/*/*.parquet")))
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), self.root / path)
        return path

    def event(self, kind: str, number: int | None, m: int = 0, a: int = 0, **details: object) -> str:
        """Write a file with an event of the next version; return its path."""
        body = json.dumps({"move_count": m, **details}).encode()
        rows = [{"lookup_id": number, "message_type": kind, "abort_count": a, "body": body, "message_id": "x", "priority": 0}]
        return self.written(rows, "_event", name=f"{len(self.entries):020d}-000000-")

    def commit(self, operation: str, add: Sequence[str] = (), remove: Sequence[str] = (), **details: object) -> None:
        """Make the next version, with our mark; a foreign one for an empty operation."""
        actions = [{"add": _added(self.root, path)} for path in add] + [{"remove": _removed(path)} for path in remove]
        info: Row = {"operation": "WRITE"}
        if operation:
            info["userMetadata"] = json.dumps({"operation": operation, "mark": uuid4().hex, **details})
        lines: list[Mapping[str, object]] = [{"commitInfo": info}, *actions]
        Path(self.root, "_delta_log", f"{len(self.entries):020d}.json").write_text("\n".join(json.dumps(line) for line in lines))


def _partition(path: str) -> Mapping[str, str]:
    sub_queue, m = (part.partition("=")[2] for part in path.split("/")[:2])
    return {"sub_queue": sub_queue, "move_count": m}


def _added(root: Path, path: str) -> Row:
    size = (root / path).stat().st_size if (root / path).exists() else 0
    return {"path": path, "partitionValues": _partition(path), "size": size, "modificationTime": 0, "dataChange": True}


def _removed(path: str) -> Row:
    return {"path": path, "partitionValues": _partition(path), "deletionTimestamp": 0, "dataChange": True}
