"""Where the demo's tables are, and which Spark receives from them: a folder with a Spark of each task's own, or an object store and a cluster.

The object store is moto's server, which keeps all in memory. The two workers of the cluster have mounts of their own: neither sees the folder of the
other, nor that of Airflow, where the driver of each pass runs.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tools.airflow.home import MARK, Home
from tools.airflow.left_over import end_left_over
from tools.airflow.services import start_guard, uninterrupted
from tools.servers import s3
from tools.servers.spark import APPLICATION, check_mounts, standalone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tools.demo.place import Place

FOLDER, S3 = "folder", "s3"
BUCKET = "flights"
QUEUE = "flights"
MEMORY = "2g"
"""Of a worker; an executor has half of it."""
CONF = {name: value for name, value in APPLICATION.items() if not name.endswith("extraJavaOptions")} | {"spark.executor.memory": "1g"}
KEPT = frozenset({"lock", "guard.lock", "keys.json", "logs"})
"""Of a home: what tells its processes from others, and from each other."""


@dataclass(frozen=True, slots=True)
class Lake:
    """The demo's tables.

    :param queues: root of the store, a folder or a URI.
    :param tables: where the registry and the output are.
    :param options: of the object store; none for a folder.
    :param environment: of the Airflow, beyond what it has anyway.
    """

    queues: str
    tables: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def queue(self) -> str:
        """The queue's table."""
        return f"{self.queues}/{QUEUE}"

    @property
    def landed(self) -> str:
        """The output of the transformation, a Delta table."""
        return f"{self.tables}/landed"

    @property
    def goes(self) -> bool:
        """Whether it is gone when the demo has ended."""
        return bool(self.options)


def in_folder(place: Place) -> Lake:
    """Return the tables of a demo on a folder."""
    return Lake(str(place.path / "poison"), str(place.flights))


@contextmanager
def in_bucket(place: Place) -> Iterator[Lake]:
    """Start an object store and a cluster; stop them whatever happens. Raises ServerError.

    :param place: of the Airflow; its folder is that of the node where the tasks run. The cluster's folder is beside it.
    """
    home = home_of_servers(place)
    node = place.path / "tmp"
    node.mkdir(exist_ok=True)
    tempfile.tempdir = str(node)  # this process looks at the copies that the tasks of its node have
    servers = ExitStack()
    try:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_"))}
        mine |= {"NO_PROXY": s3.LOOPBACK, "no_proxy": s3.LOOPBACK, MARK: home.mark()}
        servers.callback(start_guard(home, mine).communicate)
        options = s3.options(f"http://{s3.LOOPBACK}:{servers.enter_context(s3.running(mine))}", secret="in-memory")
        s3.make_bucket(options, BUCKET)
        spark = servers.enter_context(standalone(home.path, [place.path], environment=mine, memory=MEMORY))
        queues, tables = f"s3://{BUCKET}/queues", f"s3://{BUCKET}/lake"
        extra = {"store": queues, "spark": spark.url, "spark_conf": CONF, "storage_options": options}
        connection = json.dumps({"conn_type": "poison", "extra": extra})
        ours = {
            "AIRFLOW_CONN_POISON_DEFAULT": connection,
            "TMPDIR": str(node),
            "SPARK_LOCAL_DIRS": str(node / "spark"),
            "SPARK_LOCAL_IP": s3.LOOPBACK,
        }
        yield Lake(queues, tables, options, {"FLIGHTS_LAKE": tables, **ours})
    finally:
        with uninterrupted():
            servers.close()
            end_left_over(home)


def home_of_servers(place: Place) -> Home:
    """Return the home of the object store and the cluster: when the Airflow has ended, the demo still asks the store how."""
    home = Home(place.path.parent / "spark")
    home.path.mkdir(parents=True, exist_ok=True)
    return home


def start_afresh(place: Place) -> bool:
    """Remove what an earlier demo over an object store has left, whose store is gone; return whether there was something.

    Raises ServerError, with nothing removed, where there can be no such demo.
    """
    check_mounts()
    left = [path for path in (*place.path.iterdir(), *home_of_servers(place).path.iterdir()) if path.name not in KEPT]
    for path in (*left, *place.logs.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return bool(left)
