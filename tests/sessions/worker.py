"""A worker for the tests to kill: delivers one batch, its handler appends each call to a file and then does what the body says."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.delivery.recovered import read_journals
from tests.given.messages import batch_of
from tests.sessions.conftest import opened_session, policy

if TYPE_CHECKING:
    from airflow_poison.values.message import Message


def recorded(message: Message) -> None:
    """Body: ``<file> <word>``; ``worker`` kills the first worker of a folder, ``all`` this child too."""
    path, _, word = message.text.partition(" ")
    with Path(path).open("a") as file:
        file.write(f"{message.lookup_id}\n")
    worker = Path(path).with_name("worker")
    match word:
        case "raise":
            raise ValueError("always")
        case "worker" | "all" if worker.exists():
            pid = int(worker.read_text())
            worker.unlink()
            os.kill(pid, signal.SIGKILL)
            if word == "all":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        case _:
            return


def main(folder: Path, isolation: str, batch_size: int, words: list[str]) -> None:
    """Deliver."""
    if not list((folder / "journal").iterdir()):
        (folder / "worker").write_text(str(os.getpid()))
    with opened_session(
        policy=policy(max_batch_size=batch_size, transaction_timeout=timedelta(seconds=60)),
        handler="tests.sessions.worker:recorded",
        journal_folder=folder / "journal",
        isolation=isolation,
        carry=read_journals([folder / "journal"]),
    ) as session:
        report = session.deliver(batch_of([f"{folder / 'calls'} {word}" for word in words]))
    print(report.words.tolist())  # noqa: T201
