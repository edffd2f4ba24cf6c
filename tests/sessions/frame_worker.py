"""A worker for the tests to kill while it searches a batch: one try of a claim, with the journals of all tries before it."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_poison.delivery.handlers import Batching
from airflow_poison.delivery.recovered import read_journals
from airflow_poison.values import fault_points
from tests.given.messages import batch_of
from tests.sessions.conftest import opened_session, policy

if TYPE_CHECKING:
    from pathlib import Path


def main(folder: Path, isolation: str, words: list[str], fault: str = "") -> None:
    """Deliver."""
    journals = sorted(folder.glob("journal*"))
    mine = folder / f"journal{len(journals):03}"
    mine.mkdir()
    if not journals:
        (folder / "worker").write_text(str(os.getpid()))

    def die(point: str) -> None:
        if point == fault:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.install(die)
    with opened_session(
        policy=policy(transaction_timeout=timedelta(seconds=60)),
        handler="tests.sessions.frame_handlers:recorded",
        journal_folder=mine,
        isolation=isolation,
        carry=read_journals(journals, timedelta(seconds=20)),
        batching=Batching("arrow"),
    ) as session:
        session.deliver(batch_of([f"{folder / 'calls'} {word}" for word in words]))
