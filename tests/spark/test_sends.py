"""What Spark reads is sent as it is: lines byte for byte, rows with the digits and instants of their types, and what it cannot read to poison."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.passes.send import send
from airflow_poison.spark.send_stage import FrameSource, SendStage
from airflow_poison.values import json_text
from airflow_poison.values.errors import InputError, PoisonError
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.schema import SubQueue
from tests.given.passes import Queue, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.passes.send import SendResult

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
_keys = count()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    from airflow_poison.store.delta_store import DeltaStore

    return a_queue(DeltaStore(str(tmp_path / "store")), tmp_path)


@pytest.fixture
def sent(queue: Queue, spark: SparkSession) -> Callable[..., SendResult]:
    """Send what a source has."""

    def run(source: FrameSource, **mapping: Any) -> SendResult:
        key = f"send-{next(_keys)}"
        stage = SendStage.of_queue(queue.table.folder, key)
        batches = stage.batches(lambda: source.open(spark), ColumnMapping(**mapping), queue.clock.now())
        result = send(queue.table, batches, key=key, clock=queue.clock)
        assert not stage.folder.exists()
        return result

    return run


def put(path: Path, content: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def bodies(queue: Queue, place: SubQueue = SubQueue.MAIN) -> list[bytes]:
    return [cast("bytes", row["body"]) for row in queue.rows(place).values()]


def reasons(queue: Queue) -> list[str]:
    return [str(row["reason"]) for row in queue.rows(SubQueue.POISON).values()]


# Lines ----------------------------------------------------------------------------------------------------------------


def test_lines_of_json_are_sent_byte_for_byte_and_one_that_is_none_is_malformed(
    sent: Callable[..., SendResult], queue: Queue, tmp_path: Path
) -> None:
    put(tmp_path / "in/a.json", b'{"b": 12345678901234567.89, "a": 1.10}\r\n\n{"b": "n/a"}\n{"b": \n')
    put(tmp_path / "in/b.json.gz", gzip.compress(b'{"b": "caf\xc3\xa9", "c": "UA"}\n{"b": "caf\xe9"}'))
    put(tmp_path / "in/_SUCCESS", "")
    put(tmp_path / "in/.hidden.json", "{}")

    result = sent(FrameSource(path=str(tmp_path / "in"), format="json"), group="c")

    assert (result.sent, result.malformed) == (5, 2)
    assert sorted(bodies(queue)) == sorted([b'{"b": 12345678901234567.89, "a": 1.10}', b'{"b": "n/a"}', '{"b": "café", "c": "UA"}'.encode()])
    assert sorted(bodies(queue, SubQueue.POISON)) == sorted([b'{"b": ', b'{"b": "caf\xe9"}'])
    assert all(reason.startswith("MalformedError: it is no JSON: ") for reason in reasons(queue))
    assert sorted(str(row["group_id"] or "") for row in queue.rows(SubQueue.MAIN).values()) == ["", "", "UA"]


def test_names_of_folders_become_fields_and_the_text_of_the_others_stays(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "in/day=2026-11-25/n=07/a.json", '{"x": 1.10}\n{"x":2,"n":0,"day":null}\n[1]\n')
    put(tmp_path / "in/day=2026-11-25/n=__HIVE_DEFAULT_PARTITION__/b.json", '{"n":3}\n')

    result = sent(FrameSource(path=str(tmp_path / "in"), format="json"), group="day")

    assert (result.sent, result.malformed) == (4, 1)
    expected = [b'{"n":3,"day":"2026-11-25"}', b'{"x": 1.10, "day": "2026-11-25", "n": "07"}', b'{"x":2,"n":0,"day":null}']
    assert sorted(bodies(queue)) == expected, "a field of its own stays"
    assert bodies(queue, SubQueue.POISON) == [b"[1]"]


@pytest.mark.parametrize("form", ["parquet", "csv", "orc"])
def test_names_of_folders_become_columns_of_text(
    sent: Callable[..., SendResult], queue: Queue, tmp_path: Path, spark: SparkSession, form: str
) -> None:
    rows = spark.createDataFrame([(1, "01", "1.50"), (2, "2", "1e5"), (3, None, "007")], "id int, h string, x string").coalesce(1)
    rows.write.partitionBy("h", "x").option("header", "true").format(form).save(str(tmp_path / "x=1" / "in"))

    sent(FrameSource(path=str(tmp_path / "x=1" / "in"), format=form, options={"header": "true"} if form == "csv" else {}))

    found = sorted((json.loads(body) for body in bodies(queue)), key=lambda body: int(body["id"]))
    assert [(body.get("h"), body["x"]) for body in found] == [("01", "1.50"), ("2", "1e5"), (None, "007")]


def test_a_field_that_no_line_has_is_refused(sent: Callable[..., SendResult], tmp_path: Path) -> None:
    path = put(tmp_path / "a.json", '{"carrier": "UA"}\n')

    with pytest.raises(InputError, match=r"group='carier': there is no such field in 1 record"):
        sent(FrameSource(path=path, format="json"), group="carier")


@pytest.mark.parametrize(
    ("mapping", "good"),
    [({}, [b"caf\xe9", b"", b"x"]), ({"body": "value"}, [b"caf\xe9", b"", b"x"]), ({"body": ("value",)}, [b'{"value": ""}', b'{"value": "x"}'])],
)
def test_lines_of_text_are_sent_as_bytes(
    sent: Callable[..., SendResult], queue: Queue, tmp_path: Path, mapping: dict[str, Any], good: list[bytes]
) -> None:
    path = put(tmp_path / "a.txt", b"caf\xe9\r\n\nx")

    sent(FrameSource(path=path, format="text"), **mapping)

    assert (bodies(queue), bodies(queue, SubQueue.POISON)) == (good, [b"caf\xe9"] * (len(good) == 2))


# Spark's own readers --------------------------------------------------------------------------------------------------


def test_rows_of_csv_that_have_too_few_or_too_many_cells_are_malformed(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "code|note\n007|NA\n1\n1|2|3\n8|\n")

    result = sent(FrameSource(path=path, format="csv", options={"header": "true", "sep": "|"}), body=("code",))

    assert (result.sent, result.malformed) == (4, 2)
    assert [json_text.values(body) for body in bodies(queue)] == [{"code": "007"}, {"code": "8"}]
    assert bodies(queue, SubQueue.POISON) == [b"1", b"1|2|3"]
    assert "'_corrupt_record'" in reasons(queue)[0]


@pytest.mark.parametrize("header", ["a,a\n1,2\n", ",a\n1,2\n"])
def test_columns_of_csv_that_spark_names_are_read(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path, header: str) -> None:
    sent(FrameSource(path=put(tmp_path / "a.csv", header), format="csv", options={"header": "true", "escape": "\\"}))

    assert [list(json_text.values(body).values()) for body in bodies(queue)] == [["1", "2"]]


def test_files_of_csv_with_other_headers_are_refused(sent: Callable[..., SendResult], tmp_path: Path) -> None:
    """By itself Spark puts the cells of the one under the names of the other."""
    put(tmp_path / "in/a.csv", "a,b\n1,2\n")
    put(tmp_path / "in/b.csv", "b,a\n1,2\n")

    with pytest.raises(InputError, match=r"\.csv: its header names other columns.*enforceSchema.*Nothing was sent"):
        sent(FrameSource(path=str(tmp_path / "in"), format="csv", options={"header": "true", "escape": "\\"}))


def test_documents_of_several_lines_keep_digits_and_a_broken_one_is_malformed(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "in/a.json", '{"x": 123456789012345678.25,\n "y": 1}')
    put(tmp_path / "in/b.json", '{"x": \n')

    result = sent(FrameSource(path=str(tmp_path / "in"), format="json", options={"multiLine": "true"}))

    assert (result.sent, result.malformed) == (2, 1)
    assert [json_text.values(body) for body in bodies(queue)] == [{"x": Decimal("123456789012345678.25"), "y": 1}]
    assert bodies(queue, SubQueue.POISON) == [b'{"x": \n']


@pytest.mark.parametrize(
    ("form", "options"), [("csv", {"header": "true"}), ("json", {"multiLine": "true", "allowComments": "true"}), ("xml", {"rowTag": "row"})]
)
def test_text_that_is_no_utf8_is_refused_with_its_line(sent: Callable[..., SendResult], tmp_path: Path, form: str, options: dict[str, str]) -> None:
    path = put(tmp_path / "a.txt", b"<row>\n<a>caf\xc3\xa9</a>\n<a>caf\xe9</a></row>\n")

    with pytest.raises(InputError, match=r"a\.txt, line 3: it is no UTF-8.*encoding.*Nothing was sent"):
        sent(FrameSource(path=path, format=form, options=options))


def test_documents_of_a_file_are_sent_byte_for_byte_and_elements_of_arrays_apart(
    sent: Callable[..., SendResult], queue: Queue, tmp_path: Path
) -> None:
    given = {
        "lines": b'{"n":1}\n\n{"n": 2}{"N":3}\r\n',
        "array": b'\xef\xbb\xbf[ {"a":1.10},\n {"a":1e30} , {"a":"x\\ud800y"},123456789012345678901234567890 ]',
        "cut": b'{"ok":1}\n[{"a":1},{"a":',
        "latin": b'{"a":"caf\xe9"}',
        "empty": b"",
        "none": b"[]",
    }
    for name, content in given.items():
        put(tmp_path / f"in/{name}.json", content)

    result = sent(FrameSource(path=str(tmp_path / "in"), format="json", options={"multiLine": "true"}))

    assert (result.sent, result.malformed) == (11, 2)
    good = [
        b'{"a":1}',
        b'{"n":1}',
        b'{"n": 2}',
        b'{"N":3}',
        b'{"a":1.10}',
        b'{"a":1e30}',
        b'{"a":"x\\ud800y"}',
        b"123456789012345678901234567890",
        b'{"ok":1}',
    ]
    assert sorted(bodies(queue)) == sorted(good)
    assert sorted(bodies(queue, SubQueue.POISON)) == sorted([b'{"a":', b'{"a":"caf\xe9"}'])


def test_values_of_xml_keep_their_digits(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path) -> None:
    values = {"_id": "007", "a": "1.10", "b": "12345678901234567.89", "f": "1e400", "j": "2026-01-01T00:00:00.123456789Z", "zip": "01234"}
    inside = "".join(f"<{name}>{value}</{name}>" for name, value in values.items() if name != "_id")
    put(tmp_path / "a.xml", f'<r><row id="007">{inside}</row></r>')
    put(tmp_path / "empty.xml", "")

    for name, rows in {"a.xml": 1, "empty.xml": 0}.items():
        assert sent(FrameSource(path=str(tmp_path / name), format="xml", options={"rowTag": "row"})).sent == rows

    assert [json.loads(body) for body in bodies(queue)] == [values]


@pytest.mark.parametrize("content", ["<r/>", "<r><row><a>1</a>"])
def test_files_in_which_spark_finds_no_row_are_an_error_that_says_so(sent: Callable[..., SendResult], tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match=r"a\.xml' as format='xml': Spark finds no row.*rowTag.*Nothing was sent"):
        sent(FrameSource(path=put(tmp_path / "a.xml", content), format="xml", options={"rowTag": "row"}))


def test_a_number_that_spark_has_no_decimal_for_is_an_error_with_a_way_out(sent: Callable[..., SendResult], tmp_path: Path) -> None:
    path = put(tmp_path / "a.json", '{"a":1e30}\n')

    with pytest.raises(InputError, match=r"no decimal for a number as 1e30.*prefersDecimal"):
        sent(FrameSource(path=path, format="json", options={"allowComments": "true"}))
    assert sent(FrameSource(path=path, format="json", options={"allowComments": "true", "prefersDecimal": "false"})).sent == 1


@pytest.mark.parametrize(
    ("option", "of_na"), [({"nullValue": "NA"}, None), ({"dateFormat": "yyyy"}, "NA"), ({"ignoreLeadingWhiteSpace": "false"}, "NA")]
)
def test_cells_that_spark_reads_with_other_options_are_those_of_rfc_4180(
    sent: Callable[..., SendResult], queue: Queue, tmp_path: Path, option: dict[str, str], of_na: str | None
) -> None:
    path = put(tmp_path / "a.csv", 'id,v\n1,"x\ny"\n2,"say ""hi"", a\\b"\n3,""\n4,\n5,NA\n')

    result = sent(FrameSource(path=path, format="csv", options={"header": "true", **option}))

    assert (result.sent, result.malformed) == (5, 0)
    assert [json.loads(body).get("v") for body in bodies(queue)] == ["x\ny", 'say "hi", a\\b', "", None, of_na]


def test_text_in_an_encoding_that_is_named_is_read(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", b"a\ncaf\xe9\n")

    sent(FrameSource(path=path, format="csv", options={"header": "true", "encoding": "ISO-8859-1"}), body="a")

    assert bodies(queue) == ["café".encode()]


def test_a_mode_that_leaves_records_out_is_refused(sent: Callable[..., SendResult], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mode=DROPMALFORMED leaves out records"):
        sent(FrameSource(path=put(tmp_path / "a.csv", "a\n"), format="csv", options={"Mode": "dropMalformed"}))


def test_what_a_users_own_reader_could_not_read_is_malformed(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "a.json", '{"a": 1}\n{"a": \n')

    result = sent(FrameSource(dataframe=lambda spark: spark.read.json(path)), priority="a")

    assert (result.sent, result.malformed) == (2, 1)
    assert (bodies(queue), bodies(queue, SubQueue.POISON)) == ([b'{"a":1}'], [b'{"a": '])


def test_a_damaged_file_is_left_out_only_where_the_send_says_so(
    sent: Callable[..., SendResult], spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """Whatever the session has set (SPARK-40591)."""
    pq.write_table(pa.table({"body": ["one"]}), tmp_path / "one.parquet")
    (tmp_path / "two.parquet").write_bytes((tmp_path / "one.parquet").read_bytes()[:-10])
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(PoisonError, match=r"two\.parquet"):
            sent(FrameSource(path=f"{tmp_path}/*.parquet"))
        assert bodies(queue) == []

        sent(FrameSource(path=f"{tmp_path}/*.parquet", options={"ignoreCorruptFiles": "true"}))
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert bodies(queue) == [b'{"body":"one"}']


def test_a_column_of_corrupt_records_that_is_mapped_is_the_authors(sent: Callable[..., SendResult], queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "a.json", '{"a": 1}\n{"a": \n')

    result = sent(FrameSource(dataframe=lambda spark: spark.read.json(path).cache()), body=("_corrupt_record",))

    assert result.malformed == 0
    assert [json_text.values(body) for body in bodies(queue)] == [{"_corrupt_record": None}, {"_corrupt_record": '{"a": '}]


# Rows -----------------------------------------------------------------------------------------------------------------

ROW = """
SELECT true AS bool, 127Y AS byte, -32768S AS short, 2147483647 AS int, 9223372036854775807L AS long,
  CAST(0.1 AS FLOAT) AS float, 19.99D AS double, double('NaN') AS nan, double('-Infinity') AS low, 123456789012345678901234567890.12345678BD AS dec,
  'caf\u00e9 \\u0000 \\n "' AS text, X'00ff' AS bytes, DATE'0001-01-02' AS day, DATE'1500-03-01' AS old_day,
  TIMESTAMP'2026-01-02 03:04:05.678901+02:00' AS at, TIMESTAMP'9999-12-31 23:59:59.999999Z' AS last, TIMESTAMP_NTZ'2026-01-02 03:04:05.5' AS clock,
  INTERVAL '1-2' YEAR TO MONTH AS months, INTERVAL '1 02:03:04.000005' DAY TO SECOND AS span, make_interval(1, 2, 3, 4) AS calendar, null AS nothing,
  parse_json('{"v": [1.10, "x"]}') AS variant, named_struct('in', parse_json('12345678901234567.89')) AS variant_in,
  array(map('k', named_struct('d', 1.10BD, 'at', TIMESTAMP'2026-01-02 03:04:05.678901Z', 'i', INTERVAL '1' DAY, 'n', null)), null) AS deep,
  map(1, 'one') AS numbered, array() AS none, named_struct('a', 1, 'A', 2) AS alike, CAST(null AS STRUCT<x: INT>) AS no_struct
"""
EXPECTED = {
    "bool": True,
    "byte": 127,
    "short": -32768,
    "int": 2147483647,
    "long": 9223372036854775807,
    "float": Decimal("0.1"),
    "double": Decimal("19.99"),
    "nan": "NaN",
    "low": "-Infinity",
    "dec": Decimal("123456789012345678901234567890.12345678"),
    "text": 'café \0 \n "',
    "bytes": "AP8=",
    "day": "0001-01-02",
    "old_day": "1500-03-01",
    "at": "2026-01-02T01:04:05.678901Z",
    "last": "9999-12-31T23:59:59.999999Z",
    "clock": "2026-01-02T03:04:05.500",
    "months": "INTERVAL '1-2' YEAR TO MONTH",
    "span": "INTERVAL '1 02:03:04.000005' DAY TO SECOND",
    "calendar": "1 years 2 months 25 days",
    "nothing": None,
    "variant": {"v": [Decimal("1.1"), "x"]},
    "variant_in": {"in": Decimal("12345678901234567.89")},
    "deep": [{"k": {"d": Decimal("1.10"), "at": "2026-01-02T03:04:05.678901Z", "i": "INTERVAL '1' DAY", "n": None}}, None],
    "numbered": {"1": "one"},
    "none": [],
    "alike": {"a": 1, "A": 2},
    "no_struct": None,
}


@pytest.mark.campaign
@pytest.mark.parametrize("setting", [{}, {"spark.sql.parquet.outputTimestampType": "INT96", "spark.sql.session.timeZone": "Europe/Berlin"}])
def test_values_of_every_type_are_in_the_body(sent: Callable[..., SendResult], queue: Queue, spark: SparkSession, setting: dict[str, str]) -> None:
    before = {name: spark.conf.get(name) for name in setting}
    try:
        for name, value in setting.items():
            spark.conf.set(name, value)
        sent(FrameSource(dataframe=lambda spark: spark.sql(ROW)))
        assert {name: spark.conf.get(name) for name in setting} == setting
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))

    [body] = bodies(queue)
    assert json_text.values(body) == EXPECTED


def test_a_text_that_is_no_utf8_is_malformed_and_its_neighbours_are_sent(sent: Callable[..., SendResult], queue: Queue) -> None:
    def frame(spark: SparkSession) -> DataFrame:
        return spark.sql("SELECT id, CAST(IF(id = 1, X'636166e9', X'636166') AS STRING) AS text FROM range(3)")

    result = sent(FrameSource(dataframe=frame))

    assert (result.sent, result.malformed) == (3, 1)
    assert sorted(bodies(queue)) == [b'{"id":0,"text":"caf"}', b'{"id":2,"text":"caf"}']
    assert "column 'text': its text is no UTF-8" in reasons(queue)[0]
    assert "\ufffd".encode() not in bodies(queue, SubQueue.POISON)[0]


def test_a_row_that_cannot_be_a_message_is_malformed_alone(sent: Callable[..., SendResult], queue: Queue) -> None:
    def frame(spark: SparkSession) -> DataFrame:
        return spark.sql("SELECT * FROM VALUES ('a', 3, 60.0D), (null, 3, 60.0D), ('c', 11, 60.0D), ('d', 3, double('NaN')) AS t(body, p, ttl)")

    result = sent(FrameSource(dataframe=frame), body="body", priority="p", expires_after="ttl")

    assert (result.sent, result.malformed) == (4, 3)
    [row] = queue.rows(SubQueue.MAIN).values()
    assert (row["body"], row["priority"]) == (b"a", 3)
    assert [reason.partition(": ")[2].partition("=")[0] for reason in reasons(queue)] == ["body", "priority", "expires_after"]


def test_a_mapping_that_does_not_fit_is_refused_before_a_job_runs(sent: Callable[..., SendResult]) -> None:
    def frame(spark: SparkSession) -> DataFrame:
        return spark.sql("SELECT raise_error('a job ran') AS body, array(1) AS list")

    with pytest.raises(InputError, match=r"group='list': the column is list<"):
        sent(FrameSource(dataframe=frame), group="list")
