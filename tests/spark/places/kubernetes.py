"""A Kubernetes API server on loopback, as far as Spark asks it, whose pods run as processes of this machine with what the image's entry point runs.

Pods, services and config maps are kept as they are posted. There is no container and no image: what is in the image is Spark and this Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from tools.servers.spark import QUICK, SPARK_HOME, START_SECONDS, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE, IMAGE = "poison", "registry.example.com/spark-with-packages:4"
CONF = {
    "spark.kubernetes.namespace": NAMESPACE,
    "spark.kubernetes.container.image": IMAGE,
    "spark.driver.memory": "512m",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""Of a small application."""
_PATH = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?")
_CONF_DIR = "/opt/spark/conf"


@dataclass
class Kubernetes:
    """The server.

    :ivar posted: every object that was made, by kind, in the order in which it came.
    """

    folder: Path
    port: int = 0
    posted: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _now: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _pods: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _versions: int = 0

    @property
    def master(self) -> str:
        """The master of Spark's applications."""
        return f"k8s://http://127.0.0.1:{self.port}"

    @property
    def conf(self) -> dict[str, str]:
        """Settings of a small application; a driver in a pod is told where the server is, which has no name here."""
        ports = dict(zip(("spark.driver.port", "spark.driver.blockManager.port"), map(str, free_ports(2)), strict=True))
        return {**CONF, **ports, "spark.kubernetes.driver.master": f"http://127.0.0.1:{self.port}"}

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods that were made, as they were posted."""
        return [pod for pod in self.posted.get("pods", ()) if pod["metadata"]["labels"]["spark-role"] == role]

    def log(self, name: str) -> str:
        """Return what a pod has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # The API

    def create(self, kind: str, made: dict[str, Any], name: str | None = None) -> dict[str, Any]:
        """Keep an object; a pod is started."""
        self.posted.setdefault(kind, []).append(json.loads(json.dumps(made)))
        metadata = made["metadata"]
        metadata.setdefault("name", name or f"{metadata.get('generateName', kind)}{uuid4().hex[:8]}")
        metadata |= {"uid": str(uuid4()), "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "namespace": NAMESPACE}
        if kind == "pods":
            made["status"] = {"phase": "Pending", "podIP": "127.0.0.1", "startTime": metadata["creationTimestamp"]}
        self._put(kind, made)
        self._name_services()
        if kind == "pods":
            threading.Thread(target=self._run, args=(made,), daemon=True).start()
        return made

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object."""
        return self._now.get((kind, name))

    def listed(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """Return the objects with these labels."""
        found = [each for (of, _), each in list(self._now.items()) if of == kind]
        return [each for each in found if all(_matches(each["metadata"].get("labels") or {}, part) for part in filter(None, selector.split(",")))]

    def delete(self, kind: str, name: str) -> None:
        """Forget an object; a pod is ended."""
        with self._changed:
            self._now.pop((kind, name), None)
            self._changed.notify_all()
        if kind == "pods" and (process := self._pods.get(name)) is not None and process.poll() is None:
            process.terminate()

    def changes(self, kind: str, selector: str, ended: threading.Event) -> Iterator[dict[str, Any]]:
        """Yield what becomes of objects."""
        seen: dict[str, str] = {}
        while not ended.is_set():
            now = {each["metadata"]["name"]: each for each in self.listed(kind, selector)}
            for name, each in now.items():
                if seen.get(name) != each["metadata"]["resourceVersion"]:
                    yield {"type": "MODIFIED" if name in seen else "ADDED", "object": each}
                    seen[name] = each["metadata"]["resourceVersion"]
            with self._changed:
                self._changed.wait(0.5)

    def stop(self) -> None:
        """End all pods."""
        for process in self._pods.values():
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                if process.poll() is None:
                    process.kill()
                    process.wait()

    @property
    def _hosts(self) -> Path:
        return self.folder / "hosts"

    def _name_services(self) -> None:
        """Stand for the cluster's DNS: Java reads this file with each look."""
        names = [f"{each['metadata']['name']}.{NAMESPACE}.svc" for each in self.listed("services", "")]
        self._hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", socket.gethostname(), *names)))

    def _until_there(self, kind: str, name: str) -> dict[str, Any]:
        """Wait for what a pod mounts, as a node does: it is made after the pod."""
        until = time.monotonic() + START_SECONDS
        while (found := self.get(kind, name)) is None:
            assert time.monotonic() < until, f"nobody has made {name}"
            time.sleep(0.1)
        return found

    def _put(self, kind: str, made: dict[str, Any]) -> None:
        with self._changed:
            self._versions += 1
            made["metadata"]["resourceVersion"] = str(self._versions)
            self._now[kind, made["metadata"]["name"]] = json.loads(json.dumps(made))
            self._changed.notify_all()

    # The node

    def _run(self, pod: dict[str, Any]) -> None:
        name, [container] = pod["metadata"]["name"], pod["spec"]["containers"]
        command, environment = self._command(pod, container)
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=self._work(name))
        self._pods[name] = process
        self._tell(pod, "Running", {"running": {"startedAt": pod["status"]["startTime"]}}, container)
        code = process.wait()
        self._tell(pod, "Failed" if code else "Succeeded", {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}, container)

    def _tell(self, pod: dict[str, Any], phase: str, state: dict[str, Any], container: dict[str, Any]) -> None:
        if self.get("pods", pod["metadata"]["name"]) is not None:
            told = {"name": container["name"], "state": state, "image": container["image"], "imageID": "", "ready": True, "restartCount": 0}
            pod["status"] |= {"phase": phase, "containerStatuses": [told]}
            self._put("pods", pod)

    def _work(self, name: str) -> Path:
        work = self.folder / name
        work.mkdir(exist_ok=True)
        return work

    def _command(self, pod: dict[str, Any], container: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Return what the entry point of Spark's images runs, with the folders and addresses that a pod would have."""
        work = self._work(pod["metadata"]["name"])
        for volume in pod["spec"].get("volumes", ()):
            if (mapped := volume.get("configMap")) is not None:
                for file, content in self._until_there("configmaps", mapped["name"])["data"].items():
                    (work / file).write_text(content)
        own = {each["name"]: self._value(each, work) for each in container["env"]}
        args = [each.replace(_CONF_DIR, str(work)) for each in container["args"]]
        java = shutil.which("java")
        assert java is not None
        image = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # python3 is the one that has the packages
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file={self._hosts}",
            "HOME": str(work),
            "TMPDIR": str(work),
        }
        environment = {**image, **own, "SPARK_CONF_DIR": str(work)}
        if args[0] == "driver":
            bind = own["SPARK_DRIVER_BIND_ADDRESS"]
            submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--conf", f"spark.driver.bindAddress={bind}", "--deploy-mode", "client"]
            return [*submit, *args[1:]], environment
        options = [own[name] for name in sorted(own) if name.startswith("SPARK_JAVA_OPT_")]
        backend = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
        told = {
            "--driver-url": own["SPARK_DRIVER_URL"],
            "--executor-id": own["SPARK_EXECUTOR_ID"],
            "--cores": own["SPARK_EXECUTOR_CORES"],
            "--app-id": own["SPARK_APPLICATION_ID"],
            "--hostname": own["SPARK_EXECUTOR_POD_IP"],
            "--resourceProfileId": own["SPARK_RESOURCE_PROFILE_ID"],
            "--podName": pod["metadata"]["name"],
        }
        heap = f"-Xmx{own['SPARK_EXECUTOR_MEMORY']}"
        return [java, *options, heap, "-cp", f"{SPARK_HOME}/jars/*", backend, *(part for pair in told.items() for part in pair)], environment

    @staticmethod
    def _value(each: dict[str, Any], work: Path) -> str:
        if "valueFrom" in each:
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            return "127.0.0.1" if path == "status.podIP" else work.name
        if each["name"] == "SPARK_LOCAL_DIRS":
            return str(work)
        return str(each.get("value") or "")


def _matches(labels: dict[str, str], requirement: str) -> bool:
    """Whether labels are as one requirement of a selector says: ``name=value``, ``name!=value`` or ``name``."""
    name, operator, value = re.fullmatch(r"([^!=]+)(!?=)?(.*)", requirement).groups("")  # type: ignore[union-attr]  # of any text
    return {"": name in labels, "=": labels.get(name) == value, "!=": labels.get(name) != value}[operator]


class _Server(ThreadingHTTPServer):
    """Answers for what is kept."""

    daemon_threads = True

    def __init__(self, kept: Kubernetes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kept, self.ended = kept, threading.Event()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        if (asked := self._asked()) is not None:
            self._answer(self.server.kept.create(asked.kind, self._body()), 201)

    def do_PATCH(self) -> None:
        if (asked := self._asked()) is not None:
            there = self.server.kept.get(asked.kind, asked.name) if asked.kind == "pods" else None
            self._answer(there or self.server.kept.create(asked.kind, self._body(), asked.name))

    def do_GET(self) -> None:
        if (asked := self._asked()) is None:
            return
        if "watch" in asked.query:
            self._watch(asked)
        elif asked.name:
            self._answer(self.server.kept.get(asked.kind, asked.name))
        else:
            found = self.server.kept.listed(asked.kind, asked.first("labelSelector"))
            self._answer({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "0"}, "items": found})

    def do_DELETE(self) -> None:
        if (asked := self._asked()) is not None:
            gone = self.server.kept.listed(asked.kind, asked.first("labelSelector"))
            for name in [asked.name] if asked.name else [each["metadata"]["name"] for each in gone]:
                self.server.kept.delete(asked.kind, name)
            self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _watch(self, asked: _Asked) -> None:
        if "Upgrade" in self.headers:  # clients fall back to plain HTTP
            self._answer(None, 503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        name = asked.first("fieldSelector").rpartition("=")[2]
        with suppress(OSError):
            for change in self.server.kept.changes(asked.kind, asked.first("labelSelector"), self.server.ended):
                if name in {"", change["object"]["metadata"]["name"]}:
                    self.wfile.write(json.dumps(change).encode() + b"\n")
                    self.wfile.flush()

    def _asked(self) -> _Asked | None:
        """Return what is asked for; what is of no kind that is kept is answered."""
        url = urlsplit(self.path)
        found = _PATH.fullmatch(url.path)
        if found is None:
            self._answer(None)
            return None
        return _Asked(found["kind"], found["name"] or "", parse_qs(url.query))

    def _body(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, found: dict[str, Any] | None, status: int = 200) -> None:
        if found is None and status == 200:
            status = 404
        content = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@dataclass(frozen=True)
class _Asked:
    """What a request is about."""

    kind: str
    name: str
    query: dict[str, list[str]]

    def first(self, name: str) -> str:
        """Return a parameter; empty where there is none."""
        return self.query.get(name, [""])[0]


@contextmanager
def kubernetes(folder: Path) -> Iterator[Kubernetes]:
    """Start a server; end it, and all pods, at the end."""
    kept = Kubernetes(folder)
    with _Server(kept) as server:
        kept.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield kept
        finally:
            server.ended.set()
            kept.stop()
            server.shutdown()
