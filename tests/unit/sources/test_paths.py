"""Files at a path that is sent: which of them are read here, and that what is in them arrives, byte for byte."""

from __future__ import annotations

import gzip
import logging
import os
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_poison.passes.send import send
from airflow_poison.sources.paths import PathFiles
from airflow_poison.values import json_text
from airflow_poison.values.errors import InputError
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.schema import SubQueue
from tests.given.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.passes.send import SendResult
    from tests.given.passes import Queue

NOW = datetime(2026, 11, 25, tzinfo=UTC)
LINES = b'{"id": 1.10, "name": "caf\xc3\xa9"}\r\n\n{"id": 12345678901234567.89}\n{"id": \n'
_keys = count()


def at(path: object, form: str = "json", **options: object) -> PathFiles | None:
    return PathFiles.at(str(path), form, options, {})


def sent(queue: Queue, files: PathFiles | None, **mapping: Any) -> SendResult:
    assert files is not None
    return send(queue.table, files.messages(ColumnMapping(**mapping), NOW), key=f"send-{next(_keys)}", clock=queue.clock)


def rows(queue: Queue, place: SubQueue = SubQueue.MAIN) -> list[dict[str, Any]]:
    return list(queue.rows(place).values())


def bodies(queue: Queue, place: SubQueue = SubQueue.MAIN) -> list[bytes]:
    return [row["body"] for row in rows(queue, place)]


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# What is in the files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_lines_of_json_arrive_byte_for_byte_and_one_that_is_none_is_malformed(queue: Queue, tmp_path: Path, name: str) -> None:
    path = put(tmp_path / name, gzip.compress(LINES) if name.endswith("gz") else LINES)

    result = sent(queue, at(path))

    assert (result.sent, result.malformed) == (3, 1)
    assert bodies(queue) == ['{"id": 1.10, "name": "café"}'.encode(), b'{"id": 12345678901234567.89}']
    [wrong] = rows(queue, SubQueue.POISON)
    assert wrong["body"] == b'{"id": '
    assert wrong["reason"].startswith(f"MalformedError: line 4 of {path}: it is no JSON")


def test_fields_of_lines_become_parts_and_a_body_of_some_keeps_their_digits(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", '{"a": 1.10, "b": 12345678901234567.89, "c": "UA", "p": 7}\n{"a": 1e400}\n')

    sent(queue, at(path), body=("b", "a"), group="c", priority="p")

    first, second = rows(queue)
    assert (first["body"], first["group_id"], first["priority"]) == (b'{"b": 12345678901234567.89, "a": 1.10}', "UA", 7)
    assert (second["body"], second["group_id"], second["priority"]) == (b'{"b": null, "a": 1e400}', None, 5)


def test_a_malformed_line_keeps_the_id_that_says_where_it_stood(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", '{"id": "one"}\n{\n{"id": "two"}\n')

    sent(queue, at(path), message_id="id")

    assert [row["message_id"] for row in rows(queue)] == ["one", "two"]
    assert [row["message_id"] for row in rows(queue, SubQueue.POISON)] == [f"{path}:2"]


def test_a_field_of_text_is_a_body_and_a_record_without_it_is_malformed(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", '{"text": "one"}\n{"other": 1}\n{"text": 2}\n')

    assert sent(queue, at(path), body="text").malformed == 2
    assert bodies(queue) == [b"one"]
    assert bodies(queue, SubQueue.POISON) == [b'{"other": 1}', b'{"text": 2}']


def test_a_field_that_no_record_has_is_refused(queue: Queue, tmp_path: Path) -> None:
    files = at(put(tmp_path / "x.json", '{"carrier": "UA"}\n{"carrier": "AA"}\n'))

    with pytest.raises(InputError, match=r"group='carier': there is no such field in 2 records.*Nothing was sent"):
        sent(queue, files, group="carier")
    assert queue.rows() == {}


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_name_that_is_no_utf_8_is_shown_as_a_uri_and_a_path_is_utf_8(queue: Queue, tmp_path: Path, form: str) -> None:
    put(tmp_path / "in" / "x", '{"a":"1"}\n{"a":"1"}\n' if form == "json" else "a\n1\n1\n")
    (tmp_path / "in").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))

    assert sent(queue, at(tmp_path / "*" / "x", form, **({} if form == "json" else {"header": True}))).sent == 2
    assert bodies(queue) == [b'{"a":"1"}'] * 2
    if form == "json":
        assert [row["message_id"] for row in rows(queue)] == [f"file://{tmp_path}/caf%E9/x:{line}" for line in (1, 2)]
    with pytest.raises(InputError, match=r"path=.*udce9.*expected text in UTF-8"):
        at(tmp_path / "caf\udce9", form)


@pytest.mark.parametrize(("mapping", "expected"), [({}, b"caf\xe9"), ({"body": "value"}, b"caf\xe9"), ({"body": "value", "group": "value"}, None)])
def test_lines_of_text_are_bytes_unless_they_are_mapped_as_text(
    queue: Queue, tmp_path: Path, mapping: dict[str, str], expected: bytes | None
) -> None:
    path = put(tmp_path / "x.txt", b"caf\xe9\r\nplain\n")

    sent(queue, at(path, "text"), **mapping)

    assert bodies(queue) == ([expected] if expected else []) + [b"plain"]
    assert bodies(queue, SubQueue.POISON) == ([] if expected else [b"caf\xe9"])


def test_cells_of_csv_are_text_and_a_row_of_another_width_is_malformed(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "x.csv", 'code,note\n007,NA\n1,"a;b"\n1,2,3\n')

    assert sent(queue, at(path, "csv", header="true")).malformed == 1
    assert [json_text.values(body) for body in bodies(queue)] == [{"code": "007", "note": "NA"}, {"code": "1", "note": "a;b"}]
    assert bodies(queue, SubQueue.POISON) == [b"1,2,3"]


def test_csv_without_a_header_has_columns_with_numbers_and_its_first_row_is_a_message(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "x.csv", "caf\xe9;1\nx;2\n".encode("latin-1"))

    sent(queue, at(path, "csv", sep=";", encoding="ISO-8859-1"), group="_c1")

    assert [json_text.values(body) for body in bodies(queue)] == [{"_c0": "café", "_c1": "1"}, {"_c0": "x", "_c1": "2"}]
    assert [row["group_id"] for row in rows(queue)] == ["1", "2"]


def test_rows_of_parquet_keep_their_instants_and_each_file_its_columns(queue: Queue, tmp_path: Path) -> None:
    instant = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    pq.write_table(pa.table({"at": [instant]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"at": [instant], "more": [1]}), tmp_path / "b.parquet")

    sent(queue, at(tmp_path, "parquet"))

    text = "2026-01-02T03:04:05.678901Z"
    assert [json_text.values(body) for body in bodies(queue)] == [{"at": text}, {"at": text, "more": 1}]


def test_instants_as_spark_wrote_them_for_long_are_in_utc(queue: Queue, tmp_path: Path) -> None:
    """INT96: Arrow reads it as nanoseconds without a zone, which end in 2262."""
    at_end = pa.array([datetime(9998, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    table = pa.table({"at": at_end, "in": pa.array([[{"x": at_end[0].as_py()}]], pa.list_(pa.struct([("x", pa.timestamp("us", "UTC"))])))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)

    sent(queue, at(tmp_path, "parquet"))

    assert [json_text.values(body) for body in bodies(queue)] == [{"at": "9998-12-31T00:00:00.000Z", "in": [{"x": "9998-12-31T00:00:00.000Z"}]}]


TEXTS = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            JSON.map(lambda value: json_text.written(value).encode()), st.binary(min_size=1, max_size=20).map(lambda line: line.replace(b"\r", b""))
        ),
        max_size=8,
    )
)
def test_every_line_is_a_message_or_malformed_with_its_bytes(queue: Queue, tmp_path: Path, lines: list[bytes]) -> None:
    whole = b"\n".join(lines)
    path = put(tmp_path / "lines.json", b"{}\n" + whole)
    expected = [line.rstrip(b"\r") for line in (b"{}\n" + whole).split(b"\n") if line.strip(b" \t\r\n")]

    records = [row for batch in at(path).messages(ColumnMapping(), NOW) for row in batch.to_pylist()]  # type: ignore[union-attr]  # it is there

    assert [row["body"] for row in records] == expected
    assert [row["poison.error"] is None for row in records] == [json_text.syntax_error(line) is None for line in expected]


# Which files ----------------------------------------------------------------------------------------------------------


def names(files: PathFiles | None, folder: Path) -> list[str] | None:
    return None if files is None else [name.removeprefix(f"{folder}/") for name in files.names]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("in/a.json", ["in/a.json"]),
        ("in", ["in/a.json", "in/b.json"]),
        ("in/", ["in/a.json", "in/b.json"]),
        ("in/*.json", ["in/a.json", "in/b.json"]),
        ("i?/[b].json", ["in/b.json"]),
        ("*", ["in/a.json", "in/b.json", "top.json"]),
        ("odd[1].json", ["odd[1].json"]),
        ("in/_hidden.json", ["in/_hidden.json"]),  # it is named
        ("nowhere", None),
        ("none/*.json", None),
        ("by_day", None),  # names of folders are fields
        ("in/{a,b}.json", None),  # Spark has its own patterns
    ],
)
def test_a_path_is_a_file_a_folder_without_what_is_hidden_or_a_pattern(tmp_path: Path, path: str, found: list[str] | None) -> None:
    for name in ("in/a.json", "in/b.json", "in/_SUCCESS", "in/.b.json.crc", "in/_hidden.json", "odd/[1]", "top.json", "by_day/day=1/c.json"):
        put(tmp_path / name, "{}\n")
    put(tmp_path / "odd[1].json", "{}\n")
    if path == "*":
        (tmp_path / "by_day/day=1/c.json").unlink()
        (tmp_path / "by_day/day=1").rmdir()
        (tmp_path / "odd[1].json").unlink()
        (tmp_path / "odd/[1]").unlink()

    assert names(at(f"{tmp_path}/{path}"), tmp_path) == found
    assert names(at(f"file://{tmp_path}/{path}"), tmp_path) == found


def test_a_folder_within_is_passed_over_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path / "a.json", "{}\n")
    put(tmp_path / "archive/b.json", "{}\n")

    with caplog.at_level(logging.WARNING):
        assert names(at(tmp_path), tmp_path) == ["a.json"]

    assert f"Not sent: 1 folder within the path, {tmp_path}/archive first." in caplog.text


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("orc", {}),
        ("xml", {"rowTag": "row"}),
        ("json", {"multiLine": "true"}),
        ("csv", {"escape": "\\"}),
        ("csv", {"header": "yes"}),
        ("csv", {"sep": "||"}),
        ("csv", {"encoding": "UTF-16LE-something"}),
        ("csv", {"sep": ";", "delimiter": ","}),
        ("parquet", {"mergeSchema": "true"}),
    ],
)
def test_other_formats_and_options_are_sparks(tmp_path: Path, form: str, options: dict[str, str]) -> None:
    put(tmp_path / "x", "{}\n")

    assert PathFiles.at(f"{tmp_path}/x", form, options, {}) is None


@pytest.mark.parametrize("path", ["x.json", "s3a://bucket/x.json", "hdfs://host/x.json", "dbfs:/x.json"])
def test_other_places_are_sparks(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(put(tmp_path / "x.json", "{}\n").parent)

    assert at(path) is None


def test_a_file_that_is_gone_is_named(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", "{}\n")
    files = at(path)
    path.unlink()

    with pytest.raises(InputError, match=r"x\.json cannot be read: .*No such file.*Nothing was sent"):
        sent(queue, files)


def test_an_empty_file_sends_nothing(queue: Queue, tmp_path: Path) -> None:
    assert sent(queue, at(put(tmp_path / "x.json", "")), group="carrier").sent == 0


def test_a_repeated_send_says_what_the_first_did(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "x.json", LINES)

    results = [send(queue.table, at(path).messages(ColumnMapping(), NOW), key="once", clock=queue.clock) for _ in range(2)]  # type: ignore[union-attr]

    assert [(each.sent, each.malformed, each.repeated) for each in results] == [(3, 1, False), (3, 1, True)]
