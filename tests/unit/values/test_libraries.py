"""Libraries that take long to import are imported by their first use, and not before."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, pickle, sys
from airflow_poison.values import libraries
before = [name for name in ("deltalake", "numpy", "obstore", "pyarrow") if name in sys.modules]
again = pickle.loads(pickle.dumps(libraries.pc))
print(json.dumps([before, libraries.pa.scalar(2).as_py(), again.add(1, 2).as_py(), hasattr(libraries.np, "no_such_name")]))
"""


def test_a_library_is_imported_by_its_first_use_and_travels() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert json.loads(ran.stdout) == [[], 2, 3, False]
