"""A handler whose database is away while a file is there; each call leaves a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_poison import Message


@dataclass(frozen=True)
class Away:
    folder: str

    def __call__(self, message: Message) -> None:
        away = Path(self.folder, "away").exists()
        with Path(self.folder, "calls").open("a") as file:
            file.write(f"{message.lookup_id} {'failed' if away else 'done'}\n")
        if message.text == "bad":
            raise KeyError(message.lookup_id)
        if away:
            raise ConnectionError(f"no route, message {message.lookup_id}")

    def calls(self) -> list[str]:
        """Return the calls since the last question."""
        path = Path(self.folder, "calls")
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines
