"""Which machine this is, and who acts in a shell on it.

Modes of files with texts of messages and handlers: for their owner and their group, as far as the umask lets them.
"""

from __future__ import annotations

import getpass
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


def shell_user() -> str:
    """Return who acts in a shell or a script: ``shell:<user>@<host>``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"shell:{user}@{socket.gethostname()}"
