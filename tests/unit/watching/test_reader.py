"""Looks: what has not changed is not read, and whatever changes is seen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import PoisonError, QueueNotFoundError
from airflow_poison.watching.poller import QueueReader, Reading
from tests.given.tables import CONTROL, send

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable


def version(sight: Reading | PoisonError) -> int:
    assert isinstance(sight, Reading), sight
    return sight.snapshot.version


def test_an_unchanged_queue_is_not_read_again(store: QueueStore, queue: QueueTable) -> None:
    look = QueueReader(store)
    first = look.at(["orders"])["orders"]
    assert look.at(["orders"])["orders"] is first
    assert look.reads == 1

    send(queue, 3)

    assert version(look.at(["orders"])["orders"]) == version(first) + 1
    assert look.reads == 2


def test_every_commit_is_seen_at_the_next_look(store: QueueStore, queue: QueueTable) -> None:
    look = QueueReader(store)
    for number in range(5):
        send(queue, 1, key=str(number))
        assert version(look.at(["orders"])["orders"]) == queue.snapshot().version


def test_a_queue_that_is_missing_is_an_error_of_its_own(store: QueueStore, queue: QueueTable) -> None:
    seen = QueueReader(store).at(["orders", "missing"])
    assert isinstance(seen["orders"], Reading)
    assert isinstance(seen["missing"], QueueNotFoundError)


def test_a_queue_that_was_deleted_and_made_anew_is_seen_anew_at_the_same_version_too(tmp_path: Path) -> None:
    store = DeltaStore(str(tmp_path), durable=False)
    send(store.create("orders", CONTROL), 1)
    look = QueueReader(store)
    before = version(look.at(["orders"])["orders"])
    shutil.rmtree(tmp_path / "orders")
    assert isinstance(look.at(["orders"])["orders"], QueueNotFoundError)

    for rows in (7, 8):
        shutil.rmtree(tmp_path / "orders", ignore_errors=True)
        send(store.create("orders", CONTROL), rows)
        seen = look.at(["orders"])["orders"]
        assert isinstance(seen, Reading)
        assert (seen.snapshot.version, sum(file.rows for file in seen.snapshot.files)) == (before, rows)


def test_a_log_that_was_shortened_meanwhile_hides_nothing(tmp_path: Path) -> None:
    store = DeltaStore(str(tmp_path), durable=False)
    queue = store.create("orders", CONTROL)
    look = QueueReader(store)
    look.at(["orders"])
    for number in range(30):
        send(queue, 1, key=str(number))
    for entry in sorted(Path(tmp_path, "orders", "_delta_log").glob("*.json"))[:20]:
        entry.unlink()  # what maintenance does behind a checkpoint
    assert version(look.at(["orders"])["orders"]) == queue.snapshot().version >= 30
