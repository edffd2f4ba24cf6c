"""A handler for dialogs on Spark: writes every call down, and replies."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison.values.message import Message


@dataclass(frozen=True)
class Warehouse:
    """A handler.

    :param root: the folder of the store; calls are written beside it.
    """

    root: str

    def __call__(self, message: Message) -> None:
        conversation = message.conversation
        assert conversation is not None
        kind = (message.message_type or "").rsplit("/", 1)[-1]
        said = "" if message.is_error else message.text
        with self._calls.open("a") as file:
            file.write(f"{conversation.conversation_id} {os.getppid()} {said or kind}\n")
        if message.is_error:
            conversation.end()
        elif said == "timer":
            conversation.set_timer(60)
        elif not message.is_system:
            if conversation.state.value == "CO":
                conversation.reply(said, "shipped")
            if said == "raise" and not message.abort_count:
                raise ValueError("once")

    def calls(self) -> list[tuple[str, str, str]]:
        """Return conversation, task and what was received, in order."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [(name, task, said) for name, task, said in (line.split(" ", 2) for line in lines)]

    def forget(self) -> None:
        """Begin anew."""
        self._calls.unlink(missing_ok=True)

    @property
    def _calls(self) -> Path:
        return Path(f"{self.root}.calls")
