"""Processes: how those of a campaign end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.faults.ledger import FOLDER


def ended(pid: int, until: float) -> int | None:
    """Return how a child has ended; None when it had to be ended because it took too long."""
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def end_children(where: str, variable: str = FOLDER) -> None:
    """End the processes that runs have started, and that outlive them for a moment; their environment says whose they are.

    :param variable: says in which episode they are; ``TMPDIR``: on which node.
    """
    wanted = f"{variable}={where}\0".encode()
    while found := [pid for pid in _processes() if wanted in _environment(pid)]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> bytes:
    """Return what a process was started with; nothing of one that has ended, or is somebody else's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
