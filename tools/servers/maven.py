"""Classes from Maven Central, fetched once for a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tools.servers.spark import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
_NAMED = "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"


def fetched(name: str, *artifacts: tuple[str, str, str], beside: Mapping[str, str] | None = None) -> Path:
    """Return a folder with classes and all that they need at run time, fetched where it is not here yet. Raises ServerError.

    :param name: of the folder; the same for the same artifacts.
    :param artifacts: group, name and version of each.
    :param beside: further files of the folder: their texts by name.
    """
    there = TOOLS / name
    if there.exists():
        return there
    maven = shutil.which("mvn")
    if maven is None:
        raise ServerError(f"There is no Maven (mvn) here, which fetches {name}. Install it: apt install maven.")
    making = there.with_name(f"{name}.{os.getpid()}")
    making.mkdir(parents=True)
    needs = "".join(f"<dependency>{_NAMED.format(*each)}</dependency>" for each in artifacts)
    project = f"<modelVersion>4.0.0</modelVersion>{_NAMED.format('tests', name, '1')}<dependencies>{needs}</dependencies>"
    (making / "pom.xml").write_text(f'<project xmlns="http://maven.apache.org/POM/4.0.0">{project}</project>')
    command = [maven, "-q", "-B", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={making}"]
    subprocess.run(command, cwd=making, check=True, stdout=subprocess.DEVNULL)
    for file, text in (beside or {}).items():
        (making / file).write_text(text)
    try:
        making.rename(there)
    except OSError:  # somebody else was faster
        shutil.rmtree(making)
    return there
