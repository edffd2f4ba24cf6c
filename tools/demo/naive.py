"""The job of the demo without protection: the same transformation of the same file, in the same Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

from tools.demo.place import CLONE, DemoError

if TYPE_CHECKING:
    from collections.abc import Mapping


def seconds_without(environment: Mapping[str, str]) -> float:
    """Return the seconds of the job, the start of Spark included. Raises DemoError.

    :param environment: of the demo's Airflow.
    """
    ran = subprocess.run([sys.executable, "-m", __name__], cwd=CLONE, env=dict(environment), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise DemoError(f"The job without protection failed:\n{ran.stderr[-2_000:]}")
    return float(ran.stdout.split()[-1])


def _main() -> None:
    from airflow_poison.spark.session import get_session

    sys.path.insert(0, str(CLONE / "dags"))
    job = import_module("flight_arrivals")
    out = str(job.HOME / "without-protection")
    began = time.monotonic()
    flights = get_session().read.parquet(str(job.flights_file())).selectExpr("monotonically_increasing_id() AS lookup_id", "*")
    job.land(flights).where("_poison IS NULL").drop("lookup_id", "_poison").write.mode("overwrite").parquet(out)
    print(time.monotonic() - began)
    shutil.rmtree(out)


if __name__ == "__main__":
    _main()
