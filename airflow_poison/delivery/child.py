"""The child process of a server session: loads the handler, then delivers batch after batch until its parent says goodbye."""

from __future__ import annotations

import faulthandler
import importlib
import mmap
import os
import pickle
import pkgutil
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_poison.delivery import platform, printed, wire
from airflow_poison.delivery.batches import Calls
from airflow_poison.delivery.journal import Section
from airflow_poison.delivery.printed import LastOutput
from airflow_poison.delivery.verdicts import failure_of
from airflow_poison.delivery.wire import (
    BROKEN,
    DONE,
    NOT_FOUND,
    NOT_WRITTEN,
    READY,
    SEVERAL,
    UNLOAD,
    Call,
    Called,
    ChildReport,
    Handed,
    Load,
    Setup,
    Task,
    map_slot,
)
from airflow_poison.delivery.work import Endpoint
from airflow_poison.rules.decisions import Counts
from airflow_poison.values.errors import HandlerNotFoundError, ServerSessionError
from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from airflow_poison.dialogs.services import Service

TRACEBACKS = 2  # faulthandler writes here
_NOTHING_TO_SAY = (Called(None), Handed())


def preload() -> None:
    """Import in the zygote what every child needs; what is imported there costs a restart nothing."""
    rules = importlib.import_module("airflow_poison.rules")
    for name in (
        *(f"{rules.__name__}.{module.name}" for module in pkgutil.iter_modules(rules.__path__)),
        "airflow_poison.values.clock",
        "airflow_poison.delivery.stage",
        "pyarrow.compute",
        "pyarrow.ipc",
        "cloudpickle",
        "json",
        "traceback",
        "linecache",
        "subprocess",
    ):
        importlib.import_module(name)


def main(zygote: int, *descriptors: int) -> NoReturn:
    """Run the child after the fork.

    :param descriptors: its own: the socket, the pipe for what it prints, the journal, its log, the file of the last output, and, where rows land
        that the handler returns, the file for those.
    """
    control, printed, journal, log, last_output, *rows = descriptors
    platform.die_with_parent()
    if os.getppid() != zygote:
        os._exit(0)
    with suppress(PermissionError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard in (1, 2):
        os.dup2(printed, standard)
    os.close(printed)
    sock = socket.socket(fileno=control)
    code = 0
    try:
        at = [-1]
        last = LastOutput(last_output, at)
        os.close(last_output)
        _Child(sock, journal, log, at, last, rows[0] if rows else -1).serve()
    except wire.PeerGoneError:
        pass
    except platform.BrokenProcessError as error:  # another child goes on
        code = 70
        with suppress(OSError):
            os.write(TRACEBACKS, f"{error}\n".encode())
    except ServerSessionError as error:
        code = _last_words(sock, ChildReport(NOT_WRITTEN, str(error)))
    except BaseException as error:  # noqa: BLE001  (the last frame of this process)
        failure = failure_of(error)
        code = _last_words(sock, ChildReport(BROKEN, f"{failure.type}: {failure.text}\n{failure.trace}"))
    _flush()
    os._exit(code)


def _last_words(sock: socket.socket, report: ChildReport) -> int:
    with suppress(Exception):
        wire.send(sock, report)
    return 70


class _Child:
    def __init__(self, sock: socket.socket, journal: int, log: int, at: list[int], last: LastOutput, rows: int) -> None:  # noqa: PLR0917
        self._sock, self._journal, self._log, self._at, self._last, self._rows = sock, journal, log, at, last, rows
        self._words: memoryview | None = None

    def serve(self) -> None:
        """Set up, then deliver until the parent goes."""
        setup, _ = wire.receive(self._sock)
        try:
            endpoint = self._set_up(setup)
        except HandlerNotFoundError as error:
            wire.send(self._sock, ChildReport(NOT_FOUND, str(error)))
            return
        os.register_at_fork(after_in_child=self._leave)
        wire.send(self._sock, ChildReport(READY))
        while True:
            asked, descriptors = wire.receive(self._sock)
            match asked:
                case Task():
                    wire.send(self._sock, self._deliver(asked, descriptors[0], endpoint))
                case Load():
                    self._serve_calls(descriptors, endpoint, asked.services)

    def _set_up(self, setup: Setup) -> Endpoint:
        sys.path[:] = setup.path
        os.environ.clear()
        os.environ.update(setup.environment)
        if setup.folder is not None:
            with suppress(OSError):
                os.chdir(setup.folder)
        faulthandler.enable(TRACEBACKS)
        printed.capture(self._at, self._last)
        endpoint = Endpoint(pickle.loads(setup.carried), self._log, self._rows)  # noqa: S301  (our own bytes)
        endpoint.at, endpoint.last = self._at, self._last
        return endpoint

    def _deliver(self, task: Task, descriptor: int, endpoint: Endpoint) -> ChildReport:
        batch = read_batch(descriptor)
        self._last.begin_batch(batch)
        section = Section(self._journal, *task.section)
        self._words = section.words
        try:
            halted = endpoint.deliver(batch, section)
        finally:
            self._words = None
        endpoint.at[0] = -1
        _flush()
        return ChildReport(DONE, halted=halted, not_landed=endpoint.take_not_landed())

    def _serve_calls(self, descriptors: list[int], endpoint: Endpoint, services: Mapping[str, Service] | None) -> None:
        """Call the handler with messages of one batch, each when it is asked for, until the batch is put away."""
        stream, slot = descriptors
        batch = read_batch(stream)
        calls, taken = Calls(endpoint, batch, services), map_slot(slot)
        os.close(slot)
        self._last.begin_batch(batch)
        while True:
            number, row, abort_count, move_count = wire.receive_numbers(self._sock)
            if row == UNLOAD:
                return
            more: Any = wire.answer(self._sock) if row == SEVERAL or services is not None else None
            note = partial(taken.__setitem__, 0, number)
            answer = calls.several(more, note) if row == SEVERAL else calls.one(Call(row, Counts(abort_count, move_count), more), note)
            self._at[0] = -1
            _flush()
            if answer in _NOTHING_TO_SAY:
                wire.send_returned(self._sock)
            else:
                wire.send(self._sock, answer)

    def _leave(self) -> None:
        """Take the session away from a process that the handler has forked: it may neither count nor answer."""
        self._last.leave()
        if self._words is not None:
            self._words.release()
        self._sock.close()
        for descriptor in (self._journal, self._log, self._rows):
            with suppress(OSError):
                os.close(descriptor)


def _flush() -> None:
    """Send what is still in the streams; a handler may have closed or replaced them."""
    for name in ("stdout", "stderr"):
        with suppress(Exception):
            getattr(sys, name).flush()


def read_batch(descriptor: int) -> pa.RecordBatch:
    """Map the Arrow stream behind a descriptor, without a copy, and close the descriptor."""
    try:
        mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    with pa.ipc.open_stream(pa.py_buffer(mapping)) as reader:
        return reader.read_next_batch()
