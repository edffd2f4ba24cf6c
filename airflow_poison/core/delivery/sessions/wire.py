"""Pickled messages with descriptors over a local stream socket; both ends are ours."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
_MAX_DESCRIPTORS = 4


class PeerGoneError(Exception):
    """The other end is closed."""


def send(sock: socket.socket, message: object, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message. Raises PeerGoneError."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    try:
        socket.send_fds(sock, [_LENGTH.pack(len(body))], list(descriptors))
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


def _exactly(sock: socket.socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = sock.recv(min(size, 1 << 20))
        if not piece:
            raise PeerGoneError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
