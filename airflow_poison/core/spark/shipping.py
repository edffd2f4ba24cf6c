"""What goes with a session to its executors: this package, always in exactly this version, and the files that a user names."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_poison
from airflow_poison.core.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = (".py", ".zip", ".egg", ".whl")
_PURE = "-none-any.whl"


def checked_files(*lists: Sequence[str]) -> tuple[str, ...]:
    """Return the files' whole paths, each once.

    Raises SettingError for what is not there or cannot be imported from, and for two files of one name: executors keep them in one folder.
    """
    found: dict[str, str] = {}
    for py_files in lists:
        if isinstance(py_files, str):
            raise SettingError("py_files", py_files, "a list of files")
        for name in py_files:
            path = _checked(name)
            other = found.setdefault(path.name, str(path))
            if other != str(path):
                raise SettingError("py_files", name, f"files of different names, and {other} is there already; rename one of them")
    return tuple(found.values())


def _checked(name: str) -> Path:
    path = Path(name).expanduser().absolute()
    if path.suffix not in KINDS:
        raise SettingError("py_files", name, f"files that end in {', '.join(KINDS)}")
    if not path.is_file():
        raise SettingError("py_files", name, "files that are on the machine of the task")
    if path.suffix == ".whl" and not path.name.endswith(_PURE):
        raise SettingError("py_files", name, f"wheels of pure Python (…{_PURE}): compiled code cannot be imported from an archive; install it there")
    return path


def import_here(py_files: Sequence[str]) -> None:
    """Let this process import what the executors will: handlers are looked up here first."""
    for name in py_files:
        entry = str(Path(name).parent) if name.endswith(".py") else name
        if entry not in sys.path:
            sys.path.append(entry)


def shippable(path: str) -> str:
    """Return a copy, which stays as it is while Spark serves it, under a name from which Spark imports: it does not know wheels for archives."""
    name = Path(path).name
    copy = Path(tempfile.mkdtemp(dir=_folder())) / (f"{name}.zip" if name.endswith(".whl") else name)
    shutil.copyfile(path, copy)
    return str(copy)


@cache
def own_package() -> str:
    """Return an archive of this package's core, compiled: every worker imports it anew."""
    home = Path(airflow_poison.__file__).parent
    if not home.is_dir():  # this process has it from an archive
        return str(home.parent)
    copy = _folder() / home.name
    copy.mkdir()
    shutil.copy2(home / "__init__.py", copy)
    shutil.copytree(home / "core", copy / "core")  # with what Python has compiled of it already
    archive = _folder() / f"{home.name}-{airflow_poison.__version__}.zip"
    with zipfile.PyZipFile(str(archive), "w", zipfile.ZIP_DEFLATED) as file:
        file.writepy(str(copy))
    return str(archive)


@cache
def _folder() -> Path:
    """Return a folder that goes when this process ends."""
    made = tempfile.TemporaryDirectory(prefix="airflow-poison-", ignore_cleanup_errors=True)
    _kept.append(made)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
