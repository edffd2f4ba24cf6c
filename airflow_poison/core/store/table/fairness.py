"""Turns of senders on one table. Advisory: correctness comes from compare-and-swap, this only keeps a big sender from being overtaken for ever."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_poison.core.file_modes import PRIVATE

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE = 10.0  # seconds; a holder that stands still (a stopped process) must not stop the others
_POLL = 0.002


@contextmanager
def turn(path: str) -> Iterator[bool]:
    """Hold the lock file while the block runs, or go on without it after a while; the kernel frees it when the holder dies.

    Who may not open a lock file that another user has made goes on without it, too.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except PermissionError:
        yield False
        return
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_POLL)
        except OSError:  # a file system without locks
            return False
        else:
            return True
