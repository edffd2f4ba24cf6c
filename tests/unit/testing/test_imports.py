"""Users' tests of handlers need neither Airflow nor Spark."""

from __future__ import annotations

import subprocess
import sys

import airflow_poison.testing

CODE = """
import sys
from airflow_poison import Msmq4
from airflow_poison.testing import receive

assert receive(lambda message: None, ["x"], Msmq4()).places == ["processed"]
print(sorted({name.partition(".")[0] for name in sys.modules} & {"airflow", "pyspark", "py4j", "deltalake"}))
"""


def test_receiving_imports_neither_airflow_nor_spark() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert all(hasattr(airflow_poison.testing, name) for name in airflow_poison.testing.__all__)
