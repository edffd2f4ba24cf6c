"""``DeltaChanges`` in a bucket of a real S3 server, and takers that are killed while the table grows, is changed and optimized."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison.sources.delta_changes import DeltaChanges
from airflow_poison.testing.sources import SourceContract
from airflow_poison.values.errors import SourceError
from airflow_poison.values.mapping import ColumnMapping
from tests.live.source_kills import a_table, bodies, killed, taken
from tools.servers import s3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from airflow_poison.sources.source import Source

FEED = {"delta.enableChangeDataFeed": "true"}


# In a bucket -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    with s3.running() as port:
        found = s3.options(f"http://{s3.LOOPBACK}:{port}")
        s3.make_bucket(found, "lake")
        yield found


class TestBucketContract(SourceContract):
    """A Delta table in a bucket."""

    mapping = ColumnMapping(body="body")

    @pytest.fixture(autouse=True)
    def _empty(self, options: dict[str, str], tmp_path: Path) -> None:
        self.uri, self.options = f"s3://lake/{tmp_path.name}", options
        DeltaTable.create(self.uri, schema=pa.schema([("body", pa.string())]), storage_options=options, configuration=FEED)

    def source(self) -> Source:
        return DeltaChanges(self.uri, storage_options=self.options)

    def add(self, bodies: Sequence[str]) -> None:
        write_deltalake(self.uri, pa.table({"body": list(bodies)}), mode="append", storage_options=self.options)


def test_what_is_gone_from_a_bucket_is_said(options: dict[str, str], tmp_path: Path) -> None:
    uri, table = "s3://lake/gone", a_table(tmp_path)
    rows = pa.table({"id": [1], "part": ["a b"]})
    write_deltalake(uri, rows, storage_options=options, partition_by=["part"])
    source = DeltaChanges(uri, storage_options=options)
    assert (taken(table, source), bodies(table)) == (1, [{"id": 1, "part": "a b"}])
    for _ in range(2):
        write_deltalake(uri, rows, mode="append", storage_options=options)
    delta = DeltaTable(uri, storage_options=options)
    delta.optimize.compact()
    assert delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SourceError, match=r"of version 1 of the Delta table s3://lake/gone is gone: the table was vacuumed"):
        taken(table, source)
    delta.create_checkpoint()
    remove(options, [f"gone/_delta_log/{version:020d}.json" for version in range(3)])
    with pytest.raises(SourceError, match=r"Versions 1 to 2 of the Delta table s3://lake/gone are gone: its log was cleaned"):
        taken(table, source)
    with pytest.raises(SourceError, match="There is no Delta table at s3://lake/nothing"):
        taken(table, DeltaChanges("s3://lake/nothing", storage_options=options))
    with pytest.raises(SourceError, match=r"The Delta table s3://nowhere/t cannot be read|There is no Delta table at s3://nowhere/t"):
        taken(table, DeltaChanges("s3://nowhere/t", storage_options=options))


def remove(options: Mapping[str, str], keys: Sequence[str]) -> None:
    s3.client_of(options).delete_objects(Bucket="lake", Delete={"Objects": [{"Key": key} for key in keys]})


# Killed ------------------------------------------------------------------------------------------------------------------


class Writer:
    """Adds rows to a table, changes some, and optimizes it."""

    def __init__(self, uri: str, configuration: dict[str, str | None]) -> None:
        self.uri, self.added, self._last, self._draw = uri, list[int](), 0, random.Random(3)
        self.operations: Counter[str] = Counter()
        DeltaTable.create(uri, schema=pa.table({"id": [1], "value": ["v"]}).schema, configuration=configuration)

    def __call__(self, number: int) -> None:
        for kind in (*("append" for _ in range(3)), self._draw.choice(["update", "delete", "merge", "insert", "optimize", "checkpoint"])):
            getattr(self, f"_{kind}")(f"v{number}")
            self.operations[kind] += 1

    def _rows(self, value: str) -> tuple[range, pa.Table]:
        ids = range(self._last + 1, self._last + 1 + self._draw.choice([1, 4, 30]))
        self._last = ids[-1]
        return ids, pa.table({"id": pa.array(ids, pa.int64()), "value": [value] * len(ids)})

    def _append(self, value: str) -> None:
        ids, rows = self._rows(value)
        write_deltalake(self.uri, rows, mode="append")
        self.added += ids

    def _insert(self, value: str) -> None:
        ids, rows = self._rows(value)
        self._merged(rows).when_not_matched_insert_all().execute()
        self.added += ids

    def _merge(self, value: str) -> None:
        changed = pa.table({"id": pa.array([self._last], pa.int64()), "value": [value]})
        self._merged(pa.concat_tables([changed, self._rows(value)[1]])).when_matched_update_all().when_not_matched_insert_all().execute()

    def _merged(self, rows: pa.Table) -> Any:
        return DeltaTable(self.uri).merge(rows, predicate="t.id = s.id", source_alias="s", target_alias="t")

    def _update(self, value: str) -> None:
        DeltaTable(self.uri).update(updates={"value": f"'{value}'"}, predicate=f"id % 7 = {self._draw.randrange(7)}")

    def _delete(self, _value: str) -> None:
        DeltaTable(self.uri).delete(f"id % 11 = {self._draw.randrange(11)}")

    def _optimize(self, _value: str) -> None:
        DeltaTable(self.uri).optimize.compact()

    def _checkpoint(self, _value: str) -> None:
        DeltaTable(self.uri).create_checkpoint()


def test_takers_that_are_killed_take_each_added_row_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "lake")
    writer = Writer(uri, {})
    found = bodies(killed(tmp_path, DeltaChanges(uri, start=0, skip_change_commits=True), writer))
    assert sorted(body["id"] for body in found) == writer.added
    assert set(writer.operations) == {"append", "update", "delete", "merge", "insert", "optimize", "checkpoint"}


def test_takers_that_are_killed_take_each_change_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "lake")
    writer = Writer(uri, dict(FEED))
    found = bodies(killed(tmp_path, DeltaChanges(uri, start=0, changes=True), writer))
    feed = pa.table(DeltaTable(uri).load_cdf(starting_version=0)).to_pylist()
    names = ("_commit_version", "_change_type", "id", "value")
    assert Counter(tuple(body[name] for name in names) for body in found) == Counter(tuple(row[name] for name in names) for row in feed)
    assert [body["_commit_version"] for body in found] == sorted(body["_commit_version"] for body in found)
    assert {row["_change_type"] for row in feed} == {"insert", "update_preimage", "update_postimage", "delete"}
