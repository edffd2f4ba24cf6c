"""A page of the documentation in a process of its own: it finds the package and nothing else of this repository."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]


def airflow_at(home: Path) -> dict[str, str]:
    """Return the environment of an Airflow of its own; Airflow's and Spark's own warnings are not ours."""
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PYTHONWARNINGS": "ignore",
    }


def run(page: str, code: str, home: Path) -> None:
    """Run a page's code in its home."""
    os.chdir(home)
    os.environ |= airflow_at(home) | {
        "AIRFLOW_CONN_POISON_DEFAULT": '{"conn_type": "poison"}',
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    sys.path[:] = ["", str(ROOT), *(path for path in sys.path if not path.startswith(str(ROOT)) or "site-packages" in path)]
    warnings.simplefilter("ignore")
    exec(compile(code, page, "exec"), {"__name__": "page"})
