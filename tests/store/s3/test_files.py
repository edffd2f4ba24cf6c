"""``Files`` of a bucket: each once, also one that changes between the list and its reading; and what is told when the store refuses."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.take import TakeResult, take
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.sources.files import Files
from airflow_poison.sources.paths import PathFiles
from airflow_poison.store.memory import MemoryStore
from airflow_poison.store.objects import Objects
from airflow_poison.testing.sources import SourceContract
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import SourceError
from airflow_poison.values.mapping import ColumnMapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.store.s3.conftest import Bucket

_numbers = count()
CLOCK = VirtualClock()


class TestContract(SourceContract):
    """Objects of lines are a source as any."""

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def source(self) -> Files:
        return files(self.bucket, "landing/**/*.txt")

    def add(self, bodies: Sequence[str]) -> None:
        put(self.bucket, f"landing/{next(_numbers):06}.txt", "".join(f"{body}\n" for body in bodies))


def files(bucket: Bucket, pattern: str, **settings: Any) -> Files:
    return Files(f"s3://{bucket.name}/{pattern}", **{"format": "lines", "storage_options": bucket.direct} | settings)


def put(bucket: Bucket, name: str, content: str | bytes) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key=name, Body=content)


def after_list(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something when a bucket has been listed, and before what was listed is read."""
    listed = Objects.list

    def late(self: Objects, prefix: str, after: str | None = None) -> Iterator[Any]:
        yield from listed(self, prefix, after)
        act()

    monkeypatch.setattr(Objects, "list", late)


class Queue:
    """A queue, and what was taken into it."""

    def __init__(self) -> None:
        self.table = declare(MemoryStore(), "arrivals", Msmq4(), CLOCK)

    def take(self, source: Files) -> TakeResult:
        return take(self.table, source, key=f"take-{next(_numbers)}", clock=CLOCK)

    def bodies(self) -> list[bytes]:
        rows = [row for file in self.table.snapshot().files for row in self.table.read(file).to_pylist()]
        return [row["body"] for row in sorted(rows, key=lambda row: row["lookup_id"])]


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.mark.parametrize("rewritten", ["take", "ignore"])
def test_an_object_that_changes_between_list_and_reading_comes_once(
    rewritten: str, bucket: Bucket, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is what is kept as taken, not what the list had told of."""
    source = files(bucket, "*.txt", rewritten=rewritten)
    put(bucket, "a.txt", "old")
    after_list(monkeypatch, lambda: put(bucket, "a.txt", "new"))
    assert queue.take(source).sent == 1
    monkeypatch.undo()
    assert queue.take(source).sent == 0
    assert queue.bodies() == [b"new"]


def test_content_of_the_same_size_in_the_same_second_is_other_content(bucket: Bucket, queue: Queue) -> None:
    source = files(bucket, "*.txt", rewritten="take")
    for content in ("1", "2", "2", "3"):
        put(bucket, "a.txt", content)
        queue.take(source)
    assert queue.bodies() == [b"1", b"2", b"3"]


def test_compressed_and_parquet_objects_and_one_that_is_none(bucket: Bucket, queue: Queue) -> None:
    put(bucket, "lines/a.txt.gz", gzip.compress(b"1\n2\n"))
    assert queue.take(files(bucket, "lines/*")).sent == 2
    content = io.BytesIO()
    pq.write_table(pa.table({"n": [3, 4]}), content)
    put(bucket, "parquet/a.parquet", content.getvalue())
    put(bucket, "parquet/b.parquet", b"no parquet")
    result = queue.take(files(bucket, "parquet/*.parquet", format="parquet"))
    assert (result.sent, result.malformed) == (3, 1)
    assert queue.bodies() == [b"1", b"2", b'{"n":3}', b'{"n":4}', b"no parquet"]


def test_refusals_name_the_source_and_send_nothing(bucket: Bucket, queue: Queue) -> None:
    put(bucket, "a.txt", "1")
    with pytest.raises(SourceError, match=r"(?s)Source 's3://nowhere/\*.txt' cannot be listed.*there is no such bucket.*Nothing was sent"):
        queue.take(Files("s3://nowhere/*.txt", format="lines", storage_options=bucket.direct))
    refused = bucket.direct | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with pytest.raises(SourceError, match=r"(?s)cannot be listed.*Nothing was sent"):
        queue.take(files(bucket, "*.txt", storage_options=refused | {"timeout": "1s", "connect_timeout": "1s"}))
    assert queue.take(files(bucket, "*.none")).sent == 0


def test_an_object_that_is_removed_after_the_list_is_not_taken(bucket: Bucket, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, "a.txt", "1")
    put(bucket, "b.txt", "2")
    after_list(monkeypatch, lambda: bucket.client.delete_object(Bucket=bucket.name, Key="a.txt"))
    assert queue.take(files(bucket, "*.txt")).sent == 1
    monkeypatch.undo()
    put(bucket, "a.txt", "1")
    assert queue.take(files(bucket, "*.txt")).sent == 1
    assert queue.bodies() == [b"2", b"1"]


@pytest.mark.parametrize("rewritten", ["take", "ignore"])
@pytest.mark.parametrize("odd", ["in//a.txt", "in/t\tab.txt", "in/../a.txt"])
def test_an_object_with_a_name_that_clients_refuse_concerns_no_other_object(rewritten: str, odd: str, bucket: Bucket, queue: Queue) -> None:
    source = files(bucket, "in/**/*.txt", rewritten=rewritten)
    for name in ("in/.txt", "in/a.txt", "in/m/b.txt", "in/z.txt", "other/c.txt"):
        put(bucket, name, name)
    assert queue.take(source).sent == 4
    put(bucket, odd, "odd")
    put(bucket, "in/0.txt", "0")
    put(bucket, "in/zz.txt", "zz")
    result = queue.take(source)
    assert result.sent == 2
    refused = "1 object has a name that object stores' clients do not read (//, a control character, ..): "
    assert result.passed_over == (f"{refused}'s3://{bucket.name}/{odd}'; rename it".replace("\t", r"\t"),)
    assert queue.take(source).sent == 0


def test_a_rewritten_object_that_is_ignored_is_said(bucket: Bucket, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    source = files(bucket, "*.txt")
    put(bucket, "a.txt", "1")
    assert queue.take(source).passed_over == ()
    assert queue.take(source).passed_over == ()
    listed = Objects.list

    def a_minute_later(self: Objects, prefix: str, after: str | None = None) -> Iterator[Any]:
        yield from (replace(each, changed_at=each.changed_at + timedelta(minutes=1)) for each in listed(self, prefix, after))

    monkeypatch.setattr(Objects, "list", a_minute_later)
    name = f"s3://{bucket.name}/a.txt"
    assert queue.take(source).passed_over == (f"1 file was rewritten since it was taken: {name}; rewritten='take' takes it again",)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("in/a.json", ["in/a.json"]),
        ("in", ["in/a.json", "in/b.json"]),
        ("in/", ["in/a.json", "in/b.json"]),
        ("i*/[ab].json", ["in/a.json", "in/b.json"]),
        ("nowhere", None),
        ("by_day", None),  # names of folders are fields: Spark reads them
    ],
)
def test_objects_at_a_path_that_is_sent_are_read_here(bucket: Bucket, path: str, found: list[str] | None) -> None:
    for name in ("in/a.json", "in/b.json", "in/_SUCCESS", "in/old/c.json", "in.json", "by_day/day=1/c.json"):
        put(bucket, name, f'{{"in": "{name}"}}\n{{')

    made = PathFiles.at(f"s3://{bucket.name}/{path}", "json", {}, bucket.direct)

    assert (None if made is None else [name.removeprefix(f"s3://{bucket.name}/") for name in made.names]) == found
    records = [] if made is None else [row for batch in made.messages(ColumnMapping(), CLOCK.now()) for row in batch.to_pylist()]
    expected = [(body, error) for name in found or [] for body, error in ((f'{{"in": "{name}"}}'.encode(), False), (b"{", True))]
    assert [(row["body"], row["poison.error"] is not None) for row in records] == expected


def test_a_bucket_that_cannot_be_listed_is_left_to_spark(bucket: Bucket) -> None:
    assert PathFiles.at("s3://not-there/in/a.json", "json", {}, bucket.direct) is None
