"""A notifier for deadlines: the triggerer imports it by its name, awaits it, and it writes to a file."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier

MISSED = "missed.jsonl"


class DeadlineFile(BaseNotifier):
    """Appends each missed deadline as a line of JSON to a file in AIRFLOW_HOME.

    :param text: any text. (templated)
    """

    template_fields = ("text",)

    def __init__(self, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    async def async_notify(self, context: Any) -> None:
        """Append the deadline."""
        run = context["dag_run"]
        line = json.dumps({"text": self.text, "dag_id": run["dag_id"], "run_id": run["dag_run_id"]}) + "\n"
        await asyncio.to_thread(self._append, line)

    @staticmethod
    def _append(line: str) -> None:
        with (Path(os.environ["AIRFLOW_HOME"]) / MISSED).open("a") as file:
            file.write(line)
