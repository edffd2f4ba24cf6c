"""The application that ``spark-submit`` runs for QueueReceiveSubmitOperator: one receive pass, as an order says.

It begins an archive, which Python runs as a script: the order, this package and the files that a user ships are in it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path


def main(archive: str) -> int:
    """Carry the order of an archive out. Returns the exit code: 0 where a pass ended, also one that halted its queue."""
    with tempfile.TemporaryDirectory(prefix="airflow-poison-", ignore_cleanup_errors=True) as folder:
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
        order = json.loads(Path(folder, "order.json").read_text())
        files = [str(Path(folder, name)) for name in order.pop("files")]
        sys.path[:0] = dict.fromkeys(str(Path(file).parent) if file.endswith(".py") else file for file in files)
        from airflow_poison.passes.submitted import PassOrder, carry_out

        return carry_out(PassOrder(**order), files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[0]))
