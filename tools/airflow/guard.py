"""A process that ends an Airflow when the process that started it is gone: ``python -m tools.airflow.guard HOME``.

Its standard input is a pipe from the starter, which the kernel closes also when the starter is killed: a line for each session that was started.
It writes a line when it stands guard. A home has one guard at a time, so that one which still ends an earlier Airflow of the home does not end the
next one. It needs the home no more when that is removed.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

from tools.airflow.home import Home
from tools.airflow.left_over import end, processes_of


def main() -> None:
    """Wait for the end of the input, then end what is left."""
    home = Home(Path(sys.argv[1]))
    with (home.path / "guard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = home.mark()
        print("on guard", flush=True)
        noted = [json.loads(line) for line in sys.stdin]
        end(processes_of(mark, noted))


if __name__ == "__main__":
    main()
