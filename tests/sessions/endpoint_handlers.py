"""Handlers for the tests of endpoints: every call is written down, and the body says what else happens.

A body is ``<folder> <word> [argument]``. Handlers wait for each other by files in the folder, never by time alone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from airflow_poison.delivery.journal import STATE_MASK, MessageState, sections
from airflow_poison.values.failures import Postpone
from tests.sessions.sample_handlers import script

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.values.message import Message

PATIENCE_SECONDS = 30.0


class _Said:
    """A message whose text is what is left of the body when the folder is taken away."""

    def __init__(self, message: Message, text: str) -> None:
        self.lookup_id, self.abort_count, self.text = message.lookup_id, message.abort_count, text


def recorded(message: Message) -> None:  # noqa: C901, PLR0912, PLR0915  (one branch a word)
    """Write the call down, do what the body says, and write down that it returned."""
    folder, _, said = message.text.partition(" ")
    word, _, argument = said.partition(" ")
    _write(folder, "call", message)
    match word:
        case "meet":
            _touch(folder, f"met-{message.lookup_id}-{message.abort_count}")
            _until(lambda: len(list(Path(folder).glob("met-*"))) >= int(argument))
        case "after":
            _until((Path(folder) / f"done-{argument}").exists)
        case "after-raise":
            _until((Path(folder) / f"done-{argument}").exists)
            _touch(folder, f"done-{message.lookup_id}")
            raise ValueError(f"bad {message.lookup_id}")
        case "flood-beside":
            sys.stdout.write(f"{'y' * 9_999}\n" * 800)
            _touch(folder, f"flooded-{message.lookup_id}")
        case "after-flood":
            _until((Path(folder) / f"flooded-{argument}").exists)
        case "flood-after":
            _until((Path(folder) / f"closing-{argument}").exists)
            time.sleep(0.5)  # until whoever waits for its end does so
            sys.stdout.write(f"{'y' * 9_999}\n" * 50)
        case "close-all":
            _touch(folder, f"closing-{message.lookup_id}")
            os.closerange(3, 1_024)
            time.sleep(3600)
        case "worker" | "all" if (Path(folder) / "worker").exists():
            _until(lambda: len(written_calls(folder)) >= int(argument))
            _strike(Path(folder) / "worker", also_here=word == "all")
        case "postpone-after" if message.abort_count >= int(argument):
            raise Postpone
        case "postpone-after":
            raise ValueError(f"bad {message.lookup_id}")
        case "create":
            Path(argument).touch()
        case "sleep":
            time.sleep(float(argument))
        case "no-newline":
            sys.stdout.write("said")
        case "everything":
            _parents_worker_and_all()
        case "worker-after-halt":
            _until(lambda: len(written_calls(folder)) >= 3 and _halted(Path(folder)))
            _strike(Path(folder) / "worker", also_here=False)
        case "raise-once" if not message.abort_count:
            raise ValueError(f"bad {message.lookup_id}")
        case "hang-once" if not (Path(folder) / f"hung-{message.lookup_id}").exists():
            _touch(folder, f"hung-{message.lookup_id}")
            signal.pause()
        case _:
            script(_Said(message, said))  # type: ignore[arg-type]  # as much of a message as it reads
    _touch(folder, f"done-{message.lookup_id}")
    _write(folder, "done", message)


def read_properties(message: Message) -> None:
    """Fail with the seconds that it took to read a message's properties; the first message may take its time."""
    began = time.monotonic()
    assert message.properties
    if message.lookup_id:
        raise ValueError(str(time.monotonic() - began))


def written_calls(folder: str) -> list[str]:
    """Return a line for each call so far."""
    return [line for line in (Path(folder) / "calls").read_text().splitlines() if line.startswith("call")]


def _strike(worker: Path, *, also_here: bool) -> None:
    """Kill the worker whose pid the file has, once; and wait for one's own end."""
    pid = int(worker.read_text())
    worker.unlink()
    os.kill(pid, signal.SIGKILL)
    if also_here:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _parents_worker_and_all() -> None:
    """Kill the worker: it is the parent of the zygote that forked this process."""
    psutil.Process().parents()[1].kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _halted(folder: Path) -> bool:
    """Whether some message of the journals has halted its endpoint; read beside its writer."""
    found = [words for path in folder.glob("journal/*.journal") for _, words, _ in sections(path.read_bytes())]
    return any((words & STATE_MASK == MessageState.HALTED).any() for words in found)


def _write(folder: str, what: str, message: Message) -> None:
    with (Path(folder) / "calls").open("a") as file:
        file.write(f"{what} {message.lookup_id} {message.abort_count} {os.getpid()}\n")


def _touch(folder: str, name: str) -> None:
    (Path(folder) / name).touch()


def _until(happened: Callable[[], bool]) -> None:
    overdue = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > overdue:
            raise TimeoutError("nobody came")
        time.sleep(0.005)
