"""The application that ``spark-submit`` runs for QueueReceiveSubmitOperator: one receive pass, as a file says.

It is run as a script, from a copy beside that file; what it imports of this package comes from an archive there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(order: str) -> int:
    """Carry an order out. Returns the exit code: 0 where a pass ended, also one that halted its queue."""
    sys.path[:0] = json.loads(Path(order).read_text())["imports"]
    from airflow_poison.core.passes.submitted import carry_out

    return carry_out(Path(order))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
