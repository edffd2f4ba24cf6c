"""Classes from Maven Central, fetched once for a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tools.servers.spark import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
_UNPACK = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_NAMED = "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"


def fetched(name: str, *artifacts: tuple[str, str, str], beside: Mapping[str, str] | None = None) -> Path:
    """Return a folder with classes and all that they need at run time, fetched where it is not here yet. Raises ServerError.

    :param name: of the folder; the same for the same artifacts.
    :param artifacts: group, name and version of each.
    :param beside: further files of the folder: their texts by name.
    """
    needs = "".join(f"<dependency>{_NAMED.format(*each)}</dependency>" for each in artifacts)
    project = f"<modelVersion>4.0.0</modelVersion>{_NAMED.format('tests', name, '1')}<dependencies>{needs}</dependencies>"
    pom = f'<project xmlns="http://maven.apache.org/POM/4.0.0">{project}</project>'
    return _made(name, ["dependency:copy-dependencies", "-DincludeScope=runtime"], {"pom.xml": pom, **(beside or {})})


def unpacked(name: str, artifact: str) -> Path:
    """Return a folder with what is in an archive, fetched where it is not here yet. Raises ServerError.

    :param name: of the folder; the same for the same artifact.
    :param artifact: ``group:name:version:packaging:classifier``.
    """
    return _made(name, [f"{_UNPACK}:unpack", f"-Dartifact={artifact}"], {})


def _made(name: str, goal: Sequence[str], beside: Mapping[str, str]) -> Path:
    there = TOOLS / name
    if there.exists():
        return there
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerError(f"There is no Maven (mvn) here, which fetches {name}. Install it: apt install maven.")
    making = there.with_name(f"{name}.{os.getpid()}")
    making.mkdir(parents=True)
    for file, text in beside.items():
        (making / file).write_text(text)
    command = [maven, "-q", "-B", "-ntp", *goal, f"-DoutputDirectory={making}"]
    subprocess.run(command, cwd=making, check=True, stdout=subprocess.DEVNULL)
    try:
        making.rename(there)
    except OSError:  # somebody else was faster
        shutil.rmtree(making)
    return there
