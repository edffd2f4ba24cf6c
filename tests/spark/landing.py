"""A handler whose rows land, importable where Spark's workers are."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_poison.values.message import Message


@dataclass(frozen=True)
class Landing:
    """Returns a row for each message; fails, or kills its process once, as the body says.

    :param mark: a file that says that it has killed.
    """

    mark: str

    def __call__(self, message: Message) -> dict[str, Any] | None:
        """Be called with a message."""
        if message.text == "bad":
            raise ValueError(message.text)
        if message.text == "kill" and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return None if message.text == "none" else {"id": message.lookup_id, "text": None if message.lookup_id % 2 else message.text}
