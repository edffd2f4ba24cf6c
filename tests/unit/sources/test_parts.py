"""Large text files are read in parts where that gives the same records, with the same numbers of lines, as the whole file."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.sources import frames, text_lines
from airflow_poison.sources.readers import Layout, records
from airflow_poison.sources.text_lines import Part
from airflow_poison.spark.in_place import _columns_of_records
from airflow_poison.values.errors import BodyError

if TYPE_CHECKING:
    from pathlib import Path

JSON = [b'{"a":1}', b'{"a":"\xc3\xa9"}', b"bad", b"", b"  ", b"{", b"\xff", b"\xef\xbb\xbf1", b"\xff\xfe{}", b'"a,b"', b"[1]" * 30]
CSV = [b"1,x", b"2", b"3,y,z", b"", b"\xff,1", b"\xef\xbb\xbf4,5", b",", b"6,", b" ", b"7," + b"w" * 90]
LAYOUTS = [Layout("json"), Layout("csv"), Layout("csv", header=("a", "b")), Layout("csv", header=3), Layout("csv", delimiter=";")]


@pytest.fixture(autouse=True, params=[7, 64, 1 << 20])
def _small_parts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(text_lines, "_BLOCK", request.param)
    monkeypatch.setattr(text_lines, "_TEXT", request.param)


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def both(path: Path, layout: Layout) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Return in how many parts a file is read, their records, and the records of the whole file; malformed ones last."""
    units, found = frames._units("shown", str(path), layout, 50, counted=True), []
    for name, _, how, part in units:
        with path.open("rb") as raw:
            content: Any = path if part is None else Part(raw, *part)
            found += rows_of(records(name, how, content))

    def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: str(row.get("message_id")))  # rows of CSV have no id, and stay in their order

    return len(units), sorted_rows(found), sorted_rows(rows_of(records("shown", layout, path)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_parts_have_the_records_of_the_whole_file(tmp_path: Path, layout: Layout, seed: int) -> None:
    chance, path = random.Random(seed), tmp_path / "file"
    end = chance.choice([b"\n", b"\r\n"])
    lines = chance.choices(JSON if layout.format == "json" else CSV, k=80)
    path.write_bytes(end.join([b"a,b", b"c,d", b"e,f", *lines]) + chance.choice([b"", end]))

    number, found, whole = both(path, layout)

    assert number > 5
    assert found == whole


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        (b'a,b\n1,"x\ny"\n' * 20, Layout("csv")),  # a cell may go on behind a line end
        (b"a,b\r1,2\n" * 20, Layout("csv")),
        (b"a,a\n" * 40, Layout("csv")),  # no columns
        (b"a,b\n" * 40, Layout("csv", header=30)),  # in a later part
        (b'{"a":\r1\n' * 20, Layout("json")),
        (b"\xef\xbb\xbf" + b"{}\n" * 40, Layout("json")),
        ("{}\n".encode("utf-16") * 40, Layout("json")),
        (b"{}\n" * 40, Layout("json", encoding="latin-1")),
        (b"1" * 500, Layout("json")),
    ],
)
def test_a_file_whose_line_ends_may_not_end_records_is_read_whole(tmp_path: Path, content: bytes, layout: Layout) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    number, found, whole = both(path, layout)
    assert number == 1
    assert found == whole


def test_compressed_files_and_objects_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(500)))
    for counted in (True, False):
        assert len(frames._units("shown", str(path), Layout("json"), 50, counted=counted)) == 1
        assert len(frames._units("shown", "s3a://bucket/file.json", Layout("json"), 50, counted=counted)) == 1
        assert len(frames._units("shown", str(tmp_path / "gone"), Layout("json"), 50, counted=counted)) == 1


FIT = [
    b'{"a":\r1}',
    b'{"a": 1}\r{"a": 2}',
    b"{}\r\r{}",
    b"\r",
    b"",
    b" \t",
    b'{"a": 3, "b": "\\ud800"}',
    b'{"b": 1e999}',
    b'\xef\xbb\xbf{"a": 4}',
    b'{"b": 1, "b": 2}',
]
UNFIT = [b'{"a": 1, "a": 2}', b"{}\rbad\r", b'{"b": [{}, "\xff"]}', b'{"b":' + b"[" * 90, b"null", b"1", b'{"a": 1.5}', b'{"a": 1} x']
ROWS = [b'{"a": %d, "b": "text"}' % number for number in range(40)]


@pytest.mark.parametrize("unfit", [None, *UNFIT])
@pytest.mark.parametrize("seed", range(10))
def test_rows_that_are_made_at_once_are_those_that_are_made_of_records(
    tmp_path: Path, seed: int, unfit: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in uncounted parts, whose rows are made of whole texts of lines, against its records, each looked at alone."""
    monkeypatch.setattr(text_lines, "MAX_BODY_BYTES", 80)
    chance, path, layout = random.Random(seed), tmp_path / "file", Layout("json")
    end = chance.choice([b"\n", b"\r\n"])
    lines = chance.choices([*FIT, *ROWS], k=120)
    if unfit is not None:
        lines[chance.randrange(len(lines))] = unfit
    path.write_bytes(end.join(lines) + chance.choice([b"", end, b"\r"]))
    order: Any = SimpleNamespace(transformation=SimpleNamespace(schema="a int"), decode=None)
    records_kept, rows_alone = _columns_of_records(order), _columns_of_records(order, rows_alone=True)
    assert records_kept is not None
    assert rows_alone is not None
    units = frames._units("shown", str(path), layout, 200, counted=False)

    def at_once() -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        for name, _, how, part in units:
            with path.open("rb") as raw:
                content: Any = path if part is None else Part(raw, *part)
                found += rows_of(frames._made(records(name, how, content, rows_alone.of_bodies), rows_alone, at_once=True))
        return found

    slow = rows_of(frames._made(records("shown", layout, path), records_kept, at_once=False))
    assert len(units) > 5
    assert any(row["poison.unfit"] for row in slow) is (unfit is not None)
    if unfit is None:
        assert Counter(row["a"] for row in at_once()) == Counter(row["a"] for row in slow)
    else:
        with pytest.raises(BodyError, match=r"^a record is no row$"):
            at_once()


def test_rows_of_csv_get_the_types_of_the_schema_also_where_their_names_are_its_own(tmp_path: Path) -> None:
    path, order = tmp_path / "file", SimpleNamespace(transformation=SimpleNamespace(schema="a string, b string"), decode=None)
    path.write_bytes(b"a,b\n1,x\n")
    then = _columns_of_records(order, rows_alone=True)  # type: ignore[arg-type]
    assert then is not None
    calls = list[int]()

    def made(batches: Any) -> Any:
        calls.append(1)
        return then.make(batches)

    found = rows_of(frames._made(records("shown", Layout("csv"), path), then._replace(make=made), at_once=False))
    assert found == [{"a": "1", "b": "x"}]
    assert calls == [1], "the columns of a file are not taken for the rows that are made of them"
    numbers = _columns_of_records(SimpleNamespace(transformation=SimpleNamespace(schema="a int, b string"), decode=None), rows_alone=True)  # type: ignore[arg-type]
    assert numbers is not None
    with pytest.raises(BodyError, match=r"^a record is no row$"):
        rows_of(frames._made(records("shown", Layout("csv"), path), numbers, at_once=False))
