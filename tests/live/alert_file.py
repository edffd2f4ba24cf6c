"""A notifier that writes to a file; DAG files of these tests import it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier

ALERTS = "alerts.jsonl"


class AlertFile(BaseNotifier):
    """Appends each alert as a line of JSON to a file in AIRFLOW_HOME, which ``LiveAirflow.alerts`` reads.

    :param line: any text. (templated)
    """

    template_fields = ("line",)

    def __init__(self, line: str = "{{ poison_alert.queue }}: {{ poison_alert.event }} x {{ poison_alert.count }}") -> None:
        super().__init__()
        self.line = line

    def notify(self, context: Any) -> None:
        """Append the alert."""
        alert = {"line": self.line, "dag_id": context["dag_run"].dag_id, "run_id": context["dag_run"].run_id, **context["poison_alert"]}
        with (Path(os.environ["AIRFLOW_HOME"]) / ALERTS).open("a") as file:
            file.write(json.dumps(alert, default=str) + "\n")
