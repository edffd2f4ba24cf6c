"""Output of handlers on its way from tasks to the driver: with its level, in order, bounded, and never a reason to fail."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery import progress
from airflow_poison.delivery.progress import ForwardedLog, forwarding

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("airflow_poison.handler")


@pytest.fixture
def journals(tmp_path: Path) -> str:
    folder = tmp_path / "stage" / "journal"
    folder.mkdir(parents=True)
    return str(folder)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "airflow_poison.handler")
    return caplog


def lines(told: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in told.records]


def test_lines_arrive_once_with_their_level_and_the_name_of_their_queue(journals: str, told: pytest.LogCaptureFixture) -> None:
    driver = ForwardedLog(journals, "orders")
    with forwarding(journals, "0"):
        log.info("[message %s] one", 1)
        driver_saw_nothing_yet = lines(told) == []
        log.warning("[message 2] zwei\nlines, ü")
    driver.drain()
    driver.drain()
    assert driver_saw_nothing_yet, "in the task, the lines go to the file alone"
    assert lines(told) == [(logging.INFO, "orders [message 1] one"), (logging.WARNING, "orders [message 2] zwei\nlines, ü")]


def test_lines_arrive_while_the_task_runs_and_half_a_line_waits(journals: str, told: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    driver = ForwardedLog(journals, "orders")
    file = tmp_path / "stage" / "output" / "0-1-abc.jsonl"
    file.parent.mkdir()
    file.write_bytes(b'[20, "one"]\n[20, "tw')
    driver.drain()
    assert lines(told) == [(20, "orders one")]
    with file.open("ab") as more:
        more.write(b'o"]\n')
    driver.drain()
    assert lines(told)[1:] == [(20, "orders two")]


def test_a_later_stage_of_the_claim_does_not_tell_again(journals: str, told: pytest.LogCaptureFixture) -> None:
    with forwarding(journals, "alone"):
        log.info("before")
    ForwardedLog(journals, "orders").drain()
    assert lines(told) == []


def test_the_logger_is_as_before_afterwards(journals: str) -> None:
    before = (log.level, log.propagate, list(log.handlers))
    with pytest.raises(ValueError, match="x"), forwarding(journals, "0"):
        raise ValueError("x")
    assert (log.level, log.propagate, list(log.handlers)) == before


def test_too_much_output_is_cut_and_that_is_said_once(journals: str, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_BYTES", 200)
    with forwarding(journals, "0"):
        for _ in range(50):
            log.info("x" * 20)
    driver = ForwardedLog(journals, "orders")
    driver._read.clear()
    driver.drain()
    assert len(lines(told)) < 10
    assert lines(told)[-1] == (logging.WARNING, "orders more output of this task was cut (limit: 200 bytes)")
    assert sum("cut" in text for _, text in lines(told)) == 1


def test_a_large_file_is_read_in_pieces(journals: str, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_READ", 64)
    driver = ForwardedLog(journals, "orders")
    with forwarding(journals, "0"):
        for number in range(30):
            log.info("line %d", number)
    driver.drain()
    assert [text for _, text in lines(told)] == [f"orders line {number}" for number in range(30)]


def test_a_stage_that_was_fenced_is_not_made_again(journals: str, tmp_path: Path) -> None:
    (tmp_path / "stage").rename(tmp_path / "stage.fenced")
    with forwarding(journals, "0"):
        log.info("nobody reads this")
    assert not (tmp_path / "stage").exists()


@pytest.mark.parametrize("line", [b"no JSON", b"{}", b"[1]", b'["20", "x"]', b"[true, 1]", b"\xff\xfe"])
def test_what_no_task_has_written_is_passed_over(journals: str, told: pytest.LogCaptureFixture, tmp_path: Path, line: bytes) -> None:
    driver = ForwardedLog(journals, "orders")
    (tmp_path / "stage" / "output").mkdir()
    (tmp_path / "stage" / "output" / "x").write_bytes(line + b"\n" + json.dumps([20, "fine"]).encode() + b"\n")
    driver.drain()
    assert lines(told) == [(20, "orders fine")]
