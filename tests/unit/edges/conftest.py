"""A shell with a store, a folder for files and handlers, in the test's own process."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from airflow_poison import Msmq4
from airflow_poison.cli.main import main
from airflow_poison.passes.alter import declare
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable

MOVE = ("--system", "Msmq4", "--set", "ReceiveRetryCount=0", "MaxRetryCycles=0", "ReceiveErrorHandling=Move")
LONG_AGO = 1_000_000_000
POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


def a_queue() -> tuple[QueueTable, VirtualClock]:
    """Return a new queue in memory."""
    clock = VirtualClock()
    return declare(MemoryStore(), "q", POLICY, clock), clock


class Ran(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Shell:
    """Runs commands on the queues of one store.

    :param folder: the current folder, where handlers are found.
    """

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object) -> Ran:
        """Run what stands behind ``airflow poison``."""
        code: object = 0
        try:
            main([*map(str, arguments), "--store", str(self.folder / "queues")])
        except SystemExit as ended:
            code = ended.code
        out, err = self.capsys.readouterr()
        return Ran(code if isinstance(code, int) else int(code is not None), out, err)

    def file(self, name: str, content: bytes | str) -> Path:
        """Write a file that was last changed long ago."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with suppress(FileNotFoundError):
            os.utime(path, (LONG_AGO, LONG_AGO))
        return path

    def rows(self, queue: str, columns: str = "sub_queue, text, error_message") -> list[tuple[Any, ...]]:
        """Return messages of a queue by lookup id, as ``query`` prints them."""
        ran = self("query", queue, f"select {columns} from messages order by lookup_id", "--limit", "all", "--output", "json")
        assert ran.code == 0, ran.err
        return [tuple(row.values()) for row in json.loads(ran.out)["rows"]]

    def texts(self, queue: str) -> list[str]:
        """Return bodies of a queue by lookup id."""
        return [text for (text,) in self.rows(queue, "text")]

    def fail(self, queue: str) -> None:
        """Receive with a handler that fails for each message."""
        ran = self("receive", queue, "--handler", "edge_handlers:bad", "--engine", "local")
        assert ran.code == 0, ran.err


HANDLERS = """
import datetime, json, uuid

def bad(message):
    raise ValueError("no")

def echo(message):
    raise ValueError(message.text)

def land(message):
    return message.json()

def odd(message):
    values = {"took": datetime.timedelta(1), "time": datetime.time(1), "empty": {}, "uuid": uuid.UUID(int=1)}
    row = {"id": 1}
    if message.text == "case":
        row |= {"a": 1, "A": 2}
    elif message.text in values:
        row["v"] = values[message.text]
    return row
"""


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "edge_handlers.py").write_text(HANDLERS)
    sys.modules.pop("edge_handlers", None)
    yield Shell(tmp_path, capsys)
    sys.modules.pop("edge_handlers", None)
