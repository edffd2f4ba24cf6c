"""A StatsD server for tests: it listens on loopback, and remembers what this package sent."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = "airflow.poison."
LARGEST = 65_536


class Listener:
    """What is sent while its block runs is read at once, so that nothing is lost for want of room."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._lines: list[str] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen until the end of the block."""
        thread = threading.Thread(target=self._listen, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._socket.sendto(b"", self._socket.getsockname())  # it reads no more
            thread.join()
            self._socket.close()

    def heard(self, queue: str) -> dict[str, list[str]]:
        """Return the values of the metrics that have this queue in their name, by the name without it, in the order in which they came."""
        found: dict[str, list[str]] = {}
        for line in tuple(self._lines):
            name, _, value = line.removeprefix(OURS).partition(":")
            metric, _, rest = name.partition(".")
            if rest == queue or rest.startswith(f"{queue}."):
                found.setdefault(f"{metric}{rest.removeprefix(queue)}", []).append(value)
        return found

    def _listen(self) -> None:
        while datagram := self._socket.recv(LARGEST):
            self._lines += [line for line in datagram.decode().splitlines() if line.startswith(OURS)]
