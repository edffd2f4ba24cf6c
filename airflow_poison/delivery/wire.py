"""The protocol between a worker and the child of a server session: pickled messages with descriptors over a local stream socket; both ends are ours.

The messages for every delivery are not pickled: a call is a few numbers, and that its handler returned is an empty message.
"""

from __future__ import annotations

import mmap
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from airflow_poison.dialogs.acts import Change
    from airflow_poison.dialogs.services import Service
    from airflow_poison.dialogs.transaction import BegunDelivery
    from airflow_poison.rules.decisions import Counts
    from airflow_poison.values.failures import Failure

_LENGTH = struct.Struct(">I")
_MAX_DESCRIPTORS = 6
NUMBERS = struct.Struct("=4i")
_EMPTY = _LENGTH.pack(0)
NOT_FOUND, BROKEN, NOT_WRITTEN, READY, DONE = "not found", "broken", "not written", "ready", "done"


class CallReturned:
    """What an empty message says."""


RETURNED = CallReturned()


class PeerGoneError(Exception):
    """The other end is closed."""


def send(sock: socket.socket, message: object, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message. Raises PeerGoneError."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    head = _LENGTH.pack(len(body))
    if not descriptors:
        _send_bytes(sock, head + body)  # at once: a reader never waits for a writer that was stopped in between
        return
    try:
        socket.send_fds(sock, [head], list(descriptors))
        sock.sendall(body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise PeerGoneError from error


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """Wait for one message; return it with its descriptors, which are closed on exec. Raises PeerGoneError."""
    try:
        head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, _MAX_DESCRIPTORS)
        if not head:
            raise PeerGoneError
        head += _exactly(sock, _LENGTH.size - len(head))
        body = _exactly(sock, _LENGTH.unpack(head)[0])
    except (ConnectionResetError, TimeoutError) as error:
        raise PeerGoneError from error
    return pickle.loads(body), descriptors  # noqa: S301  (our own bytes, over a socket without a name)


def answer(sock: socket.socket) -> Any:
    """Wait for one message that comes without descriptors. Raises PeerGoneError."""
    try:
        head = _exactly(sock, _LENGTH.size)
        if head == _EMPTY:
            return RETURNED
        body = _exactly(sock, _LENGTH.unpack(head)[0])
    except ConnectionResetError as error:
        raise PeerGoneError from error
    return pickle.loads(body)  # noqa: S301  (our own bytes, over a socket without a name)


def send_returned(sock: socket.socket) -> None:
    """Send the empty message."""
    _send_bytes(sock, _EMPTY)


def send_numbers(sock: socket.socket, *numbers: int) -> None:
    """Send four numbers. Raises PeerGoneError."""
    _send_bytes(sock, NUMBERS.pack(*numbers))


def receive_numbers(sock: socket.socket) -> tuple[int, ...]:
    """Wait for four numbers. Raises PeerGoneError."""
    try:
        return NUMBERS.unpack(_exactly(sock, NUMBERS.size))
    except ConnectionResetError as error:
        raise PeerGoneError from error


def _send_bytes(sock: socket.socket, content: bytes) -> None:
    try:
        sock.sendall(content)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise PeerGoneError from error


def _exactly(sock: socket.socket, size: int) -> bytes:
    first = sock.recv(min(size, 1 << 20))
    if len(first) == size:
        return first
    if not first:
        raise PeerGoneError
    pieces = [first]
    size -= len(first)
    while size:
        piece = sock.recv(min(size, 1 << 20))
        if not piece:
            raise PeerGoneError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Setup:
    """The first settings of a child, in plain values: nothing else can be unpickled before the import path is set.

    :param carried: the pickled ``StageJob``.
    """

    path: list[str]
    environment: dict[str, str]
    folder: str | None
    carried: bytes


@dataclass(frozen=True, slots=True)
class Task:
    """One batch to deliver; the Arrow stream comes as a descriptor."""

    section: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Load:
    """A batch whose messages will be called for one by one, instead of the one before.

    Two descriptors come with it: the Arrow stream, and the file where the child writes the number of the call that it has taken.

    :param services: of the queue; None: it has no conversations. With them each call is followed by how its delivery begins in its
        conversation, None for a message that is in none.
    """

    services: Mapping[str, Service] | None = None


class Call(NamedTuple):
    """One delivery of a message of the loaded batch, with the counts that it sees.

    :param begun: how it begins in its conversation; None for a message that is in none.
    """

    row: int
    counts: Counts
    begun: BegunDelivery | None = None


UNLOAD, SEVERAL = -1, -2
"""In place of a row: no more calls for this batch; a ``BatchCall`` follows."""


class Handed(NamedTuple):
    """What came of a delivery of several messages.

    :param named: the failures of messages of which it is known that they are to blame, by place in the call.
    :param rows: what all of them together, or each of them, has returned, as it travels.
    """

    failure: Failure | None = None
    named: Mapping[int, Failure] = {}
    rows: bytes | Sequence[bytes] = b""


class BatchCall(NamedTuple):
    """One delivery of several messages of the loaded batch, with the counts that each sees."""

    rows: list[int]
    counts: list[Counts]


@dataclass(frozen=True, slots=True)
class ChildReport:
    """What a child says: ready, done, or what went wrong with us (never with a message).

    :param not_landed: how many deliveries returned rows although no output is declared.
    """

    what: str
    text: str = ""
    halted: bool = False
    not_landed: int = 0


@dataclass(frozen=True, slots=True)
class Called:
    """What came of a call that did not simply return.

    :param change: what its handler did in its conversation.
    :param rows: that its handler returned, as they travel.
    """

    failure: Failure | None
    change: Change | None = None
    rows: bytes = b""


SLOT_BYTES = 4


def map_slot(descriptor: int) -> memoryview:
    """Map the file where a child writes what it has taken."""
    return memoryview(mmap.mmap(descriptor, SLOT_BYTES)).cast("i")
