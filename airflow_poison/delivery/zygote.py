"""The zygote: a small process, executed clean, that forks the children of one worker in one or two milliseconds.

It has a single thread and has imported what every child needs, so no lock of Arrow or of anybody else is held across its forks.
It reaps a child only when asked, so that a pid cannot mean another process before its session has looked. When the worker
ends, however, it kills every child with all that the child has started, and ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from airflow_poison.delivery import platform, wire
from airflow_poison.values.errors import ServerSessionError

FORK, REAP, PRELOAD = "fork", "reap", "preload"


def main(descriptor: int, worker: int) -> NoReturn:
    """Serve the worker until it ends.

    :param descriptor: the zygote's end of the control socket.
    :param worker: the worker's pid.
    """
    from airflow_poison.delivery import child

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Spark's daemon ignores it, and that survives exec
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends us
    with warnings.catch_warnings(action="ignore"):  # ours; warnings of handlers are shown
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
            (request, what), descriptors = wire.receive(control)
            match request:
                case "fork":
                    answer = _fork(control, worker, descriptors, children)
                case "preload":
                    answer = _preload(what)
                case _:
                    answer = _reap(what, children)
            wire.send(control, answer)
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
            from airflow_poison.delivery import child

            child.main(zygote, *descriptors)
        finally:
            os._exit(70)  # only by an error of ours
    for descriptor in descriptors:
        os.close(descriptor)
    children.add(pid)
    return pid


def _preload(module: str) -> int:
    """Import a module that starts no thread, so that no child has to; where it cannot be imported, the child says so."""
    with warnings.catch_warnings(action="ignore"), suppress(Exception):
        importlib.import_module(module)
    gc.freeze()
    return 0


def _reap(pid: int, children: set[int]) -> int:
    """Return the wait status of a child that has ended; whatever it left in its group ends with it."""
    platform.kill_group(pid)
    _, status = os.waitpid(pid, 0)
    children.discard(pid)
    return status


# The worker's side


_PATIENCE_SECONDS = 120.0
_CODE = "import sys; sys.path[:] = sys.argv[3:]; from airflow_poison.delivery.zygote import main; main(int(sys.argv[1]), int(sys.argv[2]))"


@dataclass(slots=True)
class ChildProcess:
    """A living child.

    :param control: the socket to it.
    :param ended: a descriptor that is readable once it has ended; None where the system has none (then the socket shows it).
    :param printed: the reading end of the pipe of its output.
    :param zygote: its parent; another one cannot reap it.
    """

    pid: int
    control: socket.socket
    ended: int | None
    printed: int
    zygote: _Zygote


class _Zygote:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        arguments = [sys.executable, "-c", _CODE, str(theirs.fileno()), str(os.getpid()), *sys.path]
        try:
            self._process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        except OSError as error:
            ours.close()
            raise ServerSessionError(f"Python cannot be started for server sessions: {' '.join(arguments[:2])}: {error}.") from error
        finally:
            theirs.close()
        ours.settimeout(_PATIENCE_SECONDS)
        self._control = ours

    def ask(self, request: tuple[str, int | str], descriptors: tuple[int, ...] = ()) -> int:
        wire.send(self._control, request, descriptors)
        answer, _ = wire.receive(self._control)
        return int(answer)

    def end(self) -> None:
        """Close the socket; the zygote then kills its children and ends."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
_zygotes: dict[int, _Zygote] = {}
"""By pid: a process that was forked from this one starts its own."""


def preload(module: str) -> None:
    """Have the zygote import a module that starts no thread and that takes long to import, so that no child has to. Raises ServerSessionError."""
    _ask((PRELOAD, module))


def start_child(*descriptors: int) -> ChildProcess:
    """Fork a child that has these descriptors, behind the ones of its socket and its output. Raises ServerSessionError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reading, writing = os.pipe()
    try:
        pid, zygote = _ask((FORK, 0), (theirs.fileno(), writing, *descriptors))
    except BaseException:
        ours.close()
        os.close(reading)
        raise
    finally:
        theirs.close()
        os.close(writing)
    return ChildProcess(pid, ours, platform.watch_process(pid), reading, zygote)


def reap_child(child: ChildProcess) -> int | None:
    """Close a child that has ended or is being killed, with its whole group; return its wait status, None when the zygote has gone too."""
    child.control.close()
    if child.ended is not None:
        os.close(child.ended)
    platform.kill_group(child.pid)
    with _lock:
        if _zygotes.get(os.getpid()) is not child.zygote:
            return None
        try:
            return child.zygote.ask((REAP, child.pid))
        except wire.PeerGoneError:
            _forget()
            return None


def _ask(request: tuple[str, int | str], descriptors: tuple[int, ...] = ()) -> tuple[int, _Zygote]:
    """Return what this process's zygote, started where there is none, answers."""
    with _lock:
        for _ in range(2):
            try:
                zygote = _zygotes.get(os.getpid())
                if zygote is None:
                    zygote = _zygotes[os.getpid()] = _Zygote()
                return zygote.ask(request, descriptors), zygote
            except wire.PeerGoneError:
                _forget()
    raise ServerSessionError(
        f"The process that forks server sessions ends at once, twice. Run {sys.executable} -c 'import airflow_poison.delivery.zygote' "
        "on this machine to see why; its standard error is in this worker's log."
    )


def _forget() -> None:
    zygote = _zygotes.pop(os.getpid(), None)
    if zygote is not None:
        zygote.end()


@atexit.register
def end_zygote() -> None:
    """End this process's zygote with its children; the next session starts another."""
    with _lock:
        _forget()
