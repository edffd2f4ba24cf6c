"""The readers of files: what they make of well-formed files, of broken ones, and of any bytes at all. Nothing of a file is left out."""

from __future__ import annotations

import bz2
import csv
import errno
import gzip
import io
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_poison.sources import readers, text_lines
from airflow_poison.sources.readers import Layout, records
from airflow_poison.sources.source import ERROR
from airflow_poison.sources.text_lines import Lines
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

NAME = "/landing/a"
of_each = Lines.texts


def read(content: bytes, format_: str, **layout: Any) -> tuple[list[Any], list[tuple[bytes, str]]]:
    """Return the good records of a file (rows or bodies), and the malformed ones with their errors."""
    return sorted_out(records(NAME, Layout(format_, **layout), io.BytesIO(content)))


def read_file(path: Path, format_: str) -> tuple[list[Any], list[tuple[bytes, str]]]:
    return sorted_out(records(str(path), Layout(format_), path))


def sorted_out(batches: Any) -> tuple[list[Any], list[tuple[bytes, str]]]:
    good, bad = list[Any](), list[tuple[bytes, str]]()
    for batch in batches:
        for row in batch.to_pylist():
            if ERROR not in row:
                good.append(list(row.values()))
            elif row[ERROR] is None:
                good.append(row["body"])
            else:
                bad.append((row["body"], row[ERROR]))
    return good, bad


def at_most(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have bodies be at most so many bytes."""
    for module in (readers, readers, text_lines):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", size)


# CSV ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "good"),
    [
        (b"a,b\n1,2\n", [["1", "2"]]),
        (b"a,b\r\n1,2\r\n", [["1", "2"]]),
        (b"a,b\r1,2\r3,4", [["1", "2"], ["3", "4"]]),
        (b'a,b\n"1\r\n2\r3\n",x\n', [["1\r\n2\r3\n", "x"]]),
        (b'a,b\n,""\n', [[None, ""]]),
        (b'a,b\n1,\n2,""\n3,\n', [["1", None], ["2", ""], ["3", None]]),
        (b"a,b\nNA,null\nnan,NULL\n", [["NA", "null"], ["nan", "NULL"]]),
        (b'a,b\n"say ""hi""",x"y\n', [['say "hi"', 'x"y']]),
        (b"\n \na,b\n\n1,2\n\n", [["1", "2"]]),
        (b"\xef\xbb\xbfa\n1\n", [["1"]]),
        ('\ufeffa,b\n\u00e9,"x\ny"\n'.encode("utf-16-le"), [["\u00e9", "x\ny"]]),
        ("\ufeffa,b\n\u0100\u0a41\u0d41,2\n".encode("utf-16-be"), [["\u0100\u0a41\u0d41", "2"]]),
        ("\ufeffa,b\n\u0a41\u0100\u0d41\u0100,2\n".encode("utf-16-le"), [["\u0a41\u0100\u0d41\u0100", "2"]]),
        ("\ufeffa\r\n\U0001f600\r\n".encode("utf-32-le"), [["\U0001f600"]]),
        (b"a,b\n", []),
        (b"", []),
        (b"a\n1\0\x0b\x0c\x1c\xc2\x85\n", [["1\0\x0b\x0c\x1c\x85"]]),
    ],
)
def test_rows_of_csv(content: bytes, good: list[list[str | None]]) -> None:
    assert read(content, "csv") == (good, [])


@pytest.mark.parametrize(
    ("content", "layout", "good"),
    [
        (b"a;b\n1,5;2\n", {"delimiter": ";"}, [["1,5", "2"]]),
        (b"a\t\n\t\n", {"delimiter": "\t"}, [[None, None]]),
        (b"caf\xe9\n\xe9\n", {"encoding": "latin-1"}, [["\u00e9"]]),
        (b"a\n\x80\n", {"encoding": "CP1252"}, [["\u20ac"]]),
        ("a\n\u00e9\n".encode("utf-16-le"), {"encoding": "utf-16"}, [["\u00e9"]]),
        (b"\xef\xbb\xbfa\n\xc3\xa9\n", {"encoding": "latin-1"}, [["\u00e9"]]),
        (b"# export, of today\n\na,b\n1,2\n", {"header": 3}, [["1", "2"]]),
        (b"1,2\n", {"header": ["a", "b"]}, [["1", "2"]]),
    ],
)
def test_how_a_csv_file_is_written_can_be_said(content: bytes, layout: dict[str, Any], good: list[list[str]]) -> None:
    assert read(content, "csv", **layout) == (good, [])


CELLS = "delimiter= and header= say how the file is written"


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (
            b"a,b\n1,2,3\n4,5\n6\n",
            [["4", "5"]],
            [(b"1,2,3", 2, f"it has 3 cells, the header 2; {CELLS}"), (b"6", 4, f"it has 1 cell, the header 2; {CELLS}")],
        ),
        (b"# note\na,b\n", [], [(b"a,b", 2, f"it has 2 cells, the header 1; {CELLS}")]),
        (b'a,b\n1,"x\n2,y\n3,z\n', [["2", "y"], ["3", "z"]], [(b'1,"x', 2, "a quote opens a cell and is never closed")]),
        (b'a,b\n1,"x\n2,y\n3,"z"\n', [["2", "y"], ["3", "z"]], [(b'1,"x', 2, "text stands behind the quote that closes a cell")]),
        (
            b'a,b\n1,"x\n2,y"z\n3,y"z\n',
            [["3", 'y"z']],
            [
                (b'1,"x', 2, "text stands behind the quote that closes a cell"),
                (b'2,y"z', 3, "a quote stands within a cell, and an open quote before it was not understood"),
            ],
        ),
        (b'a,b\n1,"2" \n3,4', [["3", "4"]], [(b'1,"2" ', 2, "text stands behind the quote that closes a cell")]),
        (b"a,b\n1,\xe9\n2,x\n", [["2", "x"]], [(b"1,\xe9", 2, "byte 3 is no utf-8; encoding= names another one")]),
        (b'a,b\n"1\n\xe9",2\n2,x\n', [["2", "x"]], [(b'"1\n\xe9",2', 2, "byte 1 is no utf-8; encoding= names another one")]),
        (b"a,b,a\n1,2,3\n", [], [(b"1,2,3", 2, "the header, line 1, names column 'a' twice: a, b, a")]),
        (b"a,poison.error\n1,2\n", [], [(b"1,2", 2, "the header, line 1, names column 'poison.error', which is reserved")]),
        (
            b"\xe9\n1\n",
            [],
            [
                (b"\xe9", 1, "byte 1 is no utf-8; encoding= names another one"),
                (b"1", 2, "the header, line 1, cannot be read: byte 1 is no utf-8; encoding= names another one"),
            ],
        ),
        (
            b'"a\n1\n',
            [],
            [
                (b'"a', 1, "a quote opens a cell and is never closed"),
                (b"1", 2, "the header, line 1, cannot be read: a quote opens a cell and is never closed"),
            ],
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_malformed_and_its_neighbours_are_taken(
    content: bytes, good: list[list[str]], bad: list[tuple[bytes, int, str]]
) -> None:
    assert read(content, "csv") == (good, [(body, f"line {number} of {NAME}: {error}") for body, number, error in bad])


def test_a_header_behind_the_end_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\n1\n")
    [batch] = records(NAME, Layout("csv", header=3), path)
    assert sorted_out([batch]) == ([], [(b"a\n1\n", f"{NAME} cannot be read as csv: it has 2 lines, and header=3 names a line behind them.")])


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff"])
@pytest.mark.parametrize("format_", ["csv", "json", "lines"])
def test_a_file_of_a_byte_order_mark_alone_has_no_records(format_: str, mark: bytes) -> None:
    assert read(mark, format_) == ([], [])


@pytest.mark.parametrize("format_", ["csv", "json", "lines"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xff\xfe"])
def test_a_line_longer_than_a_body_is_malformed_with_its_first_bytes(monkeypatch: pytest.MonkeyPatch, format_: str, end: str, mark: bytes) -> None:
    at_most(monkeypatch, 100)
    monkeypatch.setattr(text_lines, "_BLOCK", 16)
    codec = "utf-16-le" if mark else "utf-8"
    lines = ["1", "2" * 100, "3" * 101, "4", "5" * 500, "6"]
    content = mark + "".join(line + end for line in ["1", *lines]).encode(codec)
    good, bad = read(content, format_)
    assert [b"".join(map(str.encode, row)) if format_ == "csv" else row for row in good][-4:] == [b"1", b"2" * 100, b"4", b"6"]
    width = len("1".encode(codec))
    assert [(body, error.partition("; ")[0]) for body, error in bad] == [
        (("3" * 101).encode(codec)[: 100 * width], f"line 4 of {NAME}: it has {(101 + len(end)) * width:,} bytes"),
        (("5" * 500).encode(codec)[: 100 * width], f"line 6 of {NAME}: it has {(500 + len(end)) * width:,} bytes"),
    ]


def test_a_record_of_csv_longer_than_a_body_is_malformed_in_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    at_most(monkeypatch, 100)
    good, bad = read(b'a\n"x\n' + b"y\n" * 40 + b"z" * 60 + b'"\n1\n', "csv")
    assert good == [*[["y"]] * 40, ["1"]]
    assert [body for body, _ in bad] == [b'"x', b"z" * 60 + b'"']
    monkeypatch.undo()
    monkeypatch.setattr(readers, "_RECORD_LINES", 10)
    assert read(b'a\n"x\n' + b"y\n" * 9 + b'"\n1\n', "csv")[0] == [*[["y"]] * 9, ["1"]]


def the_partition(content: bytes) -> list[tuple[bytes, list[str | None] | None]]:
    """Return a CSV file as the records that it has by the rules, sign by sign: the bytes of each, and its cells; None: it cannot be read."""
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
    made, at, doubtful = list[tuple[bytes, list[str | None] | None]](), 0, 0
    while at < len(lines):
        taken, cells, swallowed = one_record(lines, at, doubtful=at < doubtful)
        doubtful = max(doubtful, at + swallowed)
        made.append((b"".join(lines[at : at + taken]), cells))
        at += taken
    return made


def one_record(  # noqa: C901, PLR0912  (sign by sign)
    lines: Sequence[bytes], at: int, *, doubtful: bool
) -> tuple[int, list[str | None] | None, int]:
    cells, cell, state, used = list[str | None](), "", "begin", 0
    while at + used < len(lines):
        text = lines[at + used].decode("utf-8", "surrogateescape")
        used += 1
        for place, sign in enumerate(text):
            if state == "quoted":
                if sign == '"':
                    state = "quote"
                else:
                    cell += sign
            elif state == "quote" and sign == '"':
                cell, state = cell + '"', "quoted"
            elif sign in "\r\n" and not text[place:].strip("\r\n"):
                break
            elif state == "quote" and sign != ",":
                return 1, None, used
            elif sign == ",":
                cells.append(cell if state == "quote" else cell or None)
                cell, state = "", "begin"
            elif state == "begin" and sign == '"':
                state = "quoted"
            elif sign == '"' and doubtful:
                return 1, None, used
            else:
                cell, state = cell + sign, "text"
        if state != "quoted":
            return used, [*cells, cell if state == "quote" else cell or None], used
    return 1, None, used


CSV_LIKE = st.lists(st.sampled_from([b"a", b",", b",", b'"', b'"', b'""', b"\n", b"\n", b"\r\n", b"\r", b"\xc3\xa9", b"\xe9", b" ", b"\0"])).map(
    b"".join
)


@given(st.one_of(CSV_LIKE, st.binary()))
@example(b'"\na\n""\n"')
@example(b'x\n"a\n"b\n"\n')
def test_any_bytes_are_conserved_as_csv(content: bytes) -> None:
    if content[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return
    partition = the_partition(content)
    assert b"".join(line for line, _ in partition) == content.removeprefix(b"\xef\xbb\xbf")
    wanted_good, wanted_bad = list[Any](), list[bytes]()
    for line, cells in partition:
        if line.strip(b"\r\n") or not cells or cells[0] == "":
            readable = cells is not None and not any("\udc80" <= sign <= "\udcff" for cell in cells for sign in cell or "")
            if readable and cells is not None and len(cells) == 2:
                wanted_good.append(cells)
            else:
                wanted_bad.append(line)
    good, bad = read(content, "csv", header=["a", "b"])
    assert good == wanted_good
    assert [body for body, _ in bad] == [without_end(line) for line in wanted_bad]


def without_end(line: bytes) -> bytes:
    return line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line.removesuffix(b"\r")


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=width, max_size=width))
    ),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([",", ";", "\t", "|"]),
)
def test_well_formed_csv_has_the_cells_that_were_written(rows: list[list[str]], quoting: int, end: str, delimiter: str) -> None:
    written = io.StringIO(newline="")
    if quoting == csv.QUOTE_MINIMAL and end != "\r\n":  # Python leaves the other line end without quotes
        rows = [[cell.replace("\r", "").replace("\n", "") for cell in row] for row in rows]
    writer = csv.writer(written, quoting=quoting, lineterminator=end, delimiter=delimiter)  # type: ignore[arg-type]  # an int that it knows
    names = [f"c{number}" for number in range(len(rows[0]) if rows else 1)]
    writer.writerows([names, *rows])
    good, bad = read(written.getvalue().encode(), "csv", delimiter=delimiter)
    assert (good if quoting == csv.QUOTE_ALL else [[cell or "" for cell in row] for row in good], bad) == (rows, [])


def test_blocks_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    content = 'a,b\r\n1,"x\r\n\u00e9"\r\n\r\n2,\u20ac\r3,4\n5,6,7\n'.encode()
    whole = read(content, "csv")
    for size in range(1, len(content)):
        monkeypatch.setattr(text_lines, "_BLOCK", size)
        monkeypatch.setattr(text_lines, "_TEXT", size)
        assert read(content, "csv") == whole, size


CELLS_OF_CSV = st.sampled_from(
    [b"", b"a", b"b c", b'"q"', b'""', b'"x,y"', b'"x\ny"', b'"x""y"', b'""""', b"\xc3\xa9", b"\0", b" ", b"null", b"\xef\xbb\xbfz"]
)
ODD_ROWS = st.sampled_from([b"", b"a", b"a,b,c", b'a,"b', b'a,b"c', b'"a"b,c', b"\xe9,b", b",", b"a\rb,c", b"a,b\r"])
ROWS_OF_CSV = st.one_of(st.tuples(CELLS_OF_CSV, CELLS_OF_CSV).map(b",".join), st.tuples(CELLS_OF_CSV, CELLS_OF_CSV).map(b",".join), ODD_ROWS)


@given(
    rows=st.lists(ROWS_OF_CSV),
    end=st.sampled_from([b"\n", b"\n", b"\r\n"]),
    last=st.sampled_from([b"", b"a,b", b'"a']),
    block=st.sampled_from([8, 40, 1 << 20]),
    width=st.sampled_from([1, 2, 2]),
)
@example(rows=[b'"",a', b',""'], end=b"\n", last=b"", block=40, width=2)
@example(rows=[b"a,b,c", b"a", b"", b"a,b"], end=b"\n", last=b"", block=40, width=2)
@example(rows=[b"a\rb,c", b"a,b\r"], end=b"\n", last=b"", block=40, width=2)
@example(rows=[b"aaa,bbb", b"\xef\xbb\xbfz,a"], end=b"\n", last=b"", block=8, width=2)
@example(rows=[b'a,b"c', b'"a"b,c"'], end=b"\n", last=b"", block=40, width=2)
@example(rows=[], end=b"\n", last=b'"x\ny",b\rc,d', block=40, width=2)
def test_rows_that_are_read_at_once_are_what_each_is_alone(rows: list[bytes], end: bytes, last: bytes, block: int, width: int) -> None:
    content = end.join([*(row if width > 1 else row.partition(b",")[0] for row in rows), last])
    header = ["a", "b"][:width]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "_TEXT", block)
        patch.setattr(readers, "ROWS", 3)
        at_once = read(content, "csv", header=header)
        patch.setattr(text_lines, "_TEXT", 1 << 20)
        patch.setattr(Lines, "texts", lambda lines, **_: of_each(lines, joined=False))
        assert read(content, "csv", header=header) == at_once


def test_a_line_without_quotes_that_is_no_row_leaves_the_others_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers.CsvRows, "_one_by_one", lambda _: iter(()))
    assert read(b"a,b\n1,2\n\n3\n4,\n" + b'"5","6, ""7"""\n', "csv") == ([], []), "the last line has quotes, and one before is no row"
    assert read(b"a,b\n1,2\n\n3\n4,\n", "csv")[0] == [["1", "2"], ["4", None]]
    assert read(b'a,b\n1,2\n"5","6, ""7"""\n', "csv")[0] == [["1", "2"], ["5", '6, "7"']]
    assert read(b'a,b\n1,2\n"5","6\n\n', "csv")[0] == [["1", "2"]], "a cell goes on"


def test_batches_are_small_and_rows_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "ROWS", 3)
    content = b"n,t\n" + b"".join(b"%d,%s\n" % (number, b'""' if number % 5 == 0 else b"") for number in range(20))
    batches = list(records(NAME, Layout("csv"), io.BytesIO(content)))
    assert max(batch.num_rows for batch in batches) == 3
    assert sorted_out(batches) == ([[str(number), "" if number % 5 == 0 else None] for number in range(20)], [])


# Bodies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (b'{"a": 12345678901234567.89, "b": 1.10}\n', [b'{"a": 12345678901234567.89, "b": 1.10}'], []),
        (b'\xef\xbb\xbf1\r\n\n \t\n {"a":1,"a":2} \n2', [b"1", b' {"a":1,"a":2} ', b"2"], []),
        (b"NaN\n1\n-Infinity\n", [b"1"], [(b"NaN", 1), (b"-Infinity", 3)]),
        (b'"\xe9"\n1\n', [b"1"], [(b'"\xe9"', 1)]),
        (b'{"a":1}\r{"b"\r\r3\r', [b'{"a":1}', b"3"], [(b'{"b"', 2)]),
        (b'{"a":\r1}\n2\n', [b'{"a":\r1}', b"2"], []),
        ('\ufeff1\n"\u00e9"\r\n'.encode("utf-16-be"), [b"1", '"\u00e9"'.encode()], []),
        ("\ufeff1\n2".encode("utf-16-le")[:-1], [b"1"], [(b"2", 2)]),
        (b"[" * 100_000 + b"\n1\n", [b"1"], [(b"[" * 100_000, 1)]),
        (b"1 2\n3\n", [b"3"], [(b"1 2", 1)]),
    ],
)
def test_json_lines_keep_their_bytes(content: bytes, good: list[bytes], bad: list[tuple[bytes, int]]) -> None:
    found, wrong = read(content, "json")
    assert (found, [body for body, _ in wrong]) == (good, [body for body, _ in bad])
    assert [error.partition(" of ")[0] for _, error in wrong] == [f"line {number}" for _, number in bad]


ELEMENTS = [b'{\n    "a": 1.10,\n    "l": [\n      {"x": 1}\n    ]\n  }', b'{\n    "a": bad,\n    "l": [\n      {"x": 2}\n    ]\n  }', b'{"a": 3}']
PRETTY = b"[\n  " + b",\n  ".join(ELEMENTS) + b"\n]\n"


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (b'[\n{"a": 1.10},\n{"a": 1, "a": 2}\n]\n', [b'{"a": 1.10}', b'{"a": 1, "a": 2}'], []),
        (b'[{"a": 1},\n {"a": 2}]', [b'{"a": 1}', b'{"a": 2}'], []),
        (b'{\n  "a": 1\n}\n{\n  "a": 2\n}\n', [b'{\n  "a": 1\n}', b'{\n  "a": 2\n}'], []),
        ('\ufeff[\r\n  {"a": "\u00e9"},\r\n  2\r\n]\r\n'.encode("utf-16-le"), ['{"a": "\u00e9"}'.encode(), b"2"], []),
        (b'[\n{"a": 1},\n{"a": bad},\n{"a": "\xff"},\n{"a": 4}\n]\n', [b'{"a": 1}', b'{"a": 4}'], [(b'{"a": bad}', 2), (b'{"a": "\xff"}', 3)]),
        (PRETTY, [ELEMENTS[0], ELEMENTS[2]], [(ELEMENTS[1], 2)]),
        (
            b'[\n{\n"a": 1\n},\n{\n"l": [\n{"x": bad}\n]\n},\n{\n"a": 3\n}\n]',
            [b'{\n"a": 1\n}'],
            [(b'{\n"l": [\n{"x": bad}\n]\n},\n{\n"a": 3\n}\n]', 2)],
        ),
        (b'[{"a": 1},\n{"a": 2},', [b'{"a": 1}', b'{"a": 2}'], [(b"[", 3)]),
        (b'[{"a": 1},\n{"a": 2},\n3\n', [b'{"a": 1}', b'{"a": 2}', b"3"], [(b"[", 4)]),
        (b'[\n{"a": 1},\n{"a"', [b'{"a": 1}'], [(b'{"a"', 2)]),
        (b"[\n]\n", [], []),
        (b'[\n{"a": 1}\n{"a": 2}\n]\n', [b'{"a": 1}', b'{"a": 2}'], []),
    ],
)
def test_a_document_of_json_is_its_values_and_a_bad_one_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, content: bytes, good: list[bytes], bad: list[tuple[bytes, int]]
) -> None:
    if b"x" * 60 in content:
        at_most(monkeypatch, 50)
    found, wrong = read(content, "json")
    assert (found, [body for body, _ in wrong]) == (good, [body for body, _ in bad])
    assert [error.partition(" of ")[0] for _, error in wrong] == [f"value {number}" for _, number in bad]


@pytest.mark.parametrize(
    ("content", "good"),
    [
        (b'{"a":\n{"a": 2}\n{"a": 3}\n', [b'{"a": 2}', b'{"a": 3}']),
        (b'{"a":\n"b" 2\n{"a": 3}\n', [b'{"a": 3}']),
        (b"[1,\n[2]\n[3]\n", [b"[2]", b"[3]"]),
        (b'[{"a": 1}, {"a": 2}]\n', [b'[{"a": 1}, {"a": 2}]']),
        (b'[{"a": 1},\n{"a": 2}', [b'{"a": 2}']),
    ],
)
def test_lines_of_which_the_first_is_cut_are_no_document(content: bytes, good: list[bytes]) -> None:
    assert read(content, "json")[0] == good


def test_a_long_file_with_the_line_ends_of_old_macs_is_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    at_most(monkeypatch, 50)
    monkeypatch.setattr(text_lines, "_BLOCK", 7)
    assert read(b"".join(b"%d\r" % number for number in range(100)), "json") == ([b"%d" % number for number in range(100)], [])


@given(st.binary())
def test_lines_keep_every_line_byte_for_byte(content: bytes) -> None:
    if content[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return
    content = content.removeprefix(b"\xef\xbb\xbf")
    good, bad = read(content, "lines")
    assert bad == []
    assert good == [line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line for line in io.BytesIO(content)]


@given(st.one_of(st.binary(), st.lists(st.sampled_from([b"1", b"{}", b"{", b"\r", b"\n", b"\r\n", b" ", b'"', b"NaN"])).map(b"".join)))
def test_any_bytes_are_conserved_as_json(content: bytes) -> None:
    if content[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return
    good, bad = read(content, "json")
    together = b"".join(sorted([*good, *(body for body, _ in bad)])).translate(None, b" \t\r\n")
    assert sorted(together) == sorted(content.removeprefix(b"\xef\xbb\xbf").translate(None, b" \t\r\n"))


LINES = [
    b"1",
    b'{"a": 1}',
    b"{",
    b"",
    b" ",
    b"NaN",
    b'"\xff"',
    b'"\xc3\xa9"',
    b'"\x01"',
    b"01",
    b"1e99999",
    b"\xef\xbb\xbf2",
    b"1" * 9,
    b'"' + b"x" * 40 + b'"',
    b"1\r2",
    b"1\r",
    b"1\r\r",
]
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])


@pytest.mark.parametrize("format_", ["json", "lines"])
@given(lines=st.lists(st.tuples(st.sampled_from(LINES), ENDS), max_size=30), last=st.sampled_from(LINES), block=st.integers(1, 90))
def test_lines_that_are_looked_at_together_are_what_each_is_alone(format_: str, lines: list[tuple[bytes, bytes]], last: bytes, block: int) -> None:
    content = b"".join(map(b"".join, lines)) + last

    def found() -> list[dict[str, Any]]:
        return [row for batch in records(NAME, Layout(format_), io.BytesIO(content)) for row in batch.to_pylist()]

    with pytest.MonkeyPatch.context() as patch:
        at_most(patch, 30)
        patch.setattr(text_lines, "_BLOCK", block)
        patch.setattr(text_lines, "ROWS", 4)
        together = found()
        patch.setattr(Lines, "bodies", lambda *_: None)
        assert together == found()


def test_latin_lines_become_utf_8() -> None:
    assert read(b"caf\xe9\n", "lines", encoding="latin-1") == (["caf\u00e9".encode()], [])
    assert read(b"caf\x81\n1\n", "json", encoding="cp1252") == (
        [b"1"],
        [(b"caf\x81", f"line 1 of {NAME}: byte 4 is no cp1252; encoding= names another one")],
    )


# Compressed, parquet, whole -------------------------------------------------------------------------------------------


def zipped(codec: Literal["zstd", "lz4"]) -> Callable[[bytes], bytes]:
    def pack(raw: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as out:
            out.write(raw)
        return sink.getvalue().to_pybytes()

    return pack


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zipped("zstd"), ".lz4": zipped("lz4")}


@pytest.mark.parametrize("ending", PACKERS)
def test_a_compressed_file_of_several_parts_is_read_whole(tmp_path: Path, ending: str) -> None:
    pack, path = PACKERS[ending], tmp_path / f"a.json{ending}"
    path.write_bytes(pack(b"1\n2") + pack(b"3\n") + pack(b"") + pack(b"4\n" * 100_000))
    assert read_file(path, "json") == ([b"1", b"23", *[b"4"] * 100_000], [])


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("format_", ["json", "lines", "csv"])
def test_what_stands_before_the_break_of_a_compressed_file_is_taken(tmp_path: Path, ending: str, format_: str) -> None:
    pack, path = PACKERS[ending], tmp_path / f"a.json{ending}"
    path.write_bytes(pack(b"11\n22\n") + pack(b"33\n44\n")[:-5])
    good, [(body, error)] = read_file(path, format_)
    first = {"csv": [["22"]]}.get(format_, [b"11", b"22"])
    assert good[: len(first)] == first
    assert body == path.read_bytes()
    why = "Compressed file ended before the end-of-stream marker was reached" if ending == ".gz" else "Truncated compressed stream"
    assert error.startswith(f"{path} cannot be read as {format_}: {why}, behind line ")
    assert error.endswith(f" {len(good)} record{'s' if len(good) > 1 else ''} before that {'were' if len(good) > 1 else 'was'} taken.")


def test_a_row_that_a_break_cuts_off_is_a_part_of_the_break(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'a,b\n1,2\n3,"x\n5,6\n', mtime=0)[:-8])
    good, [(_, error)] = read_file(path, "csv")
    assert good == [["1", "2"]]
    assert error.endswith(" 1 record before that was taken.")


def test_a_parquet_file_is_rows_and_a_broken_one_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(100)), "t": ["x"] * 100}), path, row_group_size=10)
    assert read_file(path, "parquet")[0] == [[number, "x"] for number in range(100)]
    content = path.read_bytes()
    path.write_bytes(content[:-300])
    good, [(body, error)] = read_file(path, "parquet")
    assert (good, body) == ([], content[:-300])
    assert f"{path} cannot be read as parquet: " in error


SPARK, OLD = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"


@pytest.mark.parametrize(
    ("said", "cells", "is_wrong"),
    [
        ({SPARK: b"2.4.8"}, pa.array([None, date(1500, 1, 10)]), True),
        ({SPARK: b"4.1.0", OLD: b""}, pa.array([datetime(1, 1, 3, tzinfo=UTC), None]), True),
        ({SPARK: b"2.4.8"}, pa.array([[], [{"at": datetime(1582, 10, 14, tzinfo=UTC)}]]), True),
        ({SPARK: b"2.4.8"}, pa.array([[("a", date(1500, 1, 10))], []], pa.map_(pa.string(), pa.date32())), True),
        ({SPARK: b"2.4.8"}, pa.array([date(1582, 10, 15), date(9999, 12, 31)]), False),
        ({SPARK: b"4.1.0", OLD: b""}, pa.array([datetime(1899, 12, 31, tzinfo=UTC), None]), True),
        ({SPARK: b"4.1.0", OLD: b""}, pa.array([datetime(1900, 1, 1, tzinfo=UTC), None]), False),
        ({SPARK: b"4.1.0", OLD: b"", b"org.apache.spark.timeZone": b"UTC"}, pa.array([datetime(1899, 12, 31, tzinfo=UTC), None]), False),
        ({SPARK: b"4.1.0"}, pa.array([date(1500, 1, 10), None]), False),
        ({}, pa.array([date(1500, 1, 10), None]), False),
        ({SPARK: b"2.4.8"}, pa.array(["1500-01-10", None]), False),
    ],
)
def test_dates_in_the_calendar_of_old_spark_are_no_other_dates(tmp_path: Path, said: dict[bytes, bytes], cells: Any, is_wrong: bool) -> None:  # noqa: FBT001
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "a.b": cells}).replace_schema_metadata(said), path)

    found = [row for batch in records("a.parquet", Layout("parquet"), path) for row in batch.to_pylist()]

    if is_wrong:
        [wrong] = found
        assert wrong["body"] == path.read_bytes()
        assert "column 'a.b' has dates before 1582-10-15, or instants before 1900, in the calendar of Spark before 3.0" in wrong[ERROR]
    else:
        assert [row["a.b"] for row in found] == cells.to_pylist()


@pytest.mark.parametrize(
    ("said", "number"), [({SPARK: b"3.0.3"}, 1), ({SPARK: b"4.1.0", b"org.apache.spark.legacyINT96": b""}, 1), ({SPARK: b"3.1.0"}, 2)]
)
def test_instants_of_int96_have_a_calendar_of_their_own(tmp_path: Path, said: dict[bytes, bytes], number: int) -> None:
    rows = pa.table({"at": pa.array([datetime(1500, 1, 10, tzinfo=UTC), None])}).replace_schema_metadata(said)
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)

    assert sum(batch.num_rows for batch in records("a.parquet", Layout("parquet"), tmp_path / "a.parquet")) == number


def test_two_columns_of_one_name_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    assert read_file(path, "parquet")[1][0][1] == f"{path} cannot be read as parquet: column 'a' is there twice; the columns are a, a."
    within = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(pa.table({"s": within}), path)
    assert read_file(path, "parquet")[1][0][1] == f"{path} cannot be read as parquet: two fields of a struct are named 'a'."
    pq.write_table(pa.table({ERROR: ["x"]}), path)
    assert read_file(path, "parquet")[1][0][1] == f"{path} cannot be read as parquet: it has a column 'poison.error', which is reserved."


def test_a_row_of_parquet_with_text_that_is_no_utf_8_is_malformed(tmp_path: Path) -> None:
    text = pa.array([b"a", b"caf\xe9", None], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"n": [1, 2, 3], "t": text, "l": pa.array([["x"], [], None])}), tmp_path / "a.parquet")
    assert read_file(tmp_path / "a.parquet", "parquet") == (
        [[1, "a", ["x"]], [3, None, None]],
        [(b'{"n": 2, "t": {"base64": "Y2Fm6Q=="}, "l": []}', f"row 2 of {tmp_path}/a.parquet: column 't': Invalid UTF8 sequence")],
    )


def a_parquet_file() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(100)), "t": [f"text {number}" for number in range(100)]}), sink, row_group_size=20)
    return sink.getvalue()


PARQUET = a_parquet_file()


@given(st.dictionaries(st.integers(0, len(PARQUET) - 1), st.integers(0, 255), min_size=1, max_size=3), st.integers(0, len(PARQUET)))
def test_a_damaged_parquet_file_raises_nothing(changes: dict[int, int], length: int) -> None:
    damaged = bytearray(PARQUET)
    for place, value in changes.items():
        damaged[place] = value
    good, bad = read(bytes(damaged), "parquet")
    assert len(good) == 100 or bad
    assert read(PARQUET[:length], "parquet")[1] or length == len(PARQUET)


def test_a_value_that_has_changed_on_the_disk_is_no_value() -> None:
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"n": [*range(40)]}),
        sink,
        row_group_size=20,
        use_dictionary=False,
        compression="none",
        write_page_checksum=True,
        write_statistics=False,
    )
    there = sink.getvalue()
    place = there.index((29).to_bytes(8, "little"))
    changed = there[:place] + b"\xff" + there[place + 1 :]

    good, [(_, why)] = read(changed, "parquet")

    assert good == read(there, "parquet")[0][:20]
    assert "CRC checksum verification failed" in why


def test_a_whole_file_is_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(b"\xff\xfea\0\r\n", "whole") == ([b"\xff\xfea\0\r\n"], [])
    assert read(b"", "whole") == ([b""], [])
    at_most(monkeypatch, 3)
    assert read(b"12345", "whole") == ([], [(b"123", f"{NAME}: it has 5 bytes; at most 3 are allowed. These are the first of them")])


# Errors, settings -----------------------------------------------------------------------------------------------------


class Failing(io.BytesIO):
    """A file whose second read fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__(b"1\n" * 10)
        self.error, self.times = error, 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.times += 1
        if self.times == 3:
            raise self.error
        return super().read(size)


@pytest.mark.parametrize("error", [RuntimeError("odd"), ValueError("odd"), MemoryError("odd"), OSError("odd"), OSError(errno.EINVAL, "odd")])
@pytest.mark.parametrize("format_", ["json", "lines", "csv"])
def test_whatever_a_library_raises_is_an_error_of_the_file(monkeypatch: pytest.MonkeyPatch, error: Exception, format_: str) -> None:
    for size in ("_BLOCK", "_TEXT"):
        monkeypatch.setattr(text_lines, size, 4)
    good, [(_, text)] = sorted_out(records(NAME, Layout(format_), Failing(error)))
    assert good == ([["1"]] * 3 if format_ == "csv" else [b"1"] * 4)
    assert "odd, behind line 4, byte 8 of its content" in text


def test_an_error_of_the_disk_is_raised() -> None:
    with pytest.raises(OSError, match="Input/output"):
        list(records(NAME, Layout("json"), Failing(OSError(errno.EIO, "Input/output error"))))


@pytest.mark.parametrize(
    ("setting", "layout"),
    [
        ("delimiter", {"delimiter": ""}),
        ("delimiter", {"delimiter": "||"}),
        ("delimiter", {"delimiter": '"'}),
        ("delimiter", {"delimiter": b","}),
        ("encoding", {"encoding": "utf-7"}),
        ("encoding", {"encoding": "cp037"}),
        ("encoding", {"encoding": "rot13"}),
        ("encoding", {"encoding": "nonsense"}),
        ("encoding", {"encoding": "unicode_escape"}),
        ("encoding", {"encoding": None}),
        ("header", {"header": False}),
        ("header", {"header": 0}),
        ("header", {"header": "id,name"}),
        ("header", {"header": []}),
        ("header", {"header": ["a", "a"]}),
        ("header", {"header": [1]}),
        ("delimiter", {"format": "json", "delimiter": ";"}),
        ("header", {"format": "lines", "header": ["a"]}),
        ("encoding", {"format": "parquet", "encoding": "latin-1"}),
        ("encoding", {"format": "orc", "encoding": "latin-1"}),
        ("format", {"format": "xml"}),
    ],
)
def test_layouts_that_no_file_has_are_named(setting: str, layout: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=setting):
        Layout(**{"format": "csv", **layout})
