"""Finding and ending every process of an Airflow, also of one whose starter was killed."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

import psutil

from tools.airflow.home import MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.airflow.home import Home

SESSIONS = "sessions.json"
NOTED = 100
CLOCK_SECONDS = 2.0
PATIENCE = 15.0
"""Seconds that a process is given to end by itself."""


def processes(home: Home) -> list[psutil.Process]:
    """Return every living process of this home, whoever started it; not this one."""
    return processes_of(home.mark(), _noted(home))


def processes_of(mark: str, noted: Sequence[Mapping[str, float]]) -> list[psutil.Process]:
    """Return every living process that carries a mark or is in one of the sessions noted; not this one."""
    sessions = _sessions(noted)
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _is_ours(process, mark, sessions)]


def end_left_over(home: Home) -> int:
    """End every process of this home, whoever started it; return how many there were."""
    found = processes(home)
    end(found)
    return len(found)


def end(found: Sequence[psutil.Process]) -> None:
    """Ask processes to end, and kill those that do not."""
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=PATIENCE)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=PATIENCE)


def note_session(home: Home, leader: int) -> dict[str, float]:
    """Write down a session that was just started, with what tells it from a later one of the same number; return the note."""
    note = {"leader": leader, "started": psutil.Process(leader).create_time(), "boot": psutil.boot_time()}
    (home.path / SESSIONS).write_text(json.dumps([*_noted(home), note][-NOTED:]))
    return note


def _noted(home: Home) -> list[dict[str, float]]:
    path = home.path / SESSIONS
    return list(json.loads(path.read_text())) if path.exists() else []


def _is_ours(process: psutil.Process, mark: str, sessions: frozenset[int]) -> bool:
    """Return whether a living process carries our mark or is in a session of ours (Airflow's processes write titles over their environment)."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() != psutil.STATUS_ZOMBIE:
            return os.getsid(process.pid) in sessions or process.environ().get(MARK) == mark
    return False


def _sessions(noted: Sequence[Mapping[str, float]]) -> frozenset[int]:
    """Return the sessions noted whose number cannot have passed to others: a number is not given again while its session has members."""
    return frozenset(int(entry["leader"]) for entry in noted if abs(entry["boot"] - psutil.boot_time()) < CLOCK_SECONDS and _leads(entry))


def _leads(noted: Mapping[str, float]) -> bool:
    """Whether the leader is the one written down, or is gone."""
    try:
        return bool(abs(psutil.Process(int(noted["leader"])).create_time() - noted["started"]) < CLOCK_SECONDS)
    except psutil.NoSuchProcess:
        return True
