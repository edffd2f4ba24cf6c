"""A process that ends an Airflow when the process that started it is gone: ``python -m tools.airflow.guard HOME``.

Its standard input is a pipe from the starter, which the kernel closes also when the starter is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.airflow.home import Home
from tools.airflow.left_over import end_left_over


def main() -> None:
    """Wait for the end of the input, then end what is left."""
    sys.stdin.buffer.read()
    end_left_over(Home(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
