"""A queue table in an object store and its cache folder on this node.

Data files are immutable, so a cached copy equals its object. New files are written into the folder and uploaded before the commit that names them.
The folder may be removed while no process uses it. It is not used after a reboot (``node_folder``), so a loss of power leaves no truncated copies.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from airflow_poison.store.data_files import MANIFEST, STAGE
from airflow_poison.store.disk import Found, LocalFolder, on_node, second_name
from airflow_poison.store.objects import Objects, copy_of, side_by_side
from airflow_poison.store.stage import JOURNAL
from airflow_poison.values.errors import ClaimLostError, StoreUnreachableError
from airflow_poison.values.fault_points import reach
from airflow_poison.values.machine import machine

SHUT_OUT = b'{"shut out": true}'
"""What stands in the place of the manifest of a holder who must not put one there any more."""
_FETCHED_WITHIN = timedelta(hours=1)
_PIECE = re.compile(r"(.+)\.at-(\d{12})")


def node_folder(uri: str) -> Path:
    """Return the folder of this node and user for a store; another one after each boot of the machine. Raises StoreUnreachableError."""
    base = Path(tempfile.gettempdir(), f"airflow-poison-{os.getuid()}")
    with on_node(base, uri), suppress(FileExistsError):
        base.mkdir(mode=0o700)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise StoreUnreachableError(f"{base} belongs to somebody else, so no copies of {uri} can be kept there. Remove it, or set TMPDIR.")
    return base / sha256(f"{uri}\n{machine()}".encode()).hexdigest()[:20]


def name_of(node: Path, uri: str) -> str:
    """Return the name of a node's folder, which it gets with the first look at it: containers of one machine have folders of their own.

    :param uri: of the store. Raises StoreUnreachableError.
    """
    with on_node(node, uri):
        node.mkdir(parents=True, exist_ok=True)
        place, beside = node / ".name", node / f".name-{uuid4().hex}"
        if not place.exists():
            beside.write_text(uuid4().hex)
            second_name(beside, place)
            beside.unlink()
        return place.read_text()


class BucketFolder:
    """The files of a queue table in an object store. Unpickling uses the cache folder of the receiving node.

    :param objects: the objects of the table.
    :param root: the folder on this node.
    :param node: names the node's folder (``name_of``).
    """

    def __init__(self, objects: Objects, root: str, node: str) -> None:
        self.objects, self.root, self.node = objects, root, node
        self._local = LocalFolder(root, durable=False)
        self._there: set[str] = set()
        self._copied: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"BucketFolder({self.uri!r}, {self.root!r})"

    def __reduce__(self) -> tuple[Callable[[Objects], BucketFolder], tuple[Objects]]:
        return _arrived, (self.objects,)

    @property
    def uri(self) -> str:
        return self.objects.uri

    def here(self, path: str) -> Path:
        place = Path(self.root, path)
        if not place.exists():
            self._bring(path, lambda beside: self.objects.download(self._copied.get(path, path), beside))
        return place

    def bring(self, paths: Sequence[str]) -> None:
        """Fetch what is not here, some at a time. Raises StoreUnreachableError."""

        def fetch(path: str) -> None:
            with suppress(FileNotFoundError):
                self.here(path)

        side_by_side(fetch, (path for path in paths if not Path(self.root, path).exists()))

    def fetch(self, path: str) -> None:
        """Put the object into the folder of this node, whatever is there. Raises FileNotFoundError, StoreUnreachableError."""
        self._bring(path, lambda beside: self.objects.download(path, beside))

    def keep(self, path: str, content: bytes) -> None:
        """Write a copy into the folder of this node."""
        self._bring(path, lambda beside: beside.write_bytes(content))

    def _bring(self, path: str, write: Callable[[Path], object]) -> None:
        """Put a file into the folder of this node, whole or not at all."""
        place = Path(self.root, path)
        beside = place.with_name(f".{uuid4().hex}")
        with on_node(self.root, self.uri):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                write(beside)
                beside.replace(place)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise

    def _got(self, path: str) -> bytes:
        content = self.objects.get(path)
        if content is None:
            raise FileNotFoundError(path)
        return content

    def size(self, path: str) -> None:
        """Return None: who reads a file sees whether it is whole."""
        del path

    def publish(self, paths: Sequence[str]) -> None:
        """Make objects of new files; those that were linked are copied in the store. Raises FileNotFoundError."""
        side_by_side(self._put, (path for path in paths if path not in self._there))

    def _put(self, path: str) -> None:
        source = self._copied.pop(path, None)
        if source is None:
            self.objects.upload(path, Path(self.root, path))
        else:
            self.objects.copy(source, path)
        self._there.add(path)

    def link(self, source: str, target: str) -> None:
        """Note that a file is to be copied in the store when it is published; a copy on this node gets its second name now.

        What comes from the stage is on this node.
        """
        if source.startswith(f"{STAGE}/"):
            second_name(Path(self.root, source), Path(self.root, target))
            return
        with suppress(FileNotFoundError):
            second_name(Path(self.root, source), Path(self.root, target))
        self._copied[target] = source

    def rename(self, source: str, target: str) -> None:
        self._local.rename(source, target)
        if source in self._there:  # an earlier try of its commit has made an object of it
            self._there.discard(source)
            self._copied[target] = source

    def remove(self, path: str) -> None:
        self._copied.pop(path, None)
        self.forget(path)
        self._there.discard(path)
        self.objects.remove([path])

    def forget(self, path: str) -> None:
        """Remove the copy of this node."""
        self._local.remove(path)

    def share(self, paths: Sequence[str]) -> None:
        side_by_side(lambda path: self.objects.upload(path, Path(self.root, path)), paths)

    def place(self, beside: Path, path: str) -> None:
        """Upload a new staged file and rename it to ``path``. Raises FileNotFoundError when the holder lost its claim."""
        reach("store.seal.before_rename")
        if not self.objects.create(path, beside.read_bytes()):
            raise FileNotFoundError(path)
        reach("store.seal.after_object")
        beside.rename(Path(self.root, path))

    def shut_out(self, holder: str, fenced: str) -> None:
        """Take the place of a holder's manifest, or find that there is one; fetch what the holder, or a task of its, has shared on other nodes."""
        self._local.shut_out(holder, fenced)
        manifest = f"{holder}/{MANIFEST}"
        sealed = not self.objects.create(manifest, SHUT_OUT) and self.objects.get(manifest)
        self.gather(holder, fenced)
        if sealed and not Path(self.root, fenced, MANIFEST).exists():
            self.keep(f"{fenced}/{MANIFEST}", sealed)

    def close(self, holder: str) -> None:
        """Take the place of the holder's manifest, as a later holder would."""
        self.objects.create(f"{holder}/{MANIFEST}", SHUT_OUT)

    def sharing(self, holder: str, folder: str) -> Sharing:
        return Sharing(self.objects, holder, folder)

    def leave(self, holder: str, note: str) -> None:
        """Make objects of all that is in the holder's folder, and remove the note."""
        place = Path(self.root, holder)
        Path(place, note).unlink()
        self.share([str(path.relative_to(self.root)) for path in sorted(place.rglob("*")) if path.is_file() and not path.name.startswith(".")])
        self.objects.remove([f"{holder}/{note}"])

    def is_shut_out(self, holder: str) -> bool:
        """Whether a later holder of the claim has taken the place of this one's manifest. One request."""
        return _is_shut_out(self.objects, holder)

    def check_not_shut_out(self, holder: str) -> None:
        """Raise ClaimLostError when another holder took over the claim. One request."""
        _check_not_shut_out(self.objects, holder)

    def gather(self, holder: str, folder: str) -> None:
        """Fetch what was shared of a holder's folder; pieces become files again. Whole files, which were shared last, win.

        What is on this node already was written here, and says more.
        """
        manifest = f"{holder}/{MANIFEST}"
        listed = (each.path for each in self.objects.list(f"{holder}/") if each.path != manifest)
        found = sorted(path for path in listed if not self._is_here(path, holder, folder))
        files, whole = dict[str, bytearray](), dict[str, bytes]()
        for path, content in zip(found, side_by_side(self._got, found), strict=True):
            piece = _PIECE.fullmatch(path)
            if piece is None:
                whole[path] = content
                continue
            file, begin = files.setdefault(piece[1], bytearray()), int(piece[2])
            file.extend(bytes(max(0, begin + len(content) - len(file))))
            file[begin : begin + len(content)] = content
        Path(self.root, folder, JOURNAL).mkdir(parents=True, exist_ok=True)
        for path, file in files.items():
            if path not in whole:
                self.keep(f"{folder}{path.removeprefix(holder)}", bytes(file))
        for path, content in whole.items():
            self.keep(f"{folder}{path.removeprefix(holder)}", content)

    def _is_here(self, path: str, holder: str, folder: str) -> bool:
        piece = _PIECE.fullmatch(path)
        return Path(self.root, f"{folder}{(piece[1] if piece else path).removeprefix(holder)}").exists()

    def remove_tree(self, path: str) -> None:
        self._local.remove_tree(path)
        self.objects.remove([each.path for each in self.objects.list(f"{path}/")])

    def data_files(self) -> Iterator[Found]:
        """Yield the objects of all partitions, and what lies on this node without being one."""
        now, there = datetime.now(UTC), set[str]()
        for each in self.objects.list(""):
            if each.path.startswith("sub_queue="):
                there.add(each.path)
                yield Found(each.path, each.size, (now - each.changed_at).total_seconds())
        yield from (found for found in self._local.data_files() if found.path not in there)

    def stages(self) -> Iterator[Found]:
        """Yield the folders of holders and of sends that have objects, each as young as its youngest."""
        now, found = datetime.now(UTC), dict[str, tuple[int, float]]()
        for each in self.objects.list(f"{STAGE}/"):
            folder = "/".join(each.path.split("/")[:3])
            size, age = found.get(folder, (0, float("inf")))
            found[folder] = (size + each.size, min(age, (now - each.changed_at).total_seconds()))
        yield from (Found(folder, size, age) for folder, (size, age) in found.items())

    def fetched(self, path: str) -> str:
        return self.objects.signed(path, _FETCHED_WITHIN)

    @contextmanager
    def copied(self) -> Iterator[str]:
        with on_node(tempfile.gettempdir(), self.uri), tempfile.TemporaryDirectory(prefix="airflow-poison-copy-") as copy:
            copy_of(self.objects, "", copy)
            for holder in Path(copy, STAGE).glob("*/*"):
                Path(holder, JOURNAL).mkdir(exist_ok=True)  # the journals are on the nodes of their passes
                manifest = holder / MANIFEST
                if manifest.is_file() and manifest.read_bytes() == SHUT_OUT:
                    manifest.unlink()  # the fence marker lists no staged files
            yield copy


def _arrived(objects: Objects) -> BucketFolder:
    store, _, name = objects.uri.rpartition("/")
    node = node_folder(store)
    return BucketFolder(objects, str(node / name), name_of(node, store))


@dataclass(frozen=True, slots=True)
class Sharing:
    """Uploads pieces of a holder's files, so that the holder's progress is known when its node is lost.

    A piece that begins records what may be delivered from now on. The holder uploads the piece before it checks for a fence; a later holder writes
    the fence before it reads the pieces. So at least one of the two sees the other.
    """

    objects: Objects
    holder: str
    folder: str

    def __call__(self, name: str, offset: int, content: bytes) -> None:
        self.objects.put(f"{self.holder}/{self.folder}/{name}.at-{offset:012d}", content)
        _check_not_shut_out(self.objects, self.holder)


def _is_shut_out(objects: Objects, holder: str) -> bool:
    return objects.get(f"{holder}/{MANIFEST}") == SHUT_OUT


def _check_not_shut_out(objects: Objects, holder: str) -> None:
    if _is_shut_out(objects, holder):
        raise ClaimLostError(f"The holder {holder} of the claim in {objects.uri} is shut out: a later one goes on. Nothing more is delivered here.")
