"""What runs in processes that are forked from one in which Airflow has been imported, and nothing of this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

PRELOADED = ("airflow.sdk", "airflow.sdk.bases.decorator", "airflow.triggers.base", "airflow.__main__", "airflow.cli.cli_parser", __name__)
HEAVY = {"pyarrow", "deltalake", "numpy", "pandas", "pyspark"}


def print_heavy_imports(code: str) -> None:
    """Run code as a DAG file does, and print which heavy libraries it has imported."""
    from airflow.sdk import Asset, BaseSensorOperator  # noqa: F401  (each is imported when it is first used)

    assert not HEAVY & set(sys.modules), "Airflow has imported them, so nothing could be seen"
    exec(code, {})
    print(sorted(HEAVY & set(sys.modules)))  # noqa: T201


def airflow(*words: str) -> None:
    """Run Airflow's command line."""
    from airflow.__main__ import main

    del os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"]  # with it Airflow tells so on standard output
    os.environ["COLUMNS"] = "80"
    sys.argv[:] = ["airflow", *words]
    main()  # type: ignore[no-untyped-call]  # Airflow's


def complete(asked: Mapping[str, str], answers: str) -> None:
    """Complete a line as argcomplete does, which takes descriptor 8 for its answers and 9 for what else it has to say."""
    for path, descriptor in ((answers, 8), (os.devnull, 9)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.update(asked)
    airflow()
