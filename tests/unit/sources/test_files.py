"""``Files`` of a folder: each once, late ones, rewritten ones, compressed ones, those that cannot be read. Those of a bucket: tests/store/s3."""

from __future__ import annotations

import glob
import gzip
import os
import pickle
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.passes.take import positions, take
from airflow_poison.sources import readers
from airflow_poison.sources.files import Files
from airflow_poison.sources.source import Position
from airflow_poison.testing.sources import SourceContract
from airflow_poison.values.errors import InputError, SettingError, SourceError
from airflow_poison.values.mapping import ColumnMapping
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_poison.passes.take import TakeResult
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

_numbers = count()
AT_ONCE = timedelta(0)


class TestContract(SourceContract):
    """Files of lines are a source as any."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def source(self) -> Files:
        return Files(f"{self.folder}/*.txt", format="lines", settled=AT_ONCE)

    def add(self, bodies: Sequence[str]) -> None:
        put(self.folder / f"{next(_numbers):06}.txt", "".join(f"{body}\n" for body in bodies))


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def taken(queue: Queue, source: Files, **more: Any) -> TakeResult:
    return take(queue.table, source, key=f"take-{next(_numbers)}", clock=queue.clock, **more)


def bodies(queue: Queue, place: SubQueue | None = SubQueue.MAIN) -> list[str]:
    return [row["body"].decode() for _, row in sorted(queue.rows(place).items())]  # type: ignore[attr-defined]  # bytes


def errors(queue: Queue) -> list[str]:
    return [row["last_error"]["message"] for _, row in sorted(queue.rows(SubQueue.POISON).items())]  # type: ignore[index]  # a struct


def test_json_lines_are_bodies_and_a_line_that_is_none_is_malformed(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "a.json", '{"n": 1}\n\n{"n": \n"text"\r\n')
    result = taken(queue, Files(f"{tmp_path}/*.json", settled=AT_ONCE))
    assert (result.sent, result.malformed, result.what) == (3, 1, "1 file, 25 bytes")
    assert bodies(queue) == ['{"n": 1}', '"text"']
    assert bodies(queue, SubQueue.POISON) == ['{"n": ']
    assert errors(queue) == [f"line 3 of {path}: it is no JSON: Expecting value: line 1 column 7 (char 6)"]
    row = queue.rows()[2]
    assert (row["message_id"], dict(row["properties"])) == (f"{path}:4", {"file.path": str(path), "file.line": "4"})  # type: ignore[call-overload]


def test_a_file_comes_once_however_late(queue: Queue, tmp_path: Path) -> None:
    source = Files(f"{tmp_path}/**/*.txt", format="lines", settled=AT_ONCE)
    put(tmp_path / "new.txt", "new")
    assert taken(queue, source).sent == 1
    late = put(tmp_path / "deep" / "late.txt", "late")
    os.utime(late, (1, 1))
    assert taken(queue, source).sent == 1
    assert taken(queue, source).sent == 0
    assert positions(queue.table)[0].position == "2 files were taken"


def test_a_rewritten_file_comes_again_only_when_asked_for(queue: Queue, tmp_path: Path) -> None:
    ignoring, taking = (Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE, rewritten=how, name=how) for how in ("ignore", "take"))
    put(tmp_path / "a", "1")
    assert (taken(queue, ignoring).sent, taken(queue, taking).sent) == (1, 1)
    os.utime(put(tmp_path / "a", "1\n2"), (1, 1))
    ignored = taken(queue, ignoring)
    assert (ignored.sent, taken(queue, taking).sent) == (0, 2)
    assert ignored.passed_over == (f"1 file was rewritten since it was taken: {tmp_path}/a; rewritten='take' takes it again",)
    assert taken(queue, taking).passed_over == ()


def test_a_file_that_is_still_written_waits(queue: Queue, tmp_path: Path) -> None:
    source = Files(f"{tmp_path}/*", format="lines")
    path = put(tmp_path / "a", "1")
    result, version = taken(queue, source), queue.table.snapshot().version
    assert (result.sent, result.what) == (0, "")
    assert result.passed_over == (f"1 file was changed less than 10 s ago and may still be written: {path}; later takes look again",)
    taken(queue, source)
    assert queue.table.snapshot().version == version, "nothing is committed"
    os.utime(path, (time.time() - 11,) * 2)
    assert (taken(queue, source).sent, taken(queue, source).passed_over) == (1, ())


def test_a_file_that_changes_while_it_is_read_is_not_taken(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.sources import files

    path = put(tmp_path / "a", "1\n")
    read = readers.records

    def slow(*given: Any) -> Any:
        yield from read(*given)
        put(path, "1\n2\n")

    monkeypatch.setattr(files, "records", slow)
    with pytest.raises(SourceError, match=r"was changed while it was read.*Nothing was sent"):
        taken(queue, Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE))
    assert not queue.rows()
    monkeypatch.undo()
    assert taken(queue, Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)).sent == 2


def test_limits_stop_at_files(queue: Queue, tmp_path: Path) -> None:
    for number in range(4):
        os.utime(put(tmp_path / f"{number}", f"{number}\n{number}"), (number, number))
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)
    assert taken(queue, source, limit=3).sent == 4
    assert taken(queue, Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE, max_files=1)).sent == 2
    assert taken(queue, source).sent == 2
    assert bodies(queue) == ["0", "0", "1", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize(("ending", "packed"), [(".gz", gzip.compress), (".zst", lambda raw: pa.compress(raw, "zstd", asbytes=True))])
def test_compressed_files_are_read_as_what_they_contain(queue: Queue, tmp_path: Path, ending: str, packed: Callable[[bytes], bytes]) -> None:
    if ending == ".zst":
        with pa.output_stream(str(tmp_path / "a.json.zst"), compression="zstd") as out:
            out.write(b"1\n2\n")
    else:
        put(tmp_path / f"a.json{ending}", packed(b"1\n2\n"))
    assert taken(queue, Files(f"{tmp_path}/*.json{ending}", settled=AT_ONCE)).sent == 2


@pytest.mark.parametrize(
    ("format_", "name", "content"),
    [
        ("parquet", "a.parquet", b"PAR1 no"),
        ("json", "a.json.gz", gzip.compress(b"1\n" * 1_000)[:-12]),
        ("json", "b.json.gz", b"no gzip at all"),
        ("csv", "a.csv.gz", b"a,b\n1,2\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message_with_its_error_and_others_go_on(
    queue: Queue, tmp_path: Path, format_: str, name: str, content: bytes
) -> None:
    put(tmp_path / name, content)
    good = tmp_path / {"json": "z.json.gz"}.get(format_, f"z.{format_}")
    match format_:
        case "parquet":
            pq.write_table(pa.table({"a": [1]}), good)
        case "csv":
            put(good, "a,b\n1,2\n")
        case _:
            put(good, gzip.compress(b"1\n"))
    source = Files(f"{tmp_path}/*", format=format_, settled=AT_ONCE)
    result = taken(queue, source)
    assert result.malformed == 1
    assert f"{tmp_path / name} cannot be read as {format_}: " in errors(queue)[0]
    assert queue.rows(SubQueue.POISON)[result.sent]["body"] == content
    assert bodies(queue)[-1] in {'{"a":1}', '{"a":"1","b":"2"}', "1"}
    assert taken(queue, source).sent == 0


def test_a_file_that_cannot_be_opened_is_told_once_and_taken_when_it_can_be(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.sources import files

    def refused(*_given: object) -> Any:
        raise PermissionError(13, "Permission denied")

    put(tmp_path / "a", "1\n")
    put(tmp_path / "b", "2\n")
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE, max_files=1)
    monkeypatch.setattr(files, "records", refused)
    monkeypatch.setattr(Files, "_can_be_opened", lambda *_: False)
    assert taken(queue, source).malformed == 1
    assert errors(queue) == [f"{tmp_path}/a cannot be opened: Permission denied. It is taken when this user may read it"]
    monkeypatch.undo()
    monkeypatch.setattr(Files, "_can_be_opened", lambda *_: False)
    assert taken(queue, source).sent == 1, "the other one"
    told = taken(queue, source)
    assert (told.sent, told.passed_over) == (0, (f"1 file cannot be opened by this user: {tmp_path}/a",)), "it is malformed once"
    monkeypatch.undo()
    assert taken(queue, source).sent == 1
    assert bodies(queue) == ["2", "1"]


def test_an_error_of_the_disk_is_no_fault_of_the_file(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.sources import files

    def broken(*_given: object) -> Any:
        raise OSError(5, "Input/output error")

    put(tmp_path / "a", "1\n")
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)
    monkeypatch.setattr(files, "records", broken)
    with pytest.raises(SourceError, match=r"a of source .* cannot be read: .*Input/output error. Nothing was sent"):
        taken(queue, source)
    monkeypatch.undo()
    assert taken(queue, source).sent == 1
    assert bodies(queue) == ["1"]


def test_rows_have_columns_and_a_row_of_a_wrong_length_is_malformed(queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "a.csv", 'id,carrier\n007,VX\n1,2,3\n,"a ""b"",\nc"\n')
    mapping = ColumnMapping(group="carrier")
    assert taken(queue, Files(f"{tmp_path}/*.csv", format="csv", settled=AT_ONCE), mapping=mapping).malformed == 1
    assert bodies(queue) == ['{"id":"007","carrier":"VX"}', '{"id":null,"carrier":"a \\"b\\",\\nc"}']
    assert [row["group_id"] for row in queue.rows(SubQueue.MAIN).values()] == ["VX", 'a "b",\nc']
    assert bodies(queue, SubQueue.POISON) == ["1,2,3"]


def test_whole_files_are_bodies(queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "a.xml", "<a>\n</a>")
    assert taken(queue, Files(f"{tmp_path}/*.xml", format="whole", settled=AT_ONCE)).sent == 1
    assert bodies(queue) == ["<a>\n</a>"]


def test_a_backfill_is_between_two_instants_of_change(queue: Queue, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        os.utime(put(tmp_path / f"{day}", f"{day}"), (day * 86_400,) * 2)
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)
    assert taken(queue, source, between=("1970-01-02", "1970-01-04T00:00:00+00:00")).sent == 2
    assert taken(queue, source).sent == 3
    with pytest.raises(InputError, match="'soon' is no instant"):
        taken(queue, source, between=("soon", "1970-01-04"))


def test_a_folder_that_is_not_there_is_an_error_and_one_that_is_empty_is_nothing(queue: Queue, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"folder .*/nowhere of source .* cannot be listed: No such file"):
        taken(queue, Files(f"{tmp_path}/nowhere/*.json"))
    assert taken(queue, Files(f"{tmp_path}/*.none")).sent == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("pattern", "landing/*.json"),
        ("pattern", " "),
        ("pattern", "/landing/caf\udce9/*.json"),
        ("format", "xml"),
        ("rewritten", "yes"),
        ("max_files", 0),
        ("max_files", "3"),
        ("settled", 10),
        ("settled", timedelta(seconds=-1)),
        ("name", 7),
        ("name", "caf\udce9"),
        ("delimiter", ";"),
        ("encoding", "cp037"),
        ("header", "id,name"),
    ],
)
def test_wrong_settings_are_named(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=setting):
        Files(**{"pattern": "/landing/*.json", setting: value})  # type: ignore[arg-type]  # that is the test


def test_zeros_behind_a_gzip_file_are_no_record(queue: Queue, tmp_path: Path) -> None:
    """As ``gzip`` reads it: blocks of a tape or of a disk are filled up with them."""
    put(tmp_path / "a.json.gz", gzip.compress(b"1\n") + gzip.compress(b"2\n") + bytes(512))
    put(tmp_path / "b.json.gz", gzip.compress(b"3\n") + b"\0\0garbage")

    assert taken(queue, Files(f"{tmp_path}/*.json.gz", settled=AT_ONCE)).sent == 4
    assert bodies(queue) == ["1", "2", "3"]
    assert "Not a gzipped file" in errors(queue)[0]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("/landing/*.parquet", "parquet"),
        ("/landing/**/*.csv.gz", "csv"),
        ("s3://bucket/lake/orders.parquet/*", "parquet"),
        ("/landing/*.CSV", "csv"),
        ("/landing/*.jsonl", "json"),
        ("/landing/2026-12/*", "json"),
        ("/landing.csv/*.txt", "json"),
        ("/landing/part-*", "json"),
    ],
)
def test_the_pattern_says_the_format_where_none_is_given(pattern: str, wanted: str) -> None:
    assert Files(pattern).format == wanted
    assert Files(pattern, format="lines").format == "lines"


def test_an_ending_that_is_not_read_needs_a_format() -> None:
    with pytest.raises(SettingError, match=r"\.xml in pattern='/landing/\*\.xml'"):
        Files("/landing/*.xml")
    assert Files("/landing/*.xml", format="whole").format == "whole"
    assert Files("/landing.zip/*").format == "json", "a folder's name decides about no file"


def test_its_text_tells_no_secret_and_it_travels() -> None:
    source = Files("s3://bucket/*.json", storage_options={"aws_secret_access_key": "hush"})
    assert "hush" not in repr(source)
    assert pickle.loads(pickle.dumps(source)) == source


def test_how_csv_is_written_is_said(queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "a.csv", b"# export\nid;name\n1;caf\xe9\n")
    source = Files(f"{tmp_path}/*.csv", format="csv", delimiter=";", encoding="latin-1", header=2, settled=AT_ONCE)
    assert taken(queue, source).malformed == 0
    assert bodies(queue) == ['{"id":"1","name":"caf\u00e9"}']
    assert pickle.loads(pickle.dumps(source)) == source


def test_each_broken_record_is_malformed_with_its_line_and_the_file_is_taken(queue: Queue, tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", b'id,name\n1,a,\n2,b\n3,"c\n4,\xe9\n5,e\n')
    source = Files(f"{tmp_path}/*.csv", format="csv", settled=AT_ONCE)
    assert (taken(queue, source).malformed, taken(queue, source).sent) == (3, 0)
    assert bodies(queue) == ['{"id":"2","name":"b"}', '{"id":"5","name":"e"}']
    rows = [row for _, row in sorted(queue.rows(SubQueue.POISON).items())]
    assert [(row["body"], row["message_id"], dict(row["properties"])["file.line"]) for row in rows] == [  # type: ignore[call-overload]  # pairs
        (b"1,a,", f"{path}:2", "2"),
        (b'3,"c', f"{path}:4", "4"),
        (b"4,\xe9", f"{path}:5", "5"),
    ]


# Names ----------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_reached_under_several_names_is_taken_once(queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.txt", "1")
    (tmp_path / "in" / "0.txt").symlink_to("a.txt")
    (tmp_path / "in" / "hard.txt").hardlink_to(tmp_path / "in" / "a.txt")
    (tmp_path / "in0").symlink_to("in")
    result = taken(queue, Files(f"{tmp_path}/in*/*.txt", format="lines", settled=AT_ONCE))
    assert result.sent == 1
    assert queue.rows()[1]["message_id"] == f"{tmp_path}/in/a.txt:1"
    names = f"{tmp_path}/in/0.txt, {tmp_path}/in/hard.txt, {tmp_path}/in0/0.txt, ..."
    assert result.passed_over == (f"5 names lead to files that have other names, too: {names}",)


def test_a_link_that_comes_after_its_file_was_taken_is_not_taken(queue: Queue, tmp_path: Path) -> None:
    source = Files(f"{tmp_path}/in/*", format="lines", settled=AT_ONCE)
    put(tmp_path / "in" / "b", "1")
    assert taken(queue, source).sent == 1
    (tmp_path / "in" / "a").hardlink_to(tmp_path / "in" / "b")
    result = taken(queue, source)
    assert (result.sent, result.passed_over) == (0, (f"1 name leads to a file that has another name, too: {tmp_path}/in/a",))


def test_two_stars_follow_no_link(queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "in" / "deep" / "a.txt", "1")
    put(tmp_path / "in" / ".hidden" / "b.txt", "2")
    put(tmp_path / "beside" / "c.txt", "3")
    (tmp_path / "in" / "deep" / "up").symlink_to("..")
    (tmp_path / "in" / "beside").symlink_to(tmp_path / "beside")
    result = taken(queue, Files(f"{tmp_path}/in/**/*.txt", format="lines", settled=AT_ONCE))
    assert (bodies(queue), result.passed_over) == (["1"], ())
    assert taken(queue, Files(f"{tmp_path}/in/**", format="lines", settled=AT_ONCE)).sent == 1
    assert taken(queue, Files(f"{tmp_path}/in/*/*.txt", format="lines", settled=AT_ONCE)).sent == 2


def test_a_folder_that_is_no_utf_8_makes_a_column_as_the_name_of_the_file_says(queue: Queue, tmp_path: Path) -> None:
    for day in (b"\xe9", b"caf\xc3\xa9"):
        put(tmp_path / "day=1" / "a.csv", b"n\n1\n")
        (tmp_path / "day=1").rename(os.fsdecode(os.fsencode(tmp_path) + b"/day=" + day))
    assert taken(queue, Files(f"{tmp_path}/**/*.csv", format="csv", settled=AT_ONCE)).sent == 2
    assert sorted(bodies(queue)) == ['{"n":"1","day":"%E9"}', '{"n":"1","day":"caf\u00e9"}']


def test_spark_reads_no_name_that_is_no_utf_8(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.orc")).write_bytes(b"ORC")
    found = taken(queue, Files(f"{tmp_path}/*.orc", format="orc", settled=AT_ONCE))
    assert (found.sent, [sentence for sentence in found.passed_over if "no UTF-8" in sentence and "caf%E9.orc" in sentence]) == (
        0,
        [*found.passed_over],
    )


@pytest.mark.parametrize("name", [b"caf\xe9", b"line\nend"])
@pytest.mark.parametrize("format_", ["json", "whole", "csv", "parquet"])
def test_a_name_that_is_no_utf_8_is_taken_once_under_a_uri(queue: Queue, tmp_path: Path, name: bytes, format_: str) -> None:
    put(tmp_path / "a", b"n\n1")
    if format_ == "parquet":
        pq.write_table(pa.table({"n": [1]}), tmp_path / "a")
    (tmp_path / "a").rename(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    put(tmp_path / "b", b"[\n1,2")
    source = Files(f"{tmp_path}/*", format=format_, settled=AT_ONCE)
    assert taken(queue, source).sent >= 2
    assert taken(queue, source).sent == 0
    if format_ == "whole":
        uri = f"file://{tmp_path}/" + {b"caf\xe9": "caf%E9", b"line\nend": "line%0Aend"}[name]
        assert {row["message_id"] for row in queue.rows().values()} == {uri, f"{tmp_path}/b"}


def test_links_that_lead_nowhere_concern_no_other_file(queue: Queue, tmp_path: Path) -> None:
    put(tmp_path / "a", "1")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "broken").symlink_to("nothing")
    result = taken(queue, Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE))
    reasons = f"{tmp_path}/broken (No such file or directory), {tmp_path}/circle (Too many levels of symbolic links)"
    assert (result.sent, result.passed_over) == (1, (f"2 names lead to no file: {reasons}",))


def test_a_file_that_vanishes_concerns_no_other_file(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.sources import files

    put(tmp_path / "a", "1")
    gone = put(tmp_path / "b", "2")
    put(tmp_path / "c", "3")
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)
    listed = files._entries

    def then_removed(*given: Any) -> Any:
        found = listed(*given)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(files, "_entries", then_removed)
    assert (taken(queue, source).sent, bodies(queue)) == (2, ["1", "3"]), "after the list"
    monkeypatch.undo()
    os.utime(put(tmp_path / "d", "4"), (1, 1))
    put(tmp_path / "e", "5")
    read = readers.records

    def removed_before(name: str, *given: Any) -> Any:
        (tmp_path / "d").unlink(missing_ok=True)
        yield from read(name, *given)

    monkeypatch.setattr(files, "records", removed_before)
    assert (taken(queue, source).sent, bodies(queue)) == (1, ["1", "3", "5"]), "after a look at it"
    monkeypatch.undo()
    put(tmp_path / "d", "4")
    assert taken(queue, source).sent == 1, "it was not taken"


def test_a_date_in_the_future_does_not_hide_a_file(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a", "1")
    os.utime(path, (time.time() + 86_400,) * 2)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 60)
    result = taken(queue, Files(f"{tmp_path}/*", format="lines"))
    assert (result.sent, result.passed_over) == (0, (f"1 file is dated in the future: {path}; later takes look again",))
    monkeypatch.setattr(time, "time", lambda: now + 60)
    assert taken(queue, Files(f"{tmp_path}/*", format="lines")).sent == 1


def test_a_folder_that_may_not_be_listed_is_said(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    put(tmp_path / "in" / "closed" / "a", "1")
    put(tmp_path / "in" / "open" / "b", "2")
    scan = os.scandir

    def refused(path: Any) -> Any:  # a folder that is removed meanwhile is listed by its descriptor
        if str(path).endswith("/closed"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    result = taken(queue, Files(f"{tmp_path}/in/**/*", format="lines", settled=AT_ONCE))
    assert (bodies(queue), result.passed_over) == (["2"], (f"1 folder cannot be listed: {tmp_path}/in/closed (Permission denied)",))


@pytest.mark.parametrize(
    "pattern", ["*", "**", "**/*", "*/*", "d/*.txt", "d/a.txt", "[ad]/*", "**/d/*", "*/**/*.txt", "d**", "**/**/*.txt", "?/./a.txt"]
)
def test_a_pattern_matches_what_glob_matches(tmp_path: Path, pattern: str) -> None:
    for name in ("a", "b.txt", "d/a.txt", "d/e/b.txt", "d/e/f/c.txt", ".h/x.txt", "d/.k", "e/d/y"):
        put(tmp_path / name, name)
    found = Files(f"{tmp_path}/{pattern}", format="lines", settled=AT_ONCE).plan(Position(), limit=None)
    names = [] if found is None else [name for batch in found.batches() for name in batch["message_id"].to_pylist()]
    wanted = {name for name in glob.glob(f"{tmp_path}/{pattern}", recursive=True) if Path(name).is_file()}  # noqa: PTH207
    assert {name.removesuffix(":1") for name in names if name} == wanted
    assert found is None or found.passed_over == ()


def test_dying_between_two_files_takes_neither(queue: Queue, tmp_path: Path, at_point: AtPoint) -> None:
    for number in range(3):
        put(tmp_path / f"{number}", f"{number}")
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)
    at_point.do("store.append.after_files", lambda: put(tmp_path / "3", "3"))
    assert taken(queue, source).sent == 3, "what came after the plan waits"
    assert taken(queue, source).sent == 1


def test_folders_make_columns_where_a_file_has_none_of_the_name(queue: Queue, tmp_path: Path) -> None:
    rows = pa.table({"id": [1]})
    for name in ("day=2026-11-29/h=01", "day=a%2Fb=c", "day=__HIVE_DEFAULT_PARTITION__/below", "id=9", "x=1/between/day=", "no"):
        (tmp_path / "in" / name).mkdir(parents=True)
        pq.write_table(rows, tmp_path / "in" / name / "rows.parquet")
    put(tmp_path / "in" / "day=07" / "rows.csv", 'id,Day\n2,own\n3,"open\n')

    taken(queue, Files(f"{tmp_path}/in/**/*.parquet", format="parquet", settled=AT_ONCE))
    taken(queue, Files(f"{tmp_path}/in/day=0*/*.csv", format="csv", settled=AT_ONCE))
    taken(queue, Files(f"{tmp_path}/in/day=07/*.csv", name="fixed", format="csv", header=["number", "name"], settled=AT_ONCE))

    assert sorted(bodies(queue)) == sorted(
        [
            '{"id":1,"day":"2026-11-29","h":"01"}',
            '{"id":1,"day":"a/b=c"}',
            '{"id":1,"day":null}',
            '{"id":1}',  # the file has the column itself
            '{"id":1,"day":""}',  # what stands above another folder is none, as in Spark
            '{"id":1}',
            '{"id":"2","Day":"own"}',
            '{"number":"id","name":"Day"}',  # the pattern names the folder
            '{"number":"2","name":"own"}',
        ]
    )
    assert all("a quote opens a cell and is never closed" in error for error in errors(queue))


@pytest.mark.parametrize("place", [".", "below"])
def test_what_writers_keep_beside_their_files_is_none(queue: Queue, tmp_path: Path, place: str) -> None:
    marks = (
        "_SUCCESS",
        "_started_123",
        "_committed_123",
        "_metadata",
        "_common_metadata",
        "_temporary/0/a.json",
        "_delta_log/0.json",
        "b.json._COPYING_",
    )
    data = ("a.json", "_data.json", "_started.json", "x_SUCCESS", "_temporary.json")
    for name in (*marks, *data):
        put(tmp_path / "in" / place / name, f'"{name}"\n')

    taken(queue, Files(f"{tmp_path}/in/**/*", settled=AT_ONCE))
    assert sorted(bodies(queue)) == sorted(f'"{name}"' for name in data)

    taken(queue, Files(f"{tmp_path}/in/{place}/_delta_log/*.json", name="log", settled=AT_ONCE))
    assert '"_delta_log/0.json"' in bodies(queue), "the pattern names it"
