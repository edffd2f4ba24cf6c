"""A process that ends an Airflow when the process that started it is gone: ``python -m tools.airflow.guard HOME``.

Its standard input is a pipe from the starter, which the kernel closes also when the starter is killed. It writes a line when it stands guard: a
home has one guard at a time, so that one which still ends an earlier Airflow of the home does not end the next one.
"""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

from tools.airflow.home import Home
from tools.airflow.left_over import end_left_over


def main() -> None:
    """Wait for the end of the input, then end what is left."""
    home = Home(Path(sys.argv[1]))
    with (home.path / "guard.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("on guard", flush=True)
        sys.stdin.buffer.read()
        if home.path.exists():
            end_left_over(home)


if __name__ == "__main__":
    main()
