"""``send --source`` and ``reset-position``: what they take, print, and refuse."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.store import open_store
from tests.given.command import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODULE = """
from datetime import timedelta
from airflow_poison import Files

bookings = Files("{landing}/*.json", settled=timedelta(0), name="bookings")
number = 7
"""


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def put(landing: Path, name: str, text: str) -> None:
    """Put a file down that nobody has touched for a minute."""
    path = landing / name
    path.write_text(text)
    os.utime(path, (time.time() - 60,) * 2)


@pytest.fixture
def poison(capsys: pytest.CaptureFixture[str], tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"feeds_{tmp_path.name}.py").write_text(MODULE.format(landing=landing))

    def told(line: str) -> Ran:
        return run(capsys, f"{line} --store {tmp_path}/store")

    return told


def answer(ran: Ran) -> dict[str, Any]:
    assert (ran.err, ran.code) == ("", 0)
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_a_pattern_of_files_is_taken_as_far_as_it_is_new(poison: Callable[..., Ran], landing: Path, tmp_path: Path) -> None:
    put(landing, "a.json", '{"carrier": "VX"}\n{"carrier"\n')
    ran = poison(f"send orders --source {landing}/*.json --system Msmq4 --map group=carrier")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        f"Took 1 file, 29 bytes of {landing}/*.json: 2 messages to orders.",
        "Malformed, in poison with their errors: 1 message.",
        f"Now: {ran.out.splitlines()[2].removeprefix('Now: ')}",
    ]
    table = open_store(str(tmp_path / "store")).open("orders")
    assert [
        (row["group_id"], row["body"]) for file in table.snapshot().files if file.sub_queue == "main" for row in table.read(file).to_pylist()
    ] == [("VX", b'{"carrier": "VX"}')]
    assert poison(f"send orders --source {landing}/*.json").out.startswith(f"Nothing is new in {landing}/*.json.\n")


def test_what_is_passed_over_is_printed(poison: Callable[..., Ran], landing: Path) -> None:
    put(landing, "a.json", "1\n")
    line = f"send orders --source {landing}/*.json --system Msmq4"
    poison(line)
    (landing / "a.json").write_text("1\n2\n")
    os.utime(landing / "a.json", (1, 1))
    assert poison(line).out.splitlines()[:2] == [
        f"Nothing is new in {landing}/*.json.",
        f"Passed over: 1 file was rewritten since it was taken: {landing}/a.json; rewritten='take' takes it again.",
    ]
    assert len(answer(poison(f"{line} -o json"))["passed_over"]) == 1


def test_how_csv_of_a_pattern_is_written_is_said(poison: Callable[..., Ran], landing: Path) -> None:
    put(landing, "a.csv", "x;1,5\n")
    ran = poison(f"send orders --source {landing}/*.csv --delimiter ; --header name,price --system Msmq4 -o json")
    assert answer(ran)["malformed"] == 0


def test_a_source_of_a_module_is_taken_and_shown_and_begins_anew(poison: Callable[..., Ran], landing: Path, tmp_path: Path) -> None:
    put(landing, "a.json", "1\n2\n")
    put(landing, "b.json", "3\n")
    source = f"--source feeds_{tmp_path.name}:bookings"
    first = answer(poison(f"send orders {source} --max-messages 1 --system Msmq4 -o json"))
    assert (first["sent"], first["source"], first["malformed"]) == (2, "bookings", 0)
    assert answer(poison(f"send orders {source} -o json"))["sent"] == 1
    shown = poison("show orders")
    assert "source bookings: 2 files" in shown.out
    [known] = answer(poison("show orders -o json"))["sources"]
    assert (known["source"], known["kind"], known["messages"]) == ("bookings", "Files", 3)

    unknown = poison("reset-position orders bokings")
    assert (unknown.code, unknown.out) == (1, "Nothing was taken from bokings into orders; known are: bookings.\n")
    assert answer(poison("reset-position orders bookings --reason 'sent again' -o json")) == {"queue": "orders", "source": "bookings", "reset": True}
    assert answer(poison(f"send orders {source} -o json"))["sent"] == 3


def test_a_send_key_takes_once(poison: Callable[..., Ran], landing: Path) -> None:
    put(landing, "a.json", "1\n")
    line = f"send orders --source {landing}/*.json --send-key today"
    assert poison(f"{line} --system Msmq4").code == 0
    put(landing, "b.json", "2\n")
    assert poison(line).out.startswith("An earlier send with this key has taken 1 message from ")
    assert answer(poison(f"{line} --resend -o json"))["sent"] == 1


def test_a_backfill_takes_what_lies_between(poison: Callable[..., Ran], landing: Path) -> None:
    put(landing, "a.json", "1\n")
    assert answer(poison(f"send orders --source {landing}/*.json --system Msmq4 --backfill 2013-01-01..2100-01-01 -o json"))["sent"] == 1
    assert answer(poison("show orders -o json"))["sources"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("one --source {landing}/*.json", "--source: expected alone; what is sent comes from BODY, from --file or from a source."),
        ("--source {landing}/*.json --group g", "--group: the same for every message is not for sources; map columns with --map."),
        ("--source {landing}/*.json --max-messages none", "--max-messages none: expected a whole number"),
        ("--source {landing}/*.json --backfill 2013", "--backfill 2013: expected FROM..TO, two places in the source's own words."),
        ("--source {landing}/*.json --backfill 2013-13..2014", "'2013-13' is no instant; expected ISO 8601"),
        ("--source {landing}/*.json --format xml", "--format xml: expected one of"),
        ("--source {landing}/*.json --format avro", "Spark alone reads such files, in place. Receive with source="),
        ("--source {module}:bookings --format json", "--format: expected with a pattern of files; a source that is named says itself what it reads."),
        ("--source {module}:bookings --header 2", "--header: expected with a pattern of files; a source that is named says itself what it reads."),
        ("--source {landing}/*.json --delimiter ;", "delimiter=';' is not allowed; allowed: with format='csv'; files of json have none."),
        ("--source {module}:number", "expected a source (Files, Kafka, DeltaChanges, Jdbc …), not int."),
        ("--source {module}:bokings", "has no 'bokings'. Correct the name, or define it there."),
        ("--source bookings", "--source bookings: expected MODULE:NAME, for example shop.feeds:bookings"),
        ("--source in/*.json", "or a pattern of files by their whole path, such as /"),
        ("--source {landing}/no/*.json", "Nothing was sent."),
        ("one --max-messages 1", "--max-messages: expected with --source."),
        ("one --backfill a..b", "--backfill: expected with --source."),
    ],
)
def test_what_is_given_wrongly_is_named_and_nothing_is_sent(poison: Callable[..., Ran], landing: Path, tmp_path: Path, words: str, says: str) -> None:
    put(landing, "a.json", "1\n")
    assert poison("send orders zero --system Msmq4").code == 0
    ran = poison(f"send orders {words.format(landing=landing, module=f'feeds_{tmp_path.name}')}")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert answer(poison("show orders -o json"))["sub_queues"]["main"]["messages"] == 1


def test_a_reset_is_an_event_with_who_and_why(poison: Callable[..., Ran], landing: Path) -> None:
    put(landing, "a.json", "1\n")
    poison(f"send orders --source {landing}/*.json --system Msmq4")
    poison(f"reset-position orders {landing}/*.json --reason 'sent again'")
    [event] = [each for each in answer(poison("history orders -o json"))["events"] if each["event"] == "POSITION_RESET"]
    assert event["details"]["why"] == "sent again"
    assert event["details"]["who"].startswith("shell:")
