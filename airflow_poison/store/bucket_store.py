"""The store of queue tables in an object store: a table below the prefix for each queue, and an object that names it.

The Delta log of a table in an object store: read from the copy of it on this node, which every look brings up to date; committed by one request.

Entry n+1 is made by a request that creates and never replaces. delta-rs reads the copy, and writes nothing but checkpoints into it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from itertools import count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import uuid4

from airflow_poison.store import QueueStore, check_name, checkpoints, entries, no_queue, no_such_queue, object_store_of
from airflow_poison.store.bucket_folder import BucketFolder, name_of, node_folder
from airflow_poison.store.delta_store import CHECKPOINT_INTERVAL, PARTITION_BY, DeltaLog, log, make_table, shortened_text
from airflow_poison.store.entries import CHECKPOINT, ENTRY, HINT, LOG, DeltaState, EntryFingerprint, actions, entry_of
from airflow_poison.store.objects import Objects, copy_of, side_by_side
from airflow_poison.store.queue_table import QueueTable, with_named_errors
from airflow_poison.values.errors import PoisonError, StoreConditionError, StoreUnreachableError, TableChangedError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.libraries import deltalake

if TYPE_CHECKING:
    from airflow_poison.store.control import Control
    from airflow_poison.store.files import Commit, DataFile, LogState, Shortened


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
class BucketStore(QueueStore):
    """Queues below a prefix of an object store.

    :param uri: ``s3://bucket/prefix``, ``gs://…``, ``abfss://…``.
    :param storage_options: see ``Objects.at``; what is not there comes from the environment.
    :param node: the folder of this node, under ``node_folder`` by default.
    """

    requests_a_minute = 100  # so many queues are looked at once a minute, ten every six seconds

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None, node: Path | None = None, objects: Objects | None = None) -> None:
        self._options = dict(storage_options or {})
        self._objects = objects or Objects.at(uri.rstrip("/"), self._options)
        self._node = node or node_folder(self._objects.uri)

    def __repr__(self) -> str:
        return f"BucketStore({self.uri!r})"

    @property
    def uri(self) -> str:
        return self._objects.uri

    def create(self, name: str, control: Control) -> QueueTable:
        """Make a queue, or return it when it exists already.

        Raises QueueNameError, StoreUnreachableError; StoreConditionError for a store on which no queue may be made.
        """
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
        return sorted(each.path.rpartition("/")[2] for each in self._objects.list(f"{NAMES}/"))

    def copied(self, name: str) -> AbstractContextManager[str]:
        return self._folder(name).copied()

    def _folder(self, name: str) -> BucketFolder:
        return BucketFolder(self._objects.below(check_name(name)), str(self._node / name), name_of(self._node, self.uri))

    def options_for(self, uri: str) -> Mapping[str, str]:
        return self._options if object_store_of(uri) == object_store_of(self.uri) else {}


def _one_entry(beside: str) -> bytes:
    """Return the entries of a table that was just made as one: what it is, and its control row."""
    lines = [json.loads(line) for path in sorted(Path(beside, LOG).glob("*.json")) for line in path.read_bytes().splitlines()]
    newest = {name: line for line in lines for name in line if name in {"protocol", "metaData", "commitInfo"}}
    others = [line for line in lines if not newest.keys() & line.keys()]
    return b"".join(json.dumps(line).encode() + b"\n" for line in (newest["commitInfo"], newest["protocol"], newest["metaData"], *others))


TRUSTED_SECONDS = 60.0
"""For so long the newest known entry is taken to be still there: entries go when maintenance has kept them for days."""
_ONE_BY_ONE = 4
_WHOLE = timedelta(seconds=1)


class BucketLog:
    """The log of the table in ``folder``."""

    def __init__(self, folder: BucketFolder) -> None:
        self._folder, self._objects = folder, folder.objects
        self._local = DeltaLog(folder.root, durable=False, uri=folder.uri)
        self._looked_at = float("-inf")
        self._lock = RLock()

    @property
    def exists(self) -> bool:
        """Whether there is such a table, as far as the last look has shown."""
        return self._newest() >= 0

    def identity(self) -> str:
        return str(self.load().table.metadata().id)

    def load(self) -> DeltaState:
        self.look()
        return self.known()

    def known(self) -> DeltaState:
        """Return the newest version of this node's copy: no request, unless the copy is at fault. Raises TableChangedError, StoreUnreachableError."""
        try:
            return self._local.load()
        except TableChangedError:
            self._forget()
            self.look()
            return self._local.load()

    def look(self) -> None:
        """Bring this node's copy of the log up to date: one request when nothing has happened, two after a while."""
        with self._lock:
            now, newest = boot_seconds(), self._newest()
            if newest >= 0 and now - self._looked_at > TRUSTED_SECONDS and not self._is_as_it_was(newest):
                self._forget()
                newest = -1
            if newest < 0:
                self._fetch_all_since_checkpoint()
            self._fetch_later(self._newest())
            self._looked_at = now

    def mark(self, version: int) -> Hashable | None:
        """Return the identity of a version's entry, while no later one is there. One request."""
        return None if self._objects.is_there(_name(version + 1)) else EntryFingerprint.of(self._folder.root, version)

    def commit(self, base: LogState, commit: Commit) -> bool:
        version, loaded_at = base.version + 1, self._looked_at
        if self._newest() > base.version:  # as another thread's look has shown: what was there may be cut off by now
            return False
        try:
            self._folder.publish([file.path for file in commit.add])
        except FileNotFoundError as error:
            raise TableChangedError(
                f"{error} was to become part of the queue table {self._folder.uri} and has been removed by somebody else just before. Nothing was "
                "committed. Find what deletes objects there (a lifecycle rule, a cleaning job) and stop that."
            ) from error
        reach(f"store.{commit.operation}.before_commit")
        content = entry_of(commit, uuid4().hex)
        if not self._objects.create(_name(version), content):
            return False
        if boot_seconds() - loaded_at > TRUSTED_SECONDS:
            self._check_not_shortened(base.version)
        self._take(version, content)
        reach(f"store.{commit.operation}.after_commit")
        self._checkpoint(version)
        return True

    def confirm(self, state: LogState) -> None:
        """Do nothing: what an object store has answered is there to stay."""

    def files_at(self, version: int) -> Sequence[DataFile] | None:
        """Return the live files of an earlier version; None when its entries were cleaned up. Reads the whole log."""
        with TemporaryDirectory(dir=self._folder.root) as copy:
            self._copied(copy)
            return DeltaLog(copy, durable=False, uri=self._folder.uri).files_at(version)

    def details(self, version: int) -> Mapping[str, object] | None:
        if not entries.entry_path(self._folder.root, version).exists():
            content = self._objects.get(_name(version))
            if content is None:
                return None
            self._folder.keep(_name(version), content)
        return self._local.details(version)

    def removals(self) -> Mapping[str, float]:
        with TemporaryDirectory(dir=self._folder.root) as copy:
            self._copied(copy)
            return checkpoints.removals(copy)

    def shorten(self, retention: timedelta) -> Shortened:
        """Write a checkpoint and remove what is needed for no version within the retention. Raises TableChangedError.

        A store may say in whole seconds when objects were written, so a retention is longer by one; with none, all goes that is not needed now.
        """
        version, kept = self.load().version, retention + _WHOLE if retention else retention
        with TemporaryDirectory(dir=self._folder.root) as copy:
            before = self._copied(copy)
            shortened = checkpoints.shorten(copy, version, kept, durable=False)
            after = set(entries.names(Path(copy, LOG)))
            for name in sorted(after - before):
                self._objects.create(f"{LOG}/{name}", Path(copy, LOG, name).read_bytes())
            if HINT in after:
                self._objects.put(f"{LOG}/{HINT}", Path(copy, LOG, HINT).read_bytes())
        reach("store.log.before_remove")
        self._objects.remove([f"{LOG}/{name}" for name in sorted(before - after)])
        return shortened

    def _copied(self, copy: str) -> set[str]:
        """Copy the whole log into a folder, up to the newest version at least that this node knows; return its names.

        A list may be late: the entries that it leaves out are fetched one by one.
        """
        copy_of(self._objects, f"{LOG}/", copy)
        listed = set(entries.versions(Path(copy, LOG)))
        for version in range(min(listed, default=0), self._newest() + 1):
            if version not in listed and (content := self._objects.get(_name(version))) is not None:
                Path(copy, LOG).mkdir(exist_ok=True)
                entries.entry_path(copy, version).write_bytes(content)
        return set(entries.names(Path(copy, LOG)))

    def _newest(self) -> int:
        """Return the newest version of this node's copy; -1: there is none."""
        return max(entries.versions(Path(self._folder.root, LOG)), default=-1)

    def _is_as_it_was(self, version: int) -> bool:
        """Whether the newest known entry is still there: else the copy may be of another table, or end where the log was shortened meanwhile."""
        return self._objects.get(_name(version)) == entries.read_entry(entries.entry_path(self._folder.root, version))

    def _forget(self) -> None:
        shutil.rmtree(Path(self._folder.root, LOG), ignore_errors=True)

    def _fetch_all_since_checkpoint(self) -> None:
        """Fetch the last checkpoint that the log names, and all entries since."""
        first = 0
        with suppress(ValueError, KeyError, TypeError):  # no hint, or not a whole one
            first = int(json.loads(self._objects.get(f"{LOG}/{HINT}") or b"")["version"])
        content = self._objects.get(_checkpoint_name(first)) if first else None
        if content is None:  # the hint may be an old one
            found = (CHECKPOINT.fullmatch(_file(path)) for path in self._listed())
            first = max((int(match[1]) for match in found if match), default=0)
            content = self._objects.get(_checkpoint_name(first)) if first else None
        if content is not None:
            self._folder.keep(_checkpoint_name(first), content)
            self._folder.keep(f"{LOG}/{HINT}", json.dumps({"version": first, "size": 1}).encode())
        self._fetch_listed(first)

    def _fetch_listed(self, first: int) -> None:
        """Fetch the entries from a version on that a list knows, as far as none is missing: a list may be late."""
        listed = self._listed(after=f"{LOG}/{first - 1:020d}.zzz" if first else None)
        known = {int(match[1]) for path in listed if (match := ENTRY.fullmatch(_file(path)))}
        versions = list(takewhile(known.__contains__, count(first)))
        for version, content in zip(versions, side_by_side(self._objects.get, map(_name, versions)), strict=True):
            if content is None:
                return
            self._take(version, content)

    def _fetch_later(self, newest: int) -> None:
        """Fetch the entries behind the newest known one; where there are several, with the help of a list."""
        for number in count():
            newest = max(newest, self._newest())
            if number == _ONE_BY_ONE:
                self._fetch_listed(newest + 1)
                continue
            content = self._objects.get(_name(newest + 1))
            if content is None:
                return
            self._take(newest + 1, content)

    def _take(self, version: int, content: bytes) -> None:
        """Put an entry into this node's copy, and forget what it takes out of the table."""
        self._folder.keep(_name(version), content)
        for _, gone in actions(content, "remove"):
            self._folder.forget(unquote(gone["path"]))

    def _listed(self, after: str | None = None) -> Iterator[str]:
        return (each.path for each in self._objects.list(f"{LOG}/", after))

    def _check_not_shortened(self, base: int) -> None:
        """Refuse a commit whose place in the log had been cleaned up before it was made: it would never be read."""
        if not self._objects.is_there(_name(base)):
            raise TableChangedError(shortened_text(self._folder.uri, base))

    def _checkpoint(self, version: int) -> None:
        """Keep opening cheap. Only a shortcut for readers: the commit counts without it."""
        if version % CHECKPOINT_INTERVAL:
            return
        try:
            self.look()
            checkpoints.make(self._folder.root, version, durable=False)
            made = checkpoints.checkpoint_path(self._folder.root, version)
            if self._objects.create(f"{LOG}/{made.name}", made.read_bytes()):
                self._objects.put(f"{LOG}/{HINT}", Path(self._folder.root, LOG, HINT).read_bytes())
        except (deltalake.exceptions.DeltaError, PoisonError, OSError) as error:
            log.warning("The checkpoint of version %d of %s could not be written; opening stays slower: %s", version, self._folder.uri, error)


def boot_seconds() -> float:
    """Return seconds that go on while the machine sleeps and while this process stands still."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def _name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _checkpoint_name(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def _file(path: str) -> str:
    return path.rpartition("/")[2]
