"""``send-to-kafka``: what it refuses before it asks a broker. What it sends is tested with a real one, in tests/live/test_kafka.py."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from tests.given.command import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable

TO = "--topic letters --set bootstrap.servers=127.0.0.1:1"


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    made = declare(open_store(str(tmp_path / "store")), "orders", Msmq4(), SystemClock())
    send(made, messages_to_batches(["a", "b"]), key="given", clock=SystemClock())
    return made


@pytest.fixture
def poison(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    return lambda line: run(capsys, f"send-to-kafka orders {line} --store {tmp_path}/store")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 --yes", "--topic is missing"),
        (f"1 --take-back {TO}", "--take-back: expected no lookup ids and no options of a selection"),
        (f"1 {TO}", "--yes is missing: standard input is no terminal, so the question cannot be asked. Nothing was done; 'find' shows the messages"),
        (f"1 --ids 1 --yes {TO}", "expected lookup ids, or options of a selection, and not both"),
        (f"one --yes {TO}", "lookup id one: expected a whole number"),
        (f"1 --yes --key body {TO}", "--key body: expected one of record, lookup_id, group_id"),
        (f"1 --yes --connection letters {TO}", "--set and --connection: expected one of them"),
        ("1 --yes --topic letters --set here", "--set here: expected NAME=VALUE"),
        (f"--sub-queue transmission --yes {TO}", "sub_queue"),
        (f"--error-type '' --yes {TO}", "--error-type '': expected a text"),
    ],
)
@pytest.mark.usefixtures("table")
def test_what_is_given_wrongly_is_said_in_one_line(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, line: str, said: str) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    ran = poison(line)
    assert (ran.out, ran.code, ran.err.count("\n")) == ("", 2, 1)
    assert said in ran.err


@pytest.mark.parametrize("chosen", ["1", "2 1 2", "--sub-queue main"])
def test_who_does_not_say_yes_sends_nothing(poison: Callable[..., Ran], table: QueueTable, monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: "n"))
    version, ran = table.snapshot().version, poison(f"{chosen} {TO}")
    number = "1 message" if chosen == "1" else "2 messages"
    assert (ran.code, ran.err) == (1, f"Send {number} of orders to topic letters, for good? [y/N] nothing: was done.\n")
    assert table.snapshot().version == version


@pytest.mark.usefixtures("table")
def test_a_connection_without_airflow_is_told_as_that(poison: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.sdk", None)
    ran = poison("1 --yes --topic letters --connection letters")
    assert ran.code == 2
    assert "connection letters: without Airflow there are no connections" in ran.err
