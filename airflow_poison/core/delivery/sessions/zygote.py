"""The zygote: a small process, executed clean, that forks the children of one worker in one or two milliseconds.

It has a single thread and has imported what every child needs, so no lock of Arrow or of anybody else is held across its forks.
It reaps a child only when asked, so that a pid cannot mean another process before its session has looked. When the worker
ends, however, it kills every child with all that the child has started, and ends.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import warnings
from typing import NoReturn

from airflow_poison.core.delivery.sessions import child, platform, wire

FORK, REAP = "fork", "reap"


def main(descriptor: int, worker: int) -> NoReturn:
    """Serve the worker until it ends.

    :param descriptor: the zygote's end of the control socket.
    :param worker: the worker's pid.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Spark's daemon ignores it, and that survives exec
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which tells us
    with warnings.catch_warnings(action="ignore"):  # ours; those of handlers are shown
        child.preload()
    gc.freeze()
    control = socket.socket(fileno=descriptor)
    children: set[int] = set()
    try:
        _serve(control, platform.watch_process(worker), children)
    finally:
        for pid in children:
            platform.kill_group(pid)
        os._exit(0)


def _serve(control: socket.socket, worker: int | None, children: set[int]) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if worker is not None:
        poll.register(worker, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if worker in ready and control.fileno() not in ready:
            return
        try:
            (request, pid), descriptors = wire.receive(control)
            wire.send(control, _fork(control, worker, descriptors, children) if request == FORK else _reap(pid, children))
        except wire.PeerGoneError:
            return


def _fork(control: socket.socket, worker: int | None, descriptors: list[int], children: set[int]) -> int:
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            if worker is not None:
                os.close(worker)
            child.main(zygote, *descriptors)
        finally:
            os._exit(70)  # only by an error of ours
    for descriptor in descriptors:
        os.close(descriptor)
    children.add(pid)
    return pid


def _reap(pid: int, children: set[int]) -> int:
    """Return the wait status of a child that has ended; whatever it left in its group ends with it."""
    platform.kill_group(pid)
    _, status = os.waitpid(pid, 0)
    children.discard(pid)
    return status


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
