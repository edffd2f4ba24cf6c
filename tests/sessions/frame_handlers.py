"""Handlers of batches for the tests of server sessions; the bodies of the messages say what to do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.values.failures import PoisonRows, Postpone, Unprocessable

if TYPE_CHECKING:
    from airflow_poison.values.message import Message


def alone(message: Message) -> None:
    """Do what ``script`` does with a frame of this message alone."""
    act(message.lookup_id, message.text, message.abort_count, 1)


def script(frame: Any) -> None:
    """Do what the first body says that is not ``ok``; ``named`` names all rows that say so."""
    ids, words = frame["lookup_id"].to_pylist(), [body.decode() for body in frame["body"].to_pylist()]
    named = {number: f"bad {number}" for number, word in zip(ids, words, strict=True) if word == "named"}
    if named:
        raise PoisonRows(named)
    for number, word, aborts in zip(ids, words, frame["abort_count"].to_pylist(), strict=True):
        act(number, word, aborts, len(ids))


def act(number: int, word: str, aborts: int, together: int) -> None:
    what, _, argument = word.partition(" ")
    match what:
        case "raise" | "named":
            raise ValueError(f"bad {number}")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(60)
        case "heals" if aborts < int(argument):
            raise ValueError(f"not yet: {aborts}")
        case "heals-dead" if aborts < int(argument):
            os.kill(os.getpid(), signal.SIGKILL)
        case "unprocessable":
            raise Unprocessable(f"never {number}")
        case "postpone":
            raise Postpone
        case "crowd" if together > int(argument):
            raise MemoryError(f"{together} are too many")
        case "crowd-dies" if together > int(argument):
            os.kill(os.getpid(), signal.SIGKILL)


def recorded(frame: Any) -> None:
    """Body: ``<file> <word>``; write down which messages came together, then do what the last word says.

    ``worker`` kills the first worker of a folder, ``kill`` every process that has the message.
    """
    bodies = [body.decode().partition(" ") for body in frame["body"].to_pylist()]
    path = Path(bodies[0][0])
    with path.open("a") as file:
        file.write(" ".join(map(str, frame["lookup_id"].to_pylist())) + "\n")
    words = {word for _, _, word in bodies}
    worker = path.with_name("worker")
    if "worker" in words and worker.exists():
        pid = int(worker.read_text())
        worker.unlink()
        os.kill(pid, signal.SIGKILL)
        signal.pause()
    if "kill" in words:
        os.kill(os.getpid(), signal.SIGKILL)
    if "raise" in words:
        raise ValueError("always")


def adds(frame: Any) -> None:
    """Take bodies with a column ``n`` of numbers."""
    assert sum(frame["n"].to_pylist()) >= 1
