"""Creating, opening and naming queues; stores by their URI."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.store import open_store
from airflow_poison.store.control import FORMAT_VERSION
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import NewerFormatError, QueueNameError, QueueNotFoundError, StoreUnreachableError
from tests.given.tables import CONTROL, ids, send

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore


def test_a_queue_that_exists_is_returned_with_what_it_holds(store: QueueStore) -> None:
    send(store.create("orders", CONTROL), 3)
    again = store.create("orders", replace(CONTROL, policy={"other": True}))
    assert again.snapshot().control == CONTROL
    assert len(again.snapshot().files) == 1


def test_names_are_sorted(store: QueueStore) -> None:
    assert list(store.names()) == []
    for name in ("b", "a.b", "A-1", "9_x", "_S.1"):
        store.create(name, CONTROL)
    assert list(store.names()) == ["9_x", "A-1", "_S.1", "a.b", "b"]
    assert store.open("b").name == "b"


@pytest.mark.parametrize("name", ["", "ORDERS/eu", "a;b", ".hidden", "-x", "__x", "_", "_.x", "_delta_log", "a b", "ä", "x" * 101, "..", "a\n"])
def test_a_name_that_cannot_be_a_queues_is_refused(store: QueueStore, name: str) -> None:
    with pytest.raises(QueueNameError, match="begin"):
        store.create(name, CONTROL)
    with pytest.raises(QueueNameError):
        store.open(name)


def test_dmp_6_the_name_of_a_system_exception_destination_is_a_queues(store: QueueStore) -> None:
    name = "_SYSTEM.Exception.Destination.ME1"
    send(store.create(name, CONTROL), 2)
    assert store.open(name).name == name
    assert ids(store.open(name)) == [1, 2]


def test_a_name_of_a_hundred_characters_is_one(store: QueueStore) -> None:
    assert store.create("x" * 100, CONTROL).name == "x" * 100


def test_an_unknown_queue_is_told_with_those_that_there_are(store: QueueStore) -> None:
    store.create("orders", CONTROL)
    with pytest.raises(QueueNotFoundError, match=r"'order'.*Queues there: orders"):
        store.open("order")


def test_a_table_of_a_newer_format_is_left_alone(store: QueueStore) -> None:
    with pytest.raises(NewerFormatError, match=f"format {FORMAT_VERSION + 1}"):
        store.create("orders", replace(CONTROL, format_version=FORMAT_VERSION + 1))
    with pytest.raises(NewerFormatError):
        store.open("orders")


def test_a_path_and_a_file_uri_name_one_store(tmp_path: Path) -> None:
    open_store(str(tmp_path / "my store")).create("orders", CONTROL)
    assert list(open_store((tmp_path / "my store").as_uri()).names()) == ["orders"]
    assert open_store((tmp_path / "my store").as_uri()).uri == str(tmp_path / "my store")


def test_a_memory_store_is_shared_by_name() -> None:
    open_store("memory://shared-by-name").create("orders", CONTROL)
    assert list(open_store("memory://shared-by-name").names()) == ["orders"]
    assert list(open_store("memory://another").names()) == []


@pytest.mark.parametrize("uri", ["hdfs://namenode/queues", "https://example.org/q", "file://host/share"])
def test_a_store_that_is_no_file_system_is_refused_with_what_to_do(uri: str) -> None:
    with pytest.raises(StoreUnreachableError, match=r"Use a path.*local disks are what is tested.*an object store: s3://, "):
        open_store(uri, {"key": "value"})


def test_a_root_that_is_no_folder_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        store = DeltaStore(str(root))
        with pytest.raises(StoreUnreachableError, match=f"{root}.*a file is (in the place of a folder|there already).*Name a"):
            store.create("orders", CONTROL)
        with pytest.raises(StoreUnreachableError):
            store.names()
        with pytest.raises(StoreUnreachableError):
            store.open("orders")
