"""What ends a task whose driver does not rule it any more.

A Spark Connect server goes on with a job when its client dies, and an executor may be cut off from its driver. When a later holder has taken
the claim over, their journal's folder has another name; such a task may finish what it is about to, and is ended after that.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Self

LOOK_SECONDS = 1.0
GRACE_SECONDS = 20.0
"""How long a task that was shut out may still work: a share that is nearly done is done, and nothing of it is delivered again. The later holder
waits three times as long."""
SHUT_OUT = 75
"""The exit code of a worker that ended itself."""


class Fence:
    """Watches, while its block runs, whether the claim is still its driver's; ends this process when it is not.

    :param folder: of the journals.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._left = folder, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="poison-fence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._left.wait(LOOK_SECONDS):
            if not os.path.isdir(self._folder) and not self._left.wait(GRACE_SECONDS):  # noqa: PTH112  (every second)
                sys.stderr.write(f"{self._folder} is shut out: a later holder of the claim goes on. This worker ends.\n")
                sys.stderr.flush()
                os._exit(SHUT_OUT)
