"""``Files`` of a folder: each once, late ones, rewritten ones, compressed ones, those that cannot be read. Those of a bucket: tests/store/s3."""

from __future__ import annotations

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

from airflow_poison.core.errors import InputError, SettingError, SourceError
from airflow_poison.core.mapping import ColumnMapping
from airflow_poison.core.passes.take import positions, take
from airflow_poison.core.schema import SubQueue
from airflow_poison.core.sources.files import Files
from airflow_poison.testing.sources import SourceContract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_poison.core.passes.take import TakeResult
    from tests.store.points import AtPoint
    from tests.unit.passes.given import Queue

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
    put(tmp_path / "a", "1\n2")
    assert (taken(queue, ignoring).sent, taken(queue, taking).sent) == (0, 2)


def test_a_file_that_is_still_written_waits(queue: Queue, tmp_path: Path) -> None:
    source = Files(f"{tmp_path}/*", format="lines")
    path = put(tmp_path / "a", "1")
    assert taken(queue, source).sent == 0
    os.utime(path, (time.time() - 11,) * 2)
    assert taken(queue, source).sent == 1


def test_a_file_that_changes_while_it_is_read_is_not_taken(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.core.sources import files

    path = put(tmp_path / "a", "1\n")
    read = files._READERS["lines"]

    def slow(name: str, here: Path) -> Any:
        yield from read(name, here)
        put(path, "1\n2\n")

    monkeypatch.setattr(files, "_READERS", {"lines": slow})
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
        ("csv", "a.csv", b"a,a\n1,2\n"),
        ("csv", "b.csv", b"caf\xe9,b\n1,2\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message_with_its_error_and_others_go_on(
    queue: Queue, tmp_path: Path, format_: str, name: str, content: bytes
) -> None:
    put(tmp_path / name, content)
    good = tmp_path / f"z{Path(name).suffix}" if format_ != "json" else tmp_path / "z.json.gz"
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
    from airflow_poison.core.sources import files

    def refused(*_given: object) -> Any:
        raise PermissionError(13, "Permission denied")

    put(tmp_path / "a", "1\n")
    put(tmp_path / "b", "2\n")
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE, max_files=1)
    monkeypatch.setattr(files, "_READERS", {"lines": refused})
    monkeypatch.setattr(files, "_can_be_opened", lambda _path: False)
    assert taken(queue, source).malformed == 1
    assert errors(queue) == [f"{tmp_path}/a cannot be opened: Permission denied. It is taken when this user may read it"]
    monkeypatch.undo()
    monkeypatch.setattr(files, "_can_be_opened", lambda _path: False)
    assert taken(queue, source).sent == 1, "the other one"
    assert taken(queue, source).sent == 0, "told once"
    monkeypatch.undo()
    assert taken(queue, source).sent == 1
    assert bodies(queue) == ["2", "1"]


def test_an_error_of_the_disk_is_no_fault_of_the_file(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_poison.core.sources import files

    def broken(*_given: object) -> Any:
        raise OSError(5, "Input/output error")

    put(tmp_path / "a", "1\n")
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)
    monkeypatch.setattr(files, "_READERS", {"lines": broken})
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
    [("pattern", "landing/*.json"), ("pattern", " "), ("format", "avro"), ("rewritten", "yes"), ("max_files", 0)],
)
def test_wrong_settings_are_named(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=setting):
        Files(**{"pattern": "/landing/*.json", setting: value})  # type: ignore[arg-type]  # that is the test


def test_its_text_tells_no_secret_and_it_travels() -> None:
    source = Files("s3://bucket/*.json", storage_options={"aws_secret_access_key": "hush"})
    assert "hush" not in repr(source)
    assert pickle.loads(pickle.dumps(source)) == source


def test_dying_between_two_files_takes_neither(queue: Queue, tmp_path: Path, at_point: AtPoint) -> None:
    for number in range(3):
        put(tmp_path / f"{number}", f"{number}")
    source = Files(f"{tmp_path}/*", format="lines", settled=AT_ONCE)
    at_point.do("store.append.after_files", lambda: put(tmp_path / "3", "3"))
    assert taken(queue, source).sent == 3, "what came after the plan waits"
    assert taken(queue, source).sent == 1
