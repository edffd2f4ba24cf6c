"""A worker with conversations, for the tests to kill: delivers one batch and tells what became of it.

It kills itself when it reaches a point of the protocol, ``<point:number>``, for so many times; an empty point: never.
A message is ``<conversation>:<sequence>:<words>``. The first worker writes its pid down.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

from airflow_poison.delivery.recovered import read_history
from airflow_poison.values import fault_points
from tests.given.endpoints import broker
from tests.sessions.conftest import opened_session
from tests.sessions.dialogs import Seen, dialog_batch, dialog_state, end_dialog, message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.dialogs.acts import Outgoing


def main(folder: Path, isolation: str, killed_at: str, messages: list[str]) -> None:
    """Deliver, and print what became of it."""
    die_at(killed_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    print(json.dumps(deliver(folder, isolation, messages)))  # noqa: T201


def deliver(folder: Path, isolation: str, messages: list[str]) -> dict[str, Any]:
    """Deliver, in batches of three, going on where earlier tries stopped."""
    tries = sorted(folder.glob("journal-*"))
    journals = folder / f"journal-{len(tries)}"
    journals.mkdir()
    if not tries:
        (folder / "worker").write_text(str(os.getpid()))
    carry = read_history(tries).recovered
    if tries:
        carry.save(folder / "carry")
    rows, seen = [_message(folder, each) for each in messages], Seen()
    words: list[int] = []
    with opened_session(
        policy=broker(1),
        handler="tests.sessions.dialog_handlers:talk",
        journal_folder=journals,
        isolation=isolation,
        carry=folder / "carry" if tries else None,
        dialog_state=dialog_state(),
    ) as session:
        for start in range(0, len(rows), 3):
            report = session.deliver(dialog_batch(rows[start : start + 3], start))
            seen.add(report)
            words += report.words.tolist()
    return {"words": words, "seen": json.loads(seen.to_json())}


def _message(folder: Path, text: str) -> Outgoing:
    name, sequence, words = text.split(":", 2)
    if words == "EndDialog":
        return end_dialog(name, int(sequence))
    return message(name, int(sequence), f"{folder} {words}")


def die_at(killed_at: str, die: Callable[[], object]) -> None:
    wanted, _, number = killed_at.rpartition(":")
    left = [int(number or 0)]

    def reached(point: str) -> None:
        if point == wanted:
            left[0] -= 1
            if not left[0]:
                die()

    if wanted:
        fault_points.install(reached)
