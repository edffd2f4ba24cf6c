"""Odd names and places: what cannot be kept is refused with an error that names it; what can be kept is kept everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.relay import relay
from airflow_poison.store import open_store
from airflow_poison.store.delta_store import DeltaStore, local_path
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import QueueNameError, StoreUnreachableError
from airflow_poison.values.schema import DESTINATION, OUTBOX, SubQueue
from tests.given.tables import CONTROL, LATER, NOW, all_rows, ids, park_all, put, send

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore

FOLDERS = [
    "two words",
    "schön 日本 \U0001f4a9",
    "100%",
    "a#b",
    "a?b",
    "a=b",
    "sub_queue=main",
    "sub_queue=main/move_count=0",
    "a&b;c,d",
    "[a]{b}*",
    "a:b",
    "'\"`$(x)",
    "~",
    "-rf",
    "a+b@c",
    "x" * 200,
    ".hidden",
    "trailing. ",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_store_may_lie_in_a_folder_of_any_name(tmp_path: Path, folder: str) -> None:
    root = tmp_path / folder
    store = DeltaStore(str(root), durable=False)
    queue = store.create("orders", CONTROL)

    send(queue, 10)
    park_all(queue)
    assert queue.move_files(lambda snapshot: snapshot.files, SubQueue.MAIN, LATER).messages == 10

    again = open_store(str(root), durable=False)
    assert (again.uri, list(again.names())) == (str(root), ["orders"])
    assert ids(again.open("orders"), SubQueue.MAIN) == list(range(1, 11))
    assert len(list(again.open("orders").events())) == 10
    assert list(Path(again.open("orders").uri).iterdir())


@pytest.mark.parametrize("folder", ["two words", "a#b", "a?b=c", "100%25", "schön"])
def test_a_file_uri_names_its_whole_path(tmp_path: Path, folder: str) -> None:
    assert local_path(f"file://{tmp_path}/{folder}") == tmp_path / folder.replace("%25", "%")
    assert local_path(f"file:{tmp_path}/{folder}") == tmp_path / folder.replace("%25", "%")
    assert local_path(f"file://localhost{tmp_path}/{folder}") == tmp_path / folder.replace("%25", "%")


@pytest.mark.parametrize("folder", ["a%20b", "a\\b", "a\nb", "a\0b", "a\ud800b", "\x7f"])
def test_places_that_the_log_would_look_for_elsewhere_are_refused(tmp_path: Path, folder: str) -> None:
    """Else delta-rs would make the folder ``a b`` beside ``a%20b``, and put the log there."""
    with pytest.raises(StoreUnreachableError, match="misreads"):
        open_store(str(tmp_path / folder))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uri", ["file://host/a", "file://[bad", "ftp://bucket/a", "://", "hdfs://n:1/x"])
def test_places_that_are_no_folder_of_a_file_system_are_refused(uri: str) -> None:
    with pytest.raises(StoreUnreachableError, match="not supported"):
        open_store(uri)


@pytest.mark.parametrize("name", ["a" * 100, "orders.", "orders-", "0", "_orders", "CON", "a.b_c-d", "main", "_stage", "_ctl"])
def test_names_at_the_edge_are_queues(store: QueueStore, name: str) -> None:
    queue = store.create(name, CONTROL)
    send(queue, 1)

    assert ids(store.open(name)) == [1]
    assert list(store.names()) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 101,
        "_delta_log",
        "__a",
        ".",
        "..",
        ".a",
        "-a",
        "a/b",
        "a\\b",
        "a b",
        "a ",
        " a",
        "a\n",
        "a\0",
        "a;b",
        "оrders",
        "órders",
        "１２",
        "a\u200b",
        "\ud800",
        "a%20b",
        "a=b",
    ],
)
def test_names_that_no_queue_may_have_are_refused(store: QueueStore, name: str) -> None:
    with pytest.raises(QueueNameError, match="cannot be a queue's name"):
        store.create(name, CONTROL)
    with pytest.raises(QueueNameError, match="cannot be a queue's name"):
        store.open(name)
    assert list(store.names()) == []


@pytest.fixture
def careless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaStore:
    """A store on a file system that takes ``ORDERS`` and ``orders.`` for ``orders``."""
    store = DeltaStore(str(tmp_path / "store"), durable=False)
    store.create("orders", CONTROL)
    for other in ("ORDERS", "orders."):
        (tmp_path / "store" / other).symlink_to("orders")
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": [name for name in real(path) if name not in {"ORDERS", "orders."}])
    return store


@pytest.mark.parametrize("name", ["ORDERS", "orders."])
def test_a_name_that_the_file_system_takes_for_another_queues_is_refused(careless: DeltaStore, name: str) -> None:
    """Else two queues would be one table."""
    with pytest.raises(QueueNameError, match="name of another queue to the file system"):
        careless.create(name, CONTROL)
    with pytest.raises(QueueNameError, match="name of another queue to the file system"):
        careless.open(name)
    assert ids(careless.open("orders")) == []


def test_a_message_for_such_a_queue_goes_to_the_dead_letter_queue(careless: DeltaStore) -> None:
    queue = careless.open("orders")
    send(queue, 3)
    file = queue.snapshot().files[0]
    rows = put(queue.read(file), OUTBOX, move_count=0)
    place = rows.schema.get_field_index("properties")
    import pyarrow as pa

    addressed = pa.array([[(DESTINATION, "ORDERS")]] * 3, rows.schema.field("properties").type)
    queue.replace_file(file, rows.set_column(place, rows.schema.field("properties"), addressed), [])

    assert relay(careless, queue, VirtualClock(NOW)) == 3

    assert len(all_rows(careless.open("orders.dead-letter"))) == 3
    assert queue.snapshot().outbox == ()
