"""The store of queue tables in an object store: a table below the prefix for each queue, and an object that names it."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.store import check_name, no_queue, no_such_queue, object_store_of
from airflow_poison.store.bucket_folder import BucketFolder, name_of, node_folder
from airflow_poison.store.bucket_log import BucketLog
from airflow_poison.store.delta_log import PARTITION_BY
from airflow_poison.store.delta_store import make_table
from airflow_poison.store.entries import LOG
from airflow_poison.store.objects import Objects
from airflow_poison.store.queue_table import QueueTable, with_named_errors
from airflow_poison.values.errors import StoreConditionError, StoreUnreachableError
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta

    from airflow_poison.store.control import Control

NAMES = ".queues"
"""Where the objects are that name the queues: one list of them is enough, whatever else lies in the bucket."""

TRIAL = ".keeps-if-none-match"
"""The object by which it is tried whether the store keeps the condition of ``create``. It stays: the next trial is one request, which is refused."""
IGNORED = (
    "it replaces objects that requests with the header If-None-Match: * may only create. Of two commits at the same time both would be acknowledged, "
    "and the messages of one of them vanish"
)
ADVICE = (
    "Keep queues in a store that honours If-None-Match on PUT (S3, Google Cloud Storage, Azure, MinIO from 2024 on), update the store or the proxy "
    "in front of it, or use a folder"
)


@with_named_errors
class BucketStore:
    """Queues below a prefix of an object store.

    :param uri: ``s3://bucket/prefix``, ``gs://…``, ``abfss://…``.
    :param storage_options: see ``Objects.at``; what is not there comes from the environment.
    :param node: the folder of this node, under ``node_folder`` by default.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None, node: Path | None = None, objects: Objects | None = None) -> None:
        self._options = dict(storage_options or {})
        self._objects = objects or Objects.at(uri.rstrip("/"), self._options)
        self._node = node or node_folder(self._objects.uri)

    def __repr__(self) -> str:
        return f"BucketStore({self.uri!r})"

    @property
    def uri(self) -> str:
        """The URI of the prefix."""
        return self._objects.uri

    @property
    def is_folder(self) -> bool:
        """No: there are objects."""
        return False

    @property
    def requests_a_minute(self) -> int:
        """A hundred: so many queues are looked at once a minute, ten every six seconds."""
        return 100

    @property
    def absence(self) -> str:
        """Nothing: a prefix is there as soon as something is below it."""
        return ""

    def create(self, name: str, control: Control, now: datetime) -> QueueTable:
        """Make a queue, or return it when it exists already.

        Raises QueueNameError, StoreUnreachableError; StoreConditionError for a store on which no queue may be made.
        """
        del now
        check_name(name)
        first = f"{name}/{LOG}/{0:020d}.json"
        if not self._objects.is_there(f"{NAMES}/{name}"):
            self._try_condition()
            with tempfile.TemporaryDirectory() as beside:
                make_table(beside, control)
                row = next(path for path in Path(beside).rglob("*.parquet"))
                self._objects.upload(f"{name}/{row.relative_to(beside)}", row)
                reach("store.create.before_first_entry")
                self._objects.create(first, _one_entry(beside))  # the first process makes all of it
            self._opened_log(name)
            reach("store.create.before_name")
            self._objects.put(f"{NAMES}/{name}", b"")
        return self.open(name)

    def _try_condition(self) -> None:
        """Raise StoreConditionError for a store that ignores the condition on which every commit depends."""
        if self._objects.refuses_to_replace(TRIAL):
            return
        with suppress(StoreUnreachableError):  # an object that is left changes nothing: the next trial overwrites it, or is refused
            self._objects.remove([TRIAL])
        raise StoreConditionError(f"The object store {self.uri} cannot hold queues: {IGNORED}. {ADVICE}. No queue was made.")

    def unkept(self, name: str) -> str:
        """Return what its queues need and the store lacks; empty: nothing, or this user may not write, so it cannot be tried.

        One request, which asks to create the empty object that names the queue. A store that ignores the condition replaces it by the same.
        """
        with suppress(StoreUnreachableError):
            if self._objects.is_there(f"{NAMES}/{check_name(name)}") and not self._objects.refuses_to_replace(f"{NAMES}/{name}"):
                return f"the object store {self.uri} ignores a condition: {IGNORED}"
        return ""

    def open(self, name: str, *, read_only: bool = False) -> QueueTable:
        """Return a queue; opening writes nothing here.

        :param read_only: look at nothing yet, either: the first read raises NewerFormatError.
        Raises QueueNameError, QueueNotFoundError, NewerFormatError, StoreUnreachableError, TableChangedError.
        """
        folder, log = self._opened_log(name)
        table = QueueTable(name, folder, log)
        if not read_only:
            table.snapshot()
        return table

    def _opened_log(self, name: str) -> tuple[BucketFolder, BucketLog]:
        """Return a queue's folder and its log. Raises QueueNotFoundError, QueueNameError."""
        folder = self._folder(name)
        log = BucketLog(folder)
        log.look()
        if not log.exists:
            raise no_such_queue(self, name)
        if log.known().table.metadata().partition_columns != PARTITION_BY:
            raise no_queue(name, self.uri)
        return folder, log

    def names(self) -> Sequence[str]:
        """Return the queues' names, sorted. Raises StoreUnreachableError."""
        return sorted(each.path.rpartition("/")[2] for each in self._objects.list(f"{NAMES}/"))

    def others(self) -> Sequence[str]:
        """Return nothing: queues have names of their own here, whatever else lies in the bucket."""
        return []

    def copied(self, name: str) -> AbstractContextManager[str]:
        """Yield a copy of all objects of a queue's table. Raises StoreUnreachableError."""
        return self._folder(name).copied()

    def _folder(self, name: str) -> BucketFolder:
        return BucketFolder(self._objects.below(check_name(name)), str(self._node / name), name_of(self._node, self.uri))

    def sweep(self, safe_age: timedelta) -> Sequence[str]:
        """Do nothing: a queue is made by one request, and what its killed maker has left is found by the cleaning of the queue."""
        del safe_age
        return []

    def options_for(self, uri: str) -> Mapping[str, str]:
        """Return the store's own options for a table in an object store of the same kind."""
        return self._options if object_store_of(uri) == object_store_of(self.uri) else {}


def _one_entry(beside: str) -> bytes:
    """Return the entries of a table that was just made as one: what it is, and its control row."""
    lines = [json.loads(line) for path in sorted(Path(beside, LOG).glob("*.json")) for line in path.read_text().splitlines()]
    newest = {name: line for line in lines for name in line if name in {"protocol", "metaData", "commitInfo"}}
    others = [line for line in lines if not newest.keys() & line.keys()]
    return b"".join(json.dumps(line).encode() + b"\n" for line in (newest["commitInfo"], newest["protocol"], newest["metaData"], *others))
