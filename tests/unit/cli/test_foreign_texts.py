"""What messages, errors and names say writes no lines of its own into a terminal, and steers none."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.cli.tables import _lines
from airflow_poison.cli.terminal import block, line, one_line, report, screen, table
from airflow_poison.values.texts import visible
from tests.given.command import run

if TYPE_CHECKING:
    Capture = pytest.CaptureFixture[str]

EVIL = "x\nQueue 'q': 9 settled.\r\x1b[2J\u202e\u2066\u200b\u2028end"
SHOWN = r"x\nQueue 'q': 9 settled.\x0d\x1b[2J\u202e\u2066\u200b\u2028end"


def test_every_way_of_printing_escapes_it(capsys: Capture) -> None:
    # when
    rows = table("error")
    rows.add_row(EVIL)
    screen().print(rows)
    line(screen(), EVIL, (EVIL, "bold"))
    report("table", {}, EVIL)
    # then
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 4
    assert len(out.splitlines()) == 5
    assert one_line(EVIL) == SHOWN
    assert block("a\nb\t\x1b") == "a\nb\t\\x1b"


@pytest.mark.parametrize("before", ["show q", "remove q 1 --sub-queue", "", "show q --output"])
def test_words_that_no_command_knows_are_shown_in_one_line(capsys: Capture, before: str) -> None:
    ran = run(capsys, f"{before} {shlex.quote(EVIL)} {shlex.quote(EVIL)}")

    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    assert visible(ran.err.rstrip()) == ran.err.rstrip()


@given(st.text())
def test_a_shown_text_is_one_line_of_signs_that_can_be_seen(text: str) -> None:
    shown = visible(text)
    assert len(shown.splitlines()) <= 1
    assert all(sign.isprintable() or sign.isspace() for sign in shown)
    assert visible(shown) == shown


def test_a_difference_shows_numbers_and_names_as_they_are() -> None:
    assert _lines('{"a": 12345678901234567.89, "a": [1e400, {}], "b": {"c": 1.10}}') == [
        "{",
        '  "a": 12345678901234567.89,',
        '  "a": [',
        "    1e400,",
        "    {}",
        "  ],",
        '  "b": {',
        '    "c": 1.10',
        "  }",
        "}",
    ]


@pytest.mark.parametrize("damage", ["no control row", "garbage", "other columns"])
def test_one_queue_that_cannot_be_read_has_a_row_and_the_others_are_listed(capsys: Capture, tmp_path: Path, damage: str) -> None:
    # given
    for name in ("good", "bad"):
        run(capsys, f"send {name} 1 --system Msmq4 --store {tmp_path}")
    log = Path(tmp_path, "bad", "_delta_log")
    if damage == "other columns":
        from deltalake import write_deltalake

        shutil.rmtree(log.parent)
        write_deltalake(str(log.parent), pa.table({"n": [1]}), description="queue_verbs_only")
    elif damage == "garbage":
        for entry in log.glob("*.json"):
            entry.write_bytes(b"garbage")
    else:
        for part in Path(tmp_path, "bad").glob("sub_queue=_ctl/**/*.parquet"):
            part.write_bytes(b"garbage")
    # when
    told = run(capsys, f"list --store {tmp_path}")
    # then
    assert told.code == 2
    assert [each.split()[:2] for each in told.out.splitlines()[2:]] == [["good", "enabled"], ["bad", "unreadable"]]
    assert "bad" in told.err
