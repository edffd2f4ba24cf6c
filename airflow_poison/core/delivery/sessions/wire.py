"""Pickled messages with descriptors over a local stream socket; both ends are ours.

What is said for every delivery is not pickled: a call is a few numbers, and that its handler returned is an empty message.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
_MAX_DESCRIPTORS = 5
NUMBERS = struct.Struct("=4i")
_EMPTY = _LENGTH.pack(0)


class Returned:
    """What an empty message says."""


RETURNED = Returned()


class PeerGoneError(Exception):
    """The other end is closed."""


def send(sock: socket.socket, message: object, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message. Raises PeerGoneError."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    head = _LENGTH.pack(len(body))
    if not descriptors:
        _send_bytes(sock, head + body)  # at once: whoever has begun to read never waits for one that was stopped in between
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
