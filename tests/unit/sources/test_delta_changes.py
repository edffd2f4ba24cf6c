"""``DeltaChanges`` over real Delta tables: each row once, versions that change rows, the change data feed, and versions that are gone."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison.passes.take import positions, take
from airflow_poison.sources import delta_changes
from airflow_poison.sources.delta_changes import DeltaChanges, Versions
from airflow_poison.sources.source import ERROR, Position
from airflow_poison.testing.sources import SourceContract
from airflow_poison.values.errors import InputError, SettingError, SourceError
from airflow_poison.values.mapping import ColumnMapping

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.sources.source import JsonValue, Source
    from tests.given.passes import Queue

FEED = {"delta.enableChangeDataFeed": "true"}
COLUMNS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("region", pa.string())]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """An empty table: version 0."""
    path = str(tmp_path / "lake" / "orders")
    DeltaTable.create(path, schema=pa.schema(COLUMNS), configuration=FEED)
    return path


def append(uri: str, *ids: int) -> None:
    write_deltalake(uri, pa.table({"id": pa.array(ids, pa.int64()), "region": [f"r{each}" for each in ids]}), mode="append")


def taken(
    source: Source, at: Mapping[str, JsonValue] | None = None, limit: int | None = None
) -> tuple[list[dict[str, Any]], Mapping[str, JsonValue]]:
    """Return the rows behind a position, and the position behind them; the same one where nothing is new."""
    found = source.plan(Position(at or {}), limit=limit)
    if found is None:
        return [], at or {}
    return [row for batch in found.batches() for row in batch.to_pylist()], found.reached().at


def ids(source: Source, at: Mapping[str, JsonValue] | None = None, limit: int | None = None) -> tuple[list[int], Mapping[str, JsonValue]]:
    rows, reached = taken(source, at, limit)
    return [row["id"] for row in rows], reached


class TestContract(SourceContract):
    """A Delta table as a source."""

    mapping = ColumnMapping(body="body")

    @pytest.fixture(autouse=True)
    def _empty(self, tmp_path: Path) -> None:
        self.uri = str(tmp_path / "table")
        DeltaTable.create(self.uri, schema=pa.schema([("body", pa.string())]))

    def source(self) -> Source:
        return DeltaChanges(self.uri)

    def add(self, bodies: Sequence[str]) -> None:
        write_deltalake(self.uri, pa.table({"body": list(bodies)}), mode="append")


class TestFeedContract(TestContract):
    """Its change data feed, from the first version on."""

    @pytest.fixture(autouse=True)
    def _empty(self, tmp_path: Path) -> None:
        self.uri = str(tmp_path / "table")
        DeltaTable.create(self.uri, schema=pa.schema([("body", pa.string())]), configuration=FEED)

    def source(self) -> Source:
        return DeltaChanges(self.uri, changes=True)


def test_the_rows_that_are_there_come_first_then_those_of_each_version(uri: str) -> None:
    append(uri, 1, 2)
    append(uri, 3)
    first, at = ids(DeltaChanges(uri))
    append(uri, 4)
    append(uri, 5, 6)
    assert (sorted(first), at["version"]) == ([1, 2, 3], 3)
    assert ids(DeltaChanges(uri), at)[0] == [4, 5, 6]


def test_start_says_where_the_first_take_begins(uri: str, queue: Queue) -> None:
    append(uri, 1)
    append(uri, 2)
    assert ids(DeltaChanges(uri, start=2))[0] == [2]
    newest = DeltaChanges(uri, start="latest")
    assert take(queue.table, newest, key="a", clock=queue.clock).sent == 0
    append(uri, 3)
    assert take(queue.table, newest, key="b", clock=queue.clock).sent == 1
    (found,) = positions(queue.table)
    assert (found.position, found.kind) == ("version 3", "DeltaChanges")


def test_optimize_adds_nothing_and_the_position_passes_it(uri: str) -> None:
    append(uri, 1)
    append(uri, 2)
    _, at = ids(DeltaChanges(uri))
    DeltaTable(uri).optimize.compact()
    rows, behind = ids(DeltaChanges(uri), at)
    append(uri, 3)
    assert (rows, behind["version"]) == ([], 4)
    assert ids(DeltaChanges(uri), behind)[0] == [3]
    assert ids(DeltaChanges(uri, start=0, changes=True))[0] == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda uri: DeltaTable(uri).delete("id = 1"), "DELETE"),
        (lambda uri: DeltaTable(uri).update(updates={"region": "'x'"}, predicate="id = 1"), "UPDATE"),
        (lambda uri: write_deltalake(uri, pa.table({"id": [9], "region": ["r9"]}), mode="overwrite"), "WRITE"),
    ],
)
def test_a_version_that_changes_rows_is_an_error_or_left_out(uri: str, change: Any, operation: str) -> None:
    append(uri, 1)
    _, at = ids(DeltaChanges(uri))
    append(uri, 2)
    change(uri)
    append(uri, 3)

    before, behind = ids(DeltaChanges(uri), at)
    assert before == [2], "the versions before it are taken"
    with pytest.raises(
        SourceError, match=rf"Version 3 of the Delta table .* changes or removes rows \({operation}\).*changes=True.*skip_change_commits"
    ):
        ids(DeltaChanges(uri), behind)
    assert ids(DeltaChanges(uri), at, limit=1)[0] == [2]
    assert ids(DeltaChanges(uri, skip_change_commits=True), at)[0] == [2, 3]


def test_changes_say_what_became_of_each_row(uri: str) -> None:
    append(uri, 1, 2)
    DeltaTable(uri).update(updates={"region": "'x'"}, predicate="id = 1")
    DeltaTable(uri).delete("id = 2")
    write_deltalake(uri, pa.table({"id": [9], "region": ["r9"]}), mode="overwrite")

    rows, _ = taken(DeltaChanges(uri, changes=True, start=0))

    found = [(row["_commit_version"], row["_change_type"], row["id"], row["region"]) for row in rows]
    assert found[:2] == [(1, "insert", 1, "r1"), (1, "insert", 2, "r2")]
    assert sorted(found[2:4]) == [(2, "update_postimage", 1, "x"), (2, "update_preimage", 1, "r1")]  # their writer gives them no order
    assert found[4:] == [(3, "delete", 2, "r2"), (4, "delete", 1, "x"), (4, "insert", 9, "r9")]
    assert all(abs(row["_commit_timestamp"] - datetime.now(UTC)) < timedelta(hours=1) for row in rows)


def test_changes_become_what_a_mapping_says(uri: str, queue: Queue) -> None:
    append(uri, 1)
    mapping = ColumnMapping(body=("id",), properties=("_change_type", "_commit_version"))
    take(queue.table, DeltaChanges(uri, changes=True), key="a", clock=queue.clock, mapping=mapping)
    (message,) = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert (json.loads(message["body"]), dict(message["properties"])) == ({"id": 1}, {"_change_type": "insert", "_commit_version": "1"})


def test_versions_without_a_feed_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    append(uri, 1)
    DeltaTable(uri).update(updates={"region": "'x'"})
    with pytest.raises(SourceError, match=r"Version 0 of the Delta table .* was written without a change data feed"):
        taken(DeltaChanges(uri, changes=True, start=0))
    DeltaTable(uri).alter.set_table_properties(FEED)
    with pytest.raises(SourceError, match=r"Version 1 .* without a change data feed"):
        taken(DeltaChanges(uri, changes=True, start=1))
    assert taken(DeltaChanges(uri, changes=True, start=2))[0] == []


def test_a_limit_stops_behind_a_file_and_goes_on_there(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    by_region = pa.table({"id": [1, 2, 3, 4], "region": ["a", "b", "c", "d"]})
    write_deltalake(uri, by_region, partition_by=["region"])
    write_deltalake(uri, pa.table({"id": [5, 6], "region": ["a", "b"]}), mode="append")
    for source in (DeltaChanges(uri), DeltaChanges(uri, start=0)):
        found: list[int] = []
        at: Mapping[str, JsonValue] = {}
        steps = 0
        while steps < 20:
            some, at = ids(source, at, limit=1)
            if not some:
                break
            assert len(some) == 1
            found += some
            steps += 1
        assert sorted(found) == [1, 2, 3, 4, 5, 6]


def test_a_limit_takes_whole_versions_of_a_feed(uri: str) -> None:
    append(uri, 1, 2, 3)
    append(uri, 4)
    source = DeltaChanges(uri, changes=True, start=1)
    first, at = ids(source, limit=2)
    assert (first, at["version"]) == ([1, 2, 3], 2)
    assert ids(source, at)[0] == [4]


def test_a_backfill_takes_versions_again(uri: str) -> None:
    for each in range(1, 6):
        append(uri, each)
    rows = [row["id"] for batch in DeltaChanges(uri).between("2", "4").batches() for row in batch.to_pylist()]
    assert rows == [2, 3]
    for start, end, words in (("4", "2", "cannot be taken"), ("0", "9", "expected two of 0 to 6"), ("x", "2", "'x' is no version")):
        with pytest.raises(InputError, match=words):
            DeltaChanges(uri).between(start, end)


def test_columns_that_came_later_and_values_of_partitions_have_their_types(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    when = datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC)
    kinds: list[tuple[str, pa.DataType]] = [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("p", pa.string()),
        ("n", pa.int32()),
    ]
    rows: list[dict[str, Any]] = [
        {"id": 1, "day": date(2024, 1, 2), "at": when, "p": "ä /%2", "n": 7},
        {"id": 2, "day": None, "at": None, "p": None, "n": None},
    ]
    write_deltalake(uri, pa.Table.from_pylist(rows, schema=pa.schema(kinds)), partition_by=["day", "at", "p", "n"])
    write_deltalake(uri, pa.table({"id": [3], "more": [[1.5]]}), mode="append", schema_mode="merge")

    wanted = [{**row, "more": None} for row in rows]
    wanted.append({"id": 3, "day": None, "at": None, "p": None, "n": None, "more": [1.5]})
    for source in (DeltaChanges(uri), DeltaChanges(uri, start=0)):
        assert sorted(taken(source)[0], key=lambda row: row["id"]) == wanted


@pytest.mark.parametrize("partitions", [["day", "at"], []], ids=["in partitions", "in statistics"])
@pytest.mark.parametrize("start", [None, 0])
def test_dates_and_instants_may_have_years_that_python_does_not_have(tmp_path: Path, partitions: list[str], start: int | None) -> None:
    uri = str(tmp_path / "t")
    days, instants = [19_675_925, -735_525, None], [1_700_000_000_123_456_789, -63_549_338_399_500_000, None]
    rows = pa.table({"id": [1, 2, 3], "day": pa.array(days, pa.date32()), "at": pa.array(instants, pa.timestamp("us", "UTC"))})
    write_deltalake(uri, rows, partition_by=partitions)

    take = DeltaChanges(uri, start=start).plan(Position({}), limit=None)

    assert take is not None
    table = pa.Table.from_batches(take.batches()).sort_by("id")
    assert table["day"].cast(pa.int32()).to_pylist() == days
    assert table["at"].cast(pa.int64()).to_pylist() == instants


def test_instants_of_96_bits_as_spark_writes_them_are_read(tmp_path: Path) -> None:
    uri, when = str(tmp_path / "t"), datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC)
    write_deltalake(uri, pa.table({"at": pa.array([when], pa.timestamp("us", "UTC"))}))
    (file,) = Path(uri).glob("*.parquet")
    pq.write_table(pa.table({"at": pa.array([when.replace(tzinfo=None)])}), file, use_deprecated_int96_timestamps=True)
    rewrite(uri, 0, "add", size=file.stat().st_size)
    for source in (DeltaChanges(uri), DeltaChanges(uri, start=0)):
        assert taken(source)[0] == [{"at": when}]


# What cannot be read --------------------------------------------------------------------------------------------------


def test_a_table_that_was_made_anew_is_an_error_that_says_how_to_go_on(uri: str) -> None:
    append(uri, 1)
    _, at = ids(DeltaChanges(uri))
    shutil.rmtree(uri)
    for each in range(4):
        append(uri, each)
    with pytest.raises(SourceError, match=r"was made anew: its id is .*, and up to version 1 another one was taken \(.*\)\. Reset the position"):
        ids(DeltaChanges(uri), at)


def test_an_older_state_that_was_put_back_is_an_error(uri: str) -> None:
    append(uri, 1)
    append(uri, 2)
    append(uri, 3)
    _, at = ids(DeltaChanges(uri))
    for version in (2, 3):
        (Path(uri) / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(SourceError, match="has versions up to 1, and it was taken up to version 3"):
        ids(DeltaChanges(uri), at)


def test_versions_whose_log_was_cleaned_are_named(uri: str) -> None:
    append(uri, 1)
    _, at = ids(DeltaChanges(uri))
    append(uri, 2)
    append(uri, 3)
    DeltaTable(uri).create_checkpoint()
    append(uri, 4)
    for version in (0, 1, 2):
        (Path(uri) / "_delta_log" / f"{version:020d}.json").unlink()
    for source in (DeltaChanges(uri), DeltaChanges(uri, changes=True)):
        with pytest.raises(SourceError, match=r"Versions 2 to 2 of the Delta table .* are gone: its log was cleaned .* declare start=3;"):
            ids(source, at)
    assert ids(DeltaChanges(uri, start=3))[0] == [3, 4]


def test_a_file_that_was_vacuumed_is_named_with_its_version(uri: str) -> None:
    _, at = ids(DeltaChanges(uri, start=0))
    append(uri, 1)
    append(uri, 2)
    DeltaTable(uri).optimize.compact()
    removed = DeltaTable(uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert len(removed) == 2
    with pytest.raises(SourceError, match=r"of version 1 of the Delta table .* is gone: the table was vacuumed .* declare start=2;"):
        ids(DeltaChanges(uri), at)


def test_no_table_and_a_damaged_log_are_errors(tmp_path: Path, uri: str) -> None:
    with pytest.raises(SourceError, match="There is no Delta table at /nowhere"):
        ids(DeltaChanges("/nowhere/table"))
    append(uri, 1)
    log = Path(uri) / "_delta_log" / f"{1:020d}.json"
    _, at = ids(DeltaChanges(uri))
    append(uri, 2)
    log.with_name(f"{2:020d}.json").write_text("{nonsense")
    with pytest.raises(SourceError, match="cannot be read"):
        ids(DeltaChanges(uri), at)


def test_deletion_vectors_and_column_mapping_are_refused(uri: str) -> None:
    append(uri, 1)
    _, at = ids(DeltaChanges(uri))
    append(uri, 2)
    log = Path(uri) / "_delta_log" / f"{2:020d}.json"
    said = [json.loads(line) for line in log.read_text().splitlines()]
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    log.write_text("\n".join(json.dumps({"add": {**each["add"], "deletionVector": vector}} if "add" in each else each) for each in said))
    with pytest.raises(SourceError, match="has deletion vectors"):
        ids(DeltaChanges(uri), at)
    log.unlink()
    first = log.with_name(f"{0:020d}.json")
    first.write_text(first.read_text().replace('"delta.enableChangeDataFeed":"true"', '"delta.columnMapping.mode":"name"'))
    with pytest.raises(SourceError, match=r"delta\.columnMapping\.mode='name'"):
        ids(DeltaChanges(uri))


def rewrite(uri: str, version: int, kind: str, **values: Any) -> None:
    """Write other values into the actions of a version, as other writers do; None removes one."""
    log = Path(uri) / "_delta_log" / f"{version:020d}.json"
    said = [json.loads(line) for line in log.read_text().splitlines()]
    for each in said:
        if kind in each:
            each[kind] = {name: value for name, value in (each[kind] | values).items() if value is not None}
    log.write_text("\n".join(map(json.dumps, said)))


def test_a_removed_partition_whose_value_is_null_may_be_left_out(tmp_path: Path) -> None:
    """Spark writes it so."""
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"id": [1], "region": pa.array([None], pa.string())}), partition_by=["region"], configuration=FEED)
    write_deltalake(uri, pa.table({"id": [2], "region": ["b"]}), mode="overwrite")
    rewrite(uri, 1, "remove", partitionValues={}, extendedFileMetadata=True)
    rows, _ = taken(DeltaChanges(uri, changes=True, start=1))
    assert [(row["id"], row["region"], row["_change_type"]) for row in rows] == [(1, None, "delete"), (2, "b", "insert")]


def test_removed_files_that_cannot_be_read_rightly_are_refused_in_a_feed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"id": [1], "region": ["a"]}), partition_by=["region"], configuration=FEED)
    write_deltalake(uri, pa.table({"id": [2], "region": ["b"]}), mode="overwrite")
    source = DeltaChanges(uri, changes=True, start=1)
    rewrite(uri, 1, "remove", partitionValues=None)
    with pytest.raises(SourceError, match=r"was removed by a writer that did not say of which partition it was \(region\).* declare start=2;"):
        ids(source)
    rewrite(uri, 1, "remove", partitionValues={"region": "a"})
    assert ids(source)[0] == [1, 2]
    rewrite(uri, 1, "remove", deletionVector={"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1})
    with pytest.raises(SourceError, match="has deletion vectors"):
        ids(source)


def test_a_shallow_clone_is_refused(uri: str) -> None:
    append(uri, 1)
    rewrite(uri, 1, "add", path="file:///elsewhere/x.parquet")
    with pytest.raises(SourceError, match=r"lies elsewhere \(a shallow clone\)"):
        ids(DeltaChanges(uri, start=1))


@pytest.mark.parametrize("start", [None, 0])
def test_a_file_that_is_taken_may_be_gone_when_the_others_of_its_version_are_taken(tmp_path: Path, start: int | None) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"id": [1, 2], "part": ["a", "b"]}), partition_by=["part"])
    source = DeltaChanges(uri, start=start)
    found, at = ids(source, limit=1)
    for file in Path(uri, f"part={'ab'[found[0] - 1]}").iterdir():
        file.unlink()

    assert sorted(found + ids(source, at)[0]) == [1, 2]


def in_two_partitions(uri: str, versions: int) -> Path:
    """Write versions with two rows each, one in each partition; return the last file of version 2."""
    for number in range(versions):
        rows = pa.table({"id": [2 * number, 2 * number + 1], "part": ["a", "b"]})
        write_deltalake(uri, rows, partition_by=["part"], mode="append", configuration=FEED)
    entries = map(json.loads, Path(uri, "_delta_log", f"{2:020d}.json").read_text().splitlines())
    return Path(uri, unquote([entry["add"]["path"] for entry in entries if "add" in entry][-1]))


@pytest.mark.parametrize("changes", [False, True])
def test_what_is_before_a_file_that_is_gone_is_taken(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changes: bool,  # noqa: FBT001  (a parameter)
) -> None:
    uri = str(tmp_path / "t")
    lost = in_two_partitions(uri, 4)
    good = lost.read_bytes()
    lost.unlink()
    source = DeltaChanges(uri, start=0, changes=changes)

    found, at = ids(source)

    assert sorted(found) == [0, 1, 2, 3]
    [line] = caplog.messages
    assert re.search("What is before it is taken, and the next run begins with it: .*of version 2", line)
    assert "Nothing was sent" not in line
    with pytest.raises(SourceError, match="of version 2"):
        ids(source, at)
    lost.write_bytes(good)
    assert sorted(found + ids(source, at)[0]) == [*range(8)]


@pytest.mark.parametrize("start", [None, 0])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("damage", ["no Parquet", "no bytes", "a page", "the footer"])
def test_a_damaged_file_is_one_message_and_stops_no_other(
    tmp_path: Path,
    damage: str,
    changes: bool,  # noqa: FBT001  (a parameter)
    start: int | None,
) -> None:
    uri = str(tmp_path / "t")
    lost = in_two_partitions(uri, 4)
    good = lost.read_bytes()
    broken = {"no Parquet": b"PAR1" + b"x" * 100, "no bytes": b"", "a page": good[:4] + b"\xff" * 40 + good[44:], "the footer": good[:-12]}[damage]
    lost.write_bytes(broken)

    rows, at = taken(DeltaChanges(uri, start=start, changes=changes))

    [wrong] = [row for row in rows if row.get(ERROR)]
    missing = int(pq.read_table(pa.BufferReader(good))["id"][0].as_py())
    assert {row["id"] for row in rows if row is not wrong} == {*range(8)} - {missing}
    assert wrong["body"] == broken
    assert re.search(f"^{re.escape(str(lost))} cannot be read: .*When it is mended, a backfill of the version that added it", wrong[ERROR])
    assert at["version"] == 4
    lost.write_bytes(good)
    again = [*DeltaChanges(uri, changes=changes).between("2", "3").batches()]
    assert missing in {number for batch in again for number in batch["id"].to_pylist()}


def test_rows_before_a_damage_are_taken(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"id": [0]}))
    [path] = DeltaTable(uri).file_uris()
    file = Path(path.removeprefix("file://"))
    pq.write_table(pa.table({"id": [*range(30_000)]}), file, row_group_size=10_000)
    whole = bytearray(file.read_bytes())
    place = pq.ParquetFile(file).metadata.row_group(2).column(0).dictionary_page_offset or 0
    whole[place : place + 40] = b"\xff" * 40
    file.write_bytes(whole)

    rows, _ = taken(DeltaChanges(uri))

    assert [row["id"] for row in rows[:-1]] == [*range(20_000)]
    assert "20,000 rows before that were taken" in rows[-1][ERROR]


def test_a_file_that_could_not_be_read_for_a_moment_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t")
    in_two_partitions(uri, 3)
    decoded, failures = delta_changes._decoded, iter([OSError("a server away")])

    def once(content: object) -> object:
        for error in failures:
            raise error
        return decoded(content)

    monkeypatch.setattr(delta_changes, "_decoded", once)

    with pytest.raises(SourceError, match="could not be read before, and can now"):
        taken(DeltaChanges(uri))


def test_columns_that_an_overwrite_removes_are_in_the_changes(uri: str) -> None:
    append(uri, 1)
    write_deltalake(uri, pa.table({"id": [2]}), mode="overwrite", schema_mode="overwrite")
    rows, _ = taken(DeltaChanges(uri, changes=True, start=1))
    assert [(row["_change_type"], row["id"], row.get("region")) for row in rows] == [("insert", 1, "r1"), ("delete", 1, "r1"), ("insert", 2, None)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["1", "x"], [2]),
        ([2**40, 1], pa.array([2], pa.int32())),
        ([1.5, float("inf")], [2]),
        ([2**53 + 1], [2.5]),
        ([{"a": 1, "b": 2}], [{"a": 1, "c": "x"}]),
        ([[{"a": {"b": 2}}]], [[{"a": {"c": 2}}]]),
    ],
)
def test_values_that_a_later_type_of_their_column_does_not_have_are_kept(uri: str, old: list[Any], new: Any) -> None:
    write_deltalake(uri, pa.table({"v": old}), mode="overwrite", schema_mode="overwrite")
    write_deltalake(uri, pa.table({"v": new}), mode="overwrite", schema_mode="overwrite")

    rows, _ = taken(DeltaChanges(uri, changes=True, start=1))

    for kind in ("insert", "delete"):
        assert [row["v"] for row in rows if row["_change_type"] == kind][: len(old)] == old


@pytest.mark.parametrize("start", [None, 0])
def test_a_version_without_entries_is_not_passed_over(uri: str, start: int | None) -> None:
    append(uri, 1)
    source = DeltaChanges(uri, start=start)
    log = Path(uri, "_delta_log", f"{1:020d}.json")
    whole = log.read_bytes()
    log.write_bytes(b"")
    at: Mapping[str, JsonValue] = {}

    if start is None:
        with pytest.raises(SourceError, match=r"Version 1 of the Delta table .* has no entries"):
            taken(source)
    else:
        rows, at = taken(source)
        assert rows == []
        with pytest.raises(SourceError, match=r"Version 1 of the Delta table .* has no entries"):
            taken(source, at)

    log.write_bytes(whole)
    assert ids(source, at)[0] == [1]


def test_a_column_with_a_name_of_ours_is_named(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({ERROR: ["x"]}))
    with pytest.raises(SourceError, match=r"has a column 'poison\.error', a name of this package's own\. Rename it"):
        taken(DeltaChanges(str(tmp_path / "t")))


def test_a_version_that_was_begun_without_changes_is_not_ended_with_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"id": [1, 2], "region": ["a", "b"]}), partition_by=["region"], configuration=FEED)
    _, at = ids(DeltaChanges(uri, start=0), limit=1)
    with pytest.raises(SourceError, match="has taken 1 files of version 0 without it"):
        ids(DeltaChanges(uri, changes=True), at)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"uri": "orders"}, "uri"),
        ({"start": "first"}, "start"),
        ({"start": -1}, "start"),
        ({"start": True}, "start"),
        ({"changes": True, "skip_change_commits": True}, "skip_change_commits"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_written(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingError, match=f"{setting}="):
        DeltaChanges(**{"uri": "/lake/orders", **settings})


def test_a_start_beyond_the_table_is_an_error(uri: str) -> None:
    with pytest.raises(SourceError, match=r"start=5: the Delta table .* has versions up to 0"):
        ids(DeltaChanges(uri, start=5))


def test_its_text_shows_no_credentials() -> None:
    assert "secret" not in repr(DeltaChanges("s3://bucket/t", storage_options={"aws_secret_access_key": "secret"}))


# Features of tables -----------------------------------------------------------------------------------------------------


WIDENED: dict[str, tuple[pa.DataType, Any, pa.DataType, Any, Any]] = {
    "long": (pa.int32(), 1, pa.int64(), 1 << 40, 1),
    "double": (pa.int32(), 1, pa.float64(), 2.5, 1.0),
    "decimal(20,5)": (pa.decimal128(10, 2), Decimal("1.25"), pa.decimal128(20, 5), Decimal("2.12345"), Decimal("1.25000")),
    "timestamp_ntz": (pa.date32(), date(2026, 1, 1), pa.timestamp("us"), datetime(2026, 1, 1, 1), datetime(2026, 1, 1)),  # noqa: DTZ001
}


def widened(uri: str, name: str) -> None:
    """Make a table whose column had another type when its first row was written."""
    old, first, new, second, _ = WIDENED[name]
    write_deltalake(uri, pa.table({"v": pa.array([first], old)}))
    pq.write_table(pa.table({"v": pa.array([second], new)}), f"{uri}/second.parquet")
    featured(uri, {"typeWidening", *(["timestampNtz"] if name == "timestamp_ntz" else [])}, name, "second.parquet")


def featured(uri: str, features: set[str], kind: str, *files: str) -> None:
    """Add a version with features, a type of the first column, and files."""
    log, number = Path(uri, "_delta_log"), DeltaTable(uri).version()
    metadata = next(entry["metaData"] for line in (log / f"{0:020d}.json").read_text().splitlines() if "metaData" in (entry := json.loads(line)))
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["type"] = kind
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": sorted(features), "writerFeatures": sorted(features)}
    described = {"partitionValues": {}, "modificationTime": 1, "dataChange": True}
    added = [{"add": {"path": file, "size": Path(uri, file).stat().st_size, **described}} for file in files]
    entries = [{"commitInfo": {"timestamp": 1}}, {"protocol": protocol}, {"metaData": {**metadata, "schemaString": json.dumps(schema)}}, *added]
    (log / f"{number + 1:020d}.json").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.parametrize("name", WIDENED)
@pytest.mark.parametrize("start", [None, 0])
def test_a_column_of_a_wider_type_has_its_old_values(tmp_path: Path, name: str, start: int | None) -> None:
    uri = str(tmp_path / "lake")
    widened(uri, name)
    *_, second, first = WIDENED[name]

    rows, at = taken(DeltaChanges(uri, start=start))

    assert sorted((row["v"] for row in rows), key=str) == sorted([first, second], key=str)
    assert taken(DeltaChanges(uri, start=start), at)[0] == []


def test_a_feature_that_no_reader_has_is_named(uri: str) -> None:
    append(uri, 1)
    featured(uri, {"variantType"}, "long")
    with pytest.raises(SourceError, match=r"has the feature 'variantType'.*CREATE TABLE … AS SELECT …\. Nothing was sent"):
        taken(DeltaChanges(uri))


def test_instants_that_delta_rs_has_written_as_partitions_have_their_zone(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    write_deltalake(uri, pa.table({"id": [1], "at": pa.array([123456], pa.timestamp("us", "UTC"))}), partition_by=["at"])

    versions = Versions(uri)

    found = [file.partition["at"] for version in (versions.read(0), versions.snapshot(0)) for file in version.added]
    assert found == ["1970-01-01 00:00:00.123456Z", "1970-01-01 00:00:00.123456Z"], "Spark reads it so in each session"


@pytest.mark.parametrize("start", [None, 0])
def test_bytes_that_name_partitions_are_those_that_were_written(tmp_path: Path, start: int | None) -> None:
    uri, values = str(tmp_path / "table"), [b"a", b"\x00\xff", None, b"\\u00"]
    write_deltalake(uri, pa.table({"id": [1, 2, 3, 4], "k": pa.array(values, pa.binary())}), partition_by=["k"])

    take = DeltaChanges(uri, start=start).plan(Position({}), limit=None)

    assert take is not None
    assert pa.Table.from_batches(take.batches()).sort_by("id")["k"].to_pylist() == values
