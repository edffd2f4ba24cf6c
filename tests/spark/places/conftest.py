"""The places where the tests of this folder run. Each server is started once, when it is needed first, and stopped at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.places.place import CLUSTER, CONNECT, LOCAL, NAMES, Where, driven
from tests.spark.places.servers import apart, connect_server
from tools.servers.spark import standalone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.places.place import Place
    from tests.spark.places.servers import Nodes
    from tools.servers.spark import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a standalone cluster of two workers."""
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Return a cluster of two workers that share no folder, neither with each other nor with the driver."""
    with apart(tmp_path_factory.mktemp("nodes"), tmp_path_factory.mktemp("driver-node")) as there:
        yield there


@pytest.fixture(scope="session", params=(CLUSTER, CONNECT))
def far(request: pytest.FixtureRequest, nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return a driver of such a cluster, and one of a Spark Connect server on it."""
    folder = tmp_path_factory.mktemp("far")
    if request.param == CLUSTER:
        with driven(Where.of(CLUSTER, nodes.cluster.url), folder) as there:
            yield there
        return
    with connect_server(folder, nodes.cluster.url) as server, driven(Where.of(CONNECT, server.name), folder) as there:
        yield there


@pytest.fixture(scope="session", params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return each of the places; tests of one place run together."""
    name: str = request.param
    folder = tmp_path_factory.mktemp("driver")
    if name == LOCAL:
        with driven(Where.of(LOCAL), folder) as here:
            yield here
        return
    master: str = request.getfixturevalue("cluster").url
    if name == CLUSTER:
        with driven(Where.of(CLUSTER, master), folder) as there:
            yield there
        return
    with connect_server(tmp_path_factory.mktemp("connect"), master) as server, driven(Where.of(CONNECT, server.name), folder) as there:
        yield there
