"""The memory of this process while something goes on."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import psutil
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator


class Peak:
    """The largest resident memory of this process while it is watched, MiB."""

    def __init__(self) -> None:
        self.mebibytes = 0.0

    @contextmanager
    def watch(self) -> Iterator[Self]:
        """Sample fifty times a second; what earlier work had freed is given back first."""
        pa.default_memory_pool().release_unused()
        process, stop = psutil.Process(), threading.Event()

        def sample() -> None:
            while not stop.wait(0.02):
                self.mebibytes = max(self.mebibytes, process.memory_info().rss / 2**20)

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
