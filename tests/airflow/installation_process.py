"""An Airflow installation in a process of its own, with its own home and metadata database: runs the same task of the same run as any other."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installation:
    """An Airflow of its own.

    :param home: its AIRFLOW_HOME, kept between runs.
    :param store: the root of the store, which others may use, too.
    :param database: a new metadata database, which it takes a copy of.
    """

    home: Path
    store: Path
    database: Path

    def run(self) -> dict[str, Any]:
        """Run the task in a process of its own; return what it returned."""
        if not self.home.exists():
            self.home.mkdir()
            shutil.copy(self.database, self.home / "airflow.db")
        connection = {"conn_type": "poison", "extra": {"store": str(self.store)}}
        here = {
            "AIRFLOW_POISON_TESTS_HOME": str(self.home),
            "AIRFLOW_CONN_POISON_DEFAULT": json.dumps(connection),
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(bytes(32)).decode(),  # else each process has another one: Variables are encrypted
        }
        command = [sys.executable, "-m", "tests.airflow.installation_process"]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, env={**os.environ, **here}, check=False)
        said = next((line for line in ended.stdout.splitlines() if line.startswith("returned ")), None)
        assert said is not None, ended.stdout + ended.stderr
        returned: dict[str, Any] = json.loads(said.removeprefix("returned "))
        return returned


def main() -> None:
    """Run one task."""
    from datetime import UTC, datetime

    conftest = import_module("tests.airflow.conftest")  # first: it sets the home of this Airflow
    from airflow.sdk import DAG

    from airflow_poison import Msmq4
    from airflow_poison.operators.send import QueueSendOperator

    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")
    with DAG("shop", schedule=None) as dag:
        QueueSendOperator(task_id="do", queue_name="orders", messages=[b"a", b"b"], policy=policy)
    ran = conftest.run(dag, datetime(2026, 1, 1, tzinfo=UTC))
    sys.stdout.write(f"\nreturned {json.dumps(ran.returned.get('do', str(ran.errors)))}\n")


if __name__ == "__main__":
    main()
