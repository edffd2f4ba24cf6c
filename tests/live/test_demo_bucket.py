"""The demo over an object store, on a sample of the flights: interrupted, and then from its beginning to its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tools.airflow.left_over import processes
from tools.demo.figures import Figures
from tools.demo.lake import home_of_servers
from tools.demo.place import Place

CLONE = Path(__file__).parents[2]
EVERY = 400


def demo(folder: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start the demo in a folder of its own."""
    arguments = ["--store", "s3", "--every", str(EVERY), "--delay", "5"]
    code = (  # Ctrl-C is heard also where pytest runs in the background of a shell, which lets its children ignore it
        "import signal, sys; from pathlib import Path; from tools.demo.__main__ import main; "
        f"signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main({arguments!r}, Path({str(folder)!r})))"
    )
    with out.open("wb") as file:
        return subprocess.Popen([sys.executable, "-c", code], cwd=CLONE, stdout=file, stderr=subprocess.STDOUT)


def test_it_ends_with_the_figures_of_the_data_and_leaves_no_process_also_when_it_is_interrupted(tmp_path: Path) -> None:
    place, out = Place(tmp_path / "s3" / "airflow"), tmp_path / "out"
    servers = home_of_servers(place)
    first = demo(tmp_path, out)
    while "retry_cycle.receive" not in out.read_text():
        assert first.poll() is None, out.read_text()
        time.sleep(0.2)
    assert "java" in {process.name() for process in processes(servers)}, "the cluster is among the demo's processes"

    first.send_signal(signal.SIGINT)

    assert first.wait() == 130, out.read_text()
    assert "the next demo starts afresh" in " ".join(out.read_text().split())
    assert processes(place) + processes(servers) == []

    assert demo(tmp_path, out).wait() == 0, out.read_text()

    said, figures = " ".join(out.read_text().split()), Figures.of_year(EVERY)
    assert figures.poison
    assert "what the last one had left there was removed" in said
    all_of = f"{figures.read:,} flights read = 0 landed in place + 0 filtered + {figures.read:,} became messages"
    assert all_of in said
    landed = f"{figures.landed:,} rows of {figures.landed:,} flights = 0 in place + {figures.landed:,} settled"
    assert f"Landed (s3://flights/lake/landed, a Delta table): {landed}" in said
    assert f"{figures.poison:,} messages of queue 'flights': moved to the poison sub-queue" in said
    assert "no arr_time, arr_delay, air_time" in said
    assert processes(place) + processes(servers) == []
