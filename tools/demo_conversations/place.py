"""Where the demo keeps its things, and the environment of the Airflow that it starts."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tools.airflow.home import Home

CLONE = Path(__file__).resolve().parents[2]
SAMPLE = ("parts_orders.py", "parts_warehouse.py")
KEPT = frozenset({"lock", "keys.json", "guard.lock"})


@dataclass(frozen=True, slots=True)
class Place(Home):
    """The folder of the demo; everything it writes is below it."""

    path: Path = CLONE / ".demo" / "conversations"

    @property
    def store(self) -> Path:
        """The queue tables."""
        return self.path / "poison"

    @property
    def parts(self) -> Path:
        """The databases of the shop and of the warehouse, and the alerts."""
        return self.path / "parts"

    @property
    def dags(self) -> Path:
        """The DAGs folder."""
        return self.path / "dags"

    def shown(self, path: Path | str) -> str:
        """Return a path as the reader of a terminal in the clone would type it."""
        return str(Path(path).relative_to(CLONE))

    def begin_anew(self) -> None:
        """Remove what an earlier demo has left, and copy the DAG files."""
        for entry in self.path.iterdir():
            if entry.name in KEPT:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self.logs.mkdir()
        self.dags.mkdir()
        for name in SAMPLE:
            shutil.copy(CLONE / "dags" / name, self.dags)
        shutil.copytree(CLONE / "dags" / "parts", self.dags / "parts", ignore=shutil.ignore_patterns("__pycache__"))

    def demo_environment(self, port: int) -> dict[str, str]:
        """Return the environment of the services."""
        settings = {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__PARALLELISM": "3",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",  # it listens on loopback only
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.path / 'airflow.db'}?timeout=120",
            "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        }
        connection = {"conn_type": "poison", "extra": {"store": str(self.store), "spark": "local[2]"}}
        others = {"AIRFLOW_CONN_POISON_DEFAULT": json.dumps(connection), "PARTS_HOME": str(self.parts), "SPARK_LOCAL_IP": "127.0.0.1"}
        return self.environment(port, settings, others)
