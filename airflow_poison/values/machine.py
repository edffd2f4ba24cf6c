"""Which machine this is.

Modes of files with texts of messages and handlers: for their owner and their group, as far as the umask lets them.
"""

from __future__ import annotations

import os
import socket
from typing import Final

PRIVATE: Final = 0o660
"""Of a file. Several users of one group may share a store: the umask says what the group may."""
PRIVATE_FOLDER: Final = 0o770


def private(path: str, flags: int) -> int:
    """Open a file for ``open(..., opener=private)``; return its descriptor."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE)


def machine() -> str:
    """Name this machine since it was last started: as long as that is the same, no file has lost what was stored in it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123  (as small as the rest)
            return file.read().strip()
    except OSError:
        return socket.gethostname()
