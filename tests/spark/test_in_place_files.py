"""Text files in place: what executors make of them is what a send and a receive make, row by row, also of what is broken."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from airflow_poison import Files, Msmq4, Store
from airflow_poison.sources import frames
from airflow_poison.sources.readers import Layout
from airflow_poison.values.errors import InputError, SourceError
from airflow_poison.values.fault_points import install

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison import Queue

    Transform = Callable[[DataFrame], DataFrame]

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"), pytest.mark.long]
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


class Job:
    """Files, a queue and an output: received in place, or sent first."""

    def __init__(self, folder: Path, spark: SparkSession, files: dict[str, bytes], **source: Any) -> None:
        self.folder, self.spark, self.lines = folder, spark, list[str]()
        (folder / "in").mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / "in" / name).write_bytes(content)
        self.source = Files(f"{folder}/in/*", settled=timedelta(0), **source)

    def queue(self, name: str) -> Queue:
        return Store(str(self.folder / "store")).declare(name, POLICY)

    def received(
        self, name: str, transform: Callable[[DataFrame], DataFrame], schema: str | None = None, *, sent: bool = False, key: str = "k"
    ) -> Any:
        """Return the rows that have landed, and the messages that are left."""
        queue, out = self.queue(name), str(self.folder / f"out-{name}")
        if sent:
            queue.take(self.source, key=key)
        queue.receive(
            None,
            POLICY,
            key=key,
            spark=self.spark,
            transform=transform,
            schema=schema,
            output=out,
            source=None if sent else self.source,
            progress=self.lines.append,
        )
        assert not queue.check().findings
        return self.landed(name), self.messages(name)

    def landed(self, name: str) -> list[str]:
        out = str(self.folder / f"out-{name}")
        return sorted(repr(row) for row in DeltaTable(out).to_pyarrow_table().to_pylist()) if DeltaTable.is_deltatable(out) else []

    def messages(self, name: str) -> list[Any]:
        table = self.queue(name).table
        rows = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
        types = [(row["last_error"] or {}).get("type") for row in rows]  # none yet: another run is at it
        own = [
            (*(row[name] for name in ("sub_queue", "body", "message_id")), str(row["properties"]), kind)
            for row, kind in zip(rows, types, strict=True)
        ]
        ids = [(*each[:2], "" if each[3] == "None" else each[2], *each[3:]) for each in own]  # what has no id of its own gets one
        return sorted(ids, key=repr)

    @property
    def poured(self) -> bool:
        return any("becomes messages" in line or ": all of them," in line for line in self.lines)


PIECES = [
    "",
    " ",
    '"',
    '""',
    ",",
    "\n",
    "\r\n",
    "é",
    "\ufeff",
    "NaN",
    "null",
    "\t",
    "\\",
    "'",
    "#",
    "\x00",
    "1e400",
    "9" * 40,
    "-0",
    "x",
    "ab",
    "\u2028",
]


def a_cell(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randrange(4)))


def csv_file(rng: random.Random, rows: int, names: Sequence[str]) -> bytes:
    """Return rows of which the first cell is a number, or none; some are broken."""

    def quoted(cell: str) -> str:
        odd = any(sign in cell for sign in '",\r\n')
        return '"' + cell.replace('"', '""') + '"' if odd or rng.random() < 0.2 else cell

    lines = [",".join(names)]
    for number in range(rows):
        first = str(number) if rng.random() < 0.9 else rng.choice(["bad", "1.5", "", " 7 ", "٣"])
        cells = [first, *(a_cell(rng) for _ in names[1:])]
        lines.append(",".join(map(quoted, cells)))
        if rng.random() < 0.1:
            lines.append(rng.choice(["1", "1,2,3,4,5,6,7", '2,"open', '3,"a"b,c', "   ", "", 'a"b,c,d', "\t\t"]))
    return ("\n" if rng.random() < 0.5 else "\r\n").join(lines).encode() + rng.choice([b"", b"\n", b"8,\xff,z\n"])


def counted(df: DataFrame) -> DataFrame:
    names = [name for name in df.columns if name not in {"lookup_id", "id"}]
    return df.selectExpr("cast(id AS int) AS number", *(f"`{name}`" for name in names))


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.campaign) for each in range(2, 6))])
def test_csv_is_what_a_send_makes_of_it(tmp_path: Path, spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_PART", 500)
    rng = random.Random(seed)
    names = ["id", "a", "b", "c"]
    whole = csv_file(rng, 60, names)
    files = {
        "1.csv": whole,
        "2.csv.gz": gzip.compress(csv_file(rng, 20, names)),
        "3.csv": csv_file(rng, 10, ["c", "b", "id"]).decode(errors="replace").encode("utf-8-sig"),
        "4.csv": csv_file(rng, 10, names).decode(errors="replace").encode("utf-16"),
        "5.csv": b"",
        "6.csv": b"id,a,b,a\n1,2,3,4\n",
        "7.csv.gz": gzip.compress(csv_file(rng, 400, names))[:-40],
        "8.csv": b"id,a,b,c\n" + b"\n".join(rng.choices([b"1,a,b,c", b"bad,,,", b"2", b"", b"3,\xff,b,c"], k=400)),
    }
    job = Job(tmp_path, spark, files, format="csv")
    assert len(frames._units("", str(tmp_path / "in" / "8.csv"), Layout("csv"), 500, counted=True)) > 3
    schema = "id string, a string, b string, c string"

    sent = job.received("sent", counted, schema, sent=True)
    declared = job.received("declared", counted, schema)
    plain = job.received("plain", lambda df: counted(df.select("id", "a", "b", "c")))

    assert not job.poured, job.lines
    assert declared == sent
    assert plain[0] == sent[0]
    without_nulls = [[(*each[:1], re_read(each[1]), *each[2:]) for each in found[1]] for found in (plain, sent)]
    assert sorted(without_nulls[0], key=repr) == sorted(without_nulls[1], key=repr), "files of fewer columns have nulls where others have cells"


def re_read(body: bytes) -> object:
    """Return a body without nulls."""
    try:
        return sorted((name, cell) for name, cell in json.loads(body).items() if cell is not None)
    except (ValueError, AttributeError):
        return body


SCHEMA = (
    "id string, i int, l bigint, d double, f float, n decimal(38, 10), s string, x binary, day date, at timestamp, clock timestamp_ntz, b boolean, "
    "inner struct<n: decimal(9, 2), more: array<string>>, many map<string, bigint>"
)


def json_line(rng: random.Random, number: int) -> bytes:
    """Return a line of JSON whose values fit their columns, mostly."""
    values: dict[str, list[str]] = {
        "i": ["1", "-2147483648", "2147483648", "1.0", "1.5", '"1"', "null", "1e3"],
        "l": ["9007199254740993", "9223372036854775807", "9223372036854775808", "0"],
        "d": ["0.1", "1e400", "-0.0", '"NaN"', '"-Infinity"', "NaN", "12345678901234567890", "5e-324"],
        "f": ["0.1", "16777217", "3.4028236e38", "1.00000005960464477540"],
        "n": ["1.10", "12345678901234567890.1234567890", '"7.25"', "0.12345678901", "1e27", "1e28", "1e99999999999999999999"],
        "s": ['"é"', '"\\ud800"', '"\\u0000"', "1.10", '"a\\nb"', '""', "null", '"\\ud83d\\ude00"'],
        "x": [f'"{base64.b64encode(bytes([0, 255])).decode()}"', '"AP9="', '"!"'],
        "day": ['"2026-01-31"', '"0001-01-01"', '"2026-02-30"', '"2026-1-1"', '"9999-12-31"'],
        "at": ['"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00.123456+02:00"', '"2026-01-01 00:00:00"', '"2026-01-01"', '"1582-10-10T00:00:00Z"'],
        "clock": ['"2026-01-01T00:00:00"', '"2026-01-01T00:00:00Z"'],
        "b": ["true", "false", '"true"', "1"],
        "inner": ['{"n": 1.25, "more": ["a", null]}', '{"n": 1.255}', "{}", "[]", '{"n": 1, "n": 2}', '{"more": [1]}'],
        "many": ['{"a": 1, "a ": 2}', '{"a": 1, "a": 2}', "{}", "null"],
        "extra": ["1", "{" * 0 + '{"deep": [[[1.10]]]}', "1e400", '"\\ud800"', "[" * 600 + "]" * 600],
    }
    named = [f'"{name}": {rng.choice(some) if rng.random() < 0.15 else some[0]}' for name, some in values.items() if rng.random() < 0.9]
    text = "{" + ", ".join([f'"id": "{number if rng.random() < 0.9 else "bad"}"', *named]) + "}"
    if rng.random() < 0.1:
        text = rng.choice([text + " x", text[:-1], f"[{text}]", "", "  ", "null", "1", f"\ufeff{text}", text.replace('"', "'"), f"{text}{text}"])
    return text.encode() if rng.random() < 0.97 else text.encode()[:-3] + b'"\xff"}'


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.campaign) for each in range(2, 6))])
def test_json_is_what_a_send_makes_of_it(tmp_path: Path, spark: SparkSession, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_PART", 5_000)
    rng = random.Random(seed)
    lines = [json_line(rng, number) for number in range(160)]
    files = {
        "1.json": b"\n".join(lines[:100]),
        "2.json.gz": gzip.compress(b"\r\n".join(lines[100:140])),
        "3.json": b"\r".join(lines[140:]),
        "4.json": b"",
        "5.json": b"[\n" + b",\n".join([b'{"id": "1000"}', *lines[:60]]) + b"\n]\n",
        "6.json.gz": gzip.compress(b'{\n  "id": "1001",\n  "n": 1.10\n}\n{\n  "id": bad\n}\n'),
    }
    job = Job(tmp_path, spark, files, format="json")
    units = [len(frames._units("", str(tmp_path / "in" / name), Layout("json"), 5_000, counted=False)) for name in ("1.json", "5.json")]
    assert (units[0] > 3, units[1]) == (True, 1), "a document is not split"

    sent = job.received("sent", counted, SCHEMA, sent=True)
    placed = job.received("placed", counted, SCHEMA)

    assert not job.poured, job.lines
    assert len(sent[0]) > 20
    assert len(sent[1]) > 20
    assert placed == sent


def test_a_join_after_columns_were_left_out_keeps_the_record(tmp_path: Path, spark: SparkSession) -> None:
    def joined(df: DataFrame) -> DataFrame:
        names = df.sparkSession.range(10).selectExpr("cast(id AS string) AS id", "concat('n', id) AS name")
        return df.select("id", "i").join(names, "id").selectExpr("name", "cast(i AS int) AS i")

    lines = b'{"id": "1", "i": "1"}\n{"id": "2", "i": "bad", "extra": 1.10}\n{"id": "x", "i": "bad"}\nno\n{"id": 3}\n'
    job = Job(tmp_path, spark, {"1.json": lines}, format="json")

    landed, messages = job.received("q", joined, "id string, i string")

    assert not job.poured, job.lines
    assert landed == ["{'name': 'n1', 'i': 1}"]
    assert sorted(body for _, body, *_ in messages) == [b"no", b'{"id": "2", "i": "bad", "extra": 1.10}', b'{"id": 3}']


@pytest.mark.parametrize("join", [True, False])
def test_records_that_are_none_become_messages_also_where_spark_reads_nothing(tmp_path: Path, spark: SparkSession, *, join: bool) -> None:
    """Spark passes over a source whose rows cannot land, and counts none of them."""

    def nothing(df: DataFrame) -> DataFrame:
        if not join:
            return df.where("1 = 0").select("id")
        return df.join(df.sparkSession.range(5).where("id + 0 > 100").selectExpr("cast(id AS string) AS id"), "id").select("id")

    job = Job(tmp_path, spark, {"1.json": b'{"id": "1"}\nno\n'}, format="json")

    landed, messages = job.received("q", nothing, "id string")

    assert (landed, [body for _, body, *_ in messages]) == ([], [b"no"])
    assert not job.poured


WHY = {
    "lines": ({"format": "lines"}, "have no columns"),
    "no schema": ({"format": "json"}, "declare schema="),
}


@pytest.mark.parametrize("case", WHY)
def test_what_stays_the_old_way_says_why(tmp_path: Path, spark: SparkSession, case: str) -> None:
    source, why = WHY[case]
    job = Job(tmp_path, spark, {"1": b'{"id": "1"}\n'}, **source)

    job.received("q", lambda df: df.selectExpr("cast(body AS string) AS body"))

    assert any(why in line for line in job.lines), job.lines
    assert job.landed("q")


def test_a_column_may_have_no_name_as_in_a_file_of_pandas(tmp_path: Path, spark: SparkSession) -> None:
    job = Job(tmp_path, spark, {"1": b",id\n0,7\n1,8\n"}, format="csv")

    landed, messages = job.received("q", lambda df: df)

    assert (landed, messages) == (["{'': '0', 'id': '7'}", "{'': '1', 'id': '8'}"], [])
    assert not job.poured


def test_names_that_differ_by_case_are_an_error_unless_the_columns_are_declared(tmp_path: Path, spark: SparkSession) -> None:
    job = Job(tmp_path, spark, {"1": b"id,ID\n7,8\n"}, format="csv")

    with pytest.raises(SourceError, match=r"Spark wants each name once.*Declare the columns .*schema="):
        job.received("q", lambda df: df.select("id"))
    assert not job.queue("q").positions()
    landed, _ = job.received("q", lambda df: df.select("id"), "id string")
    assert landed == ["{'id': '7'}"]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "its end is missing": lambda good: good[: len(good) // 2],
    "its beginning is missing": lambda good: good[4:],
    "its values have changed": lambda good: good[:400] + b"\xff" * 400 + good[800:],
    "it is another file": lambda _: b"id,a\n1,2\n",
}


def typed(spark: SparkSession, folder: Path, form: str, *columns: str) -> bytes:
    """Return a file of 100 rows."""
    spark.range(100).selectExpr(*columns).coalesce(1).write.option("compression", "none").format(form).save(str(folder))
    return next(folder.glob(f"*.{form}")).read_bytes()


@pytest.mark.parametrize(
    ("form", "damage"),
    [
        (form, damage) for form in ("parquet", "orc") for damage in DAMAGES if (form, damage) != ("orc", "its values have changed")
    ],  # it has no checksums
)
def test_a_damaged_file_is_a_message_and_the_rows_of_the_others_land(tmp_path: Path, spark: SparkSession, form: str, damage: str) -> None:
    good = typed(spark, tmp_path / "written", form, "id", "uuid() AS a")
    job = Job(tmp_path, spark, {"1": good, "2": DAMAGES[damage](good), "3": good}, format=form)

    landed, messages = job.received("q", lambda df: df.select("id"))

    assert len(landed) == 200
    assert [(kind, "in/2" in where) for *_, where, kind in messages] == [("MalformedError", True)]
    assert not job.poured
    assert [each.position for each in job.queue("q").positions()] == ["3 files were taken"]
    with pytest.raises(InputError, match="Spark alone reads") if form == "orc" else nullcontext():
        job.queue("other").take(job.source, key="taken")


def test_files_of_orc_without_a_type_in_common_are_messages(tmp_path: Path, spark: SparkSession) -> None:
    numbers, texts = (typed(spark, tmp_path / kind, "orc", f"CAST(id AS {kind}) AS id") for kind in ("bigint", "string"))
    job = Job(
        tmp_path, spark, {"1": numbers, "2": numbers, "3": texts, "4": typed(spark, tmp_path / "int", "orc", "CAST(id AS int) AS id")}, format="orc"
    )

    landed, messages = job.received("q", lambda df: df.select("id"))

    assert len(landed) == 300, "an int is a bigint"
    assert sorted(json.loads(body)["id"] for _, body, *_ in messages) == sorted(map(str, range(100)))


@pytest.mark.parametrize("first", ["string", "binary"])
def test_texts_that_one_program_marks_and_another_writes_as_bytes_are_the_same_column(tmp_path: Path, spark: SparkSession, first: str) -> None:
    kinds = {"1": first, "2": first, "3": "binary" if first == "string" else "string"}  # what more files have is the type
    for name, kind in kinds.items():
        spark.range(int(name), int(name) + 1).selectExpr("id", f"cast(concat('ä', id) AS {kind}) AS t").coalesce(1).write.parquet(
            str(tmp_path / name)
        )
    (tmp_path / "in").mkdir()
    for name in kinds:
        next((tmp_path / name).glob("*.parquet")).rename(tmp_path / "in" / f"{name}.parquet")
    queue = Store(str(tmp_path / "store")).declare("orders", POLICY)
    source = Files(f"{tmp_path}/in/*.parquet", format="parquet", settled=timedelta(0))

    done = queue.receive(None, POLICY, key="one", spark=spark, transform=lambda df: df, source=source, output=str(tmp_path / "out"))

    assert done.in_place == {"read": 3, "landed": 3, "filtered": 0, "messages": 0}
    landed = DeltaTable(str(tmp_path / "out")).to_pyarrow_table().sort_by("id")["t"]
    assert landed.to_pylist() == (["ä1", "ä2", "ä3"] if first == "string" else ["ä1".encode(), "ä2".encode(), "ä3".encode()])


def test_files_of_orc_that_spark_leaves_out_wait_and_are_named(tmp_path: Path, spark: SparkSession) -> None:
    good = typed(spark, tmp_path / "written", "orc", "id")
    job = Job(tmp_path, spark, {"1.orc": good, "_2.orc": good, "4:5.orc": good, "6.orc": b""}, format="orc")

    landed, messages = job.received("q", lambda df: df.select("id"))

    assert (len(landed), messages) == (100, [])
    assert any("2 files are left out by Spark" in line and "_2.orc" in line and "rename it" in line for line in job.lines)
    assert any("1 file has no bytes: " in line and "6.orc" in line for line in job.lines)
    (tmp_path / "in/_2.orc").rename(tmp_path / "in/2.orc")
    landed, _ = job.received("q", lambda df: df.select("id"), key="next")
    assert len(landed) == 200


@pytest.mark.parametrize("content", [b"no orc", b""])
def test_nothing_is_taken_where_spark_reads_none_of_the_files(tmp_path: Path, spark: SparkSession, content: bytes) -> None:
    job = Job(tmp_path, spark, {"1.orc": content}, format="orc")

    with pytest.raises(SourceError, match=r"1\.orc: .*Malformed ORC file") if content else nullcontext():
        job.received("q", counted)

    assert job.queue("q").positions() == ()
    (tmp_path / "in/2.orc").write_bytes(typed(spark, tmp_path / "written", "orc", "id"))
    landed, messages = job.received("q", lambda df: df.select("id"), key="next")
    assert (len(landed), len(messages)) == (100, int(bool(content)))


def test_a_file_that_spark_could_not_read_for_a_moment_is_not_damaged(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    good = typed(spark, tmp_path / "written", "orc", "id")
    job = Job(tmp_path, spark, {"1": good, "2": good}, format="orc")
    reads, read = list[str](), frames._read

    def failing(session: SparkSession, form: str, base: str, columns: Sequence[str], paths: Sequence[str]) -> DataFrame:
        reads.extend(path for path in paths if path.endswith("2"))
        if len(reads) < 3 and paths[-1].endswith("2"):
            raise OSError("the network is away")
        return read(session, form, base, columns, paths)

    monkeypatch.setattr(frames, "_read", failing)
    with pytest.raises(SourceError, match=r"could not read .*in/2 before, and can now\. Nothing was taken; run the task again"):
        job.received("q", lambda df: df.select("id"))
    assert job.queue("q").positions() == ()
    landed, messages = job.received("q", lambda df: df.select("id"))
    assert (len(landed), messages) == (200, [])


def test_a_format_that_spark_does_not_have_damages_no_file(tmp_path: Path, spark: SparkSession) -> None:
    job = Job(tmp_path, spark, {"1.avro": b"Obj1", "2.avro": b"Obj1"}, format="avro")

    with pytest.raises(SourceError, match=r"Failed to find data source: avro"):
        job.received("q", counted)
    assert job.queue("q").positions() == ()


# Once -----------------------------------------------------------------------------------------------------------------


DRIVER = """
import sys
from datetime import timedelta
from airflow_poison import Files, Store
from airflow_poison.spark.session import get_session
from tests.given.drivers import SMALL
from tests.spark.test_in_place_files import POLICY, counted

store, pattern, format, out = sys.argv[1:]
source = Files(pattern, format=format, settled=timedelta(0))
Store(store).queue("q").receive(
    None, POLICY, key="k", spark=get_session("local[1]", SMALL), transform=counted, schema="id string, a string", output=out, source=source
)
"""
POINTS = [
    "pass.in_place.before_job",
    "pass.in_place.before_commit",
    "store.append.after_numbering",
    "pass.in_place.after_commit",
    "pass.land.after_write",
]
CONTENT = {
    "csv": {"1.csv": b"id,a\n1,x\nbad,y\n3\n", "2.csv": b'id,a\n4,"a\nb"\n'},
    "json": {"1.json": b'{"id": "1", "a": "x"}\n{"id": "bad", "a": "y"}\nno\n', "2.json": b'{"id": "4", "a": "a\\nb"}\n'},
}


def content(form: str, folder: Path, spark: SparkSession) -> tuple[dict[str, bytes], int]:
    """Return files of a format in which the rows 1 and 4 land, and how many others there are."""
    if form != "orc":
        return CONTENT[form], 2
    spark.createDataFrame([("1", "x"), ("bad", "y"), ("4", "a\nb")], "id string, a string").coalesce(1).write.orc(str(folder / "written"))
    return {"1.orc": next((folder / "written").glob("*.orc")).read_bytes()}, 1


@pytest.mark.campaign
@pytest.mark.parametrize("form", [*CONTENT, "orc"])
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_killed_is_done_again_and_each_row_is_there_once(tmp_path: Path, spark: SparkSession, form: str, point: str) -> None:
    files, failing = content(form, tmp_path, spark)
    job = Job(tmp_path, spark, files, format=form)
    job.queue("q")
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path / "store"), job.source.pattern, form, str(tmp_path / "out-q")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "AIRFLOW_POISON_FAULT": f"{point}:kill"})
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2_000:]

    landed, messages = job.received("q", counted, "id string, a string")

    assert landed == ["{'number': 1, 'a': 'x'}", "{'number': 4, 'a': 'a\\nb'}"]
    assert len(messages) == failing
    assert not job.poured, job.lines


@pytest.mark.parametrize("form", ["json", "orc"])
def test_two_runs_at_once_take_each_row_once(tmp_path: Path, spark: SparkSession, form: str) -> None:
    files, failing = content(form, tmp_path, spark)
    job = Job(tmp_path, spark, files, format=form)
    job.queue("q")
    errors = list[BaseException]()

    def run(key: str) -> None:
        try:
            job.received("q", counted, "id string, a string", key=key)
        except BaseException as error:  # noqa: BLE001  (shown below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(key,)) for key in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for error in errors:
        raise error
    assert (len(job.landed("q")), len(job.messages("q"))) == (2, failing)


@pytest.mark.parametrize("change", ["rewritten", "removed"])
def test_a_file_that_changes_while_it_is_read_is_an_error_and_nothing_is_taken(tmp_path: Path, spark: SparkSession, change: str) -> None:
    job = Job(tmp_path, spark, CONTENT["csv"], format="csv")
    file = tmp_path / "in" / "1.csv"

    def changed(point: str) -> None:
        if point == "pass.in_place.before_commit":
            file.unlink() if change == "removed" else os.utime(file, (1, 1))

    install(changed)
    try:
        with pytest.raises(SourceError, match=f"was {'changed' if change == 'rewritten' else change} while it was read"):
            job.received("q", counted)
    finally:
        install(None)

    assert (job.landed("q"), job.messages("q")) == ([], [])
    assert job.queue("q").positions() == ()
