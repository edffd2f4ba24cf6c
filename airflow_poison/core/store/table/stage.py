"""The stage of a claim: one folder per holder, and the fence that shuts earlier holders out of theirs.

``_stage/<run key>/<attempt>/`` is made before the commit of the claim that names it, and never again. A take-over renames it to
``<attempt>.fenced``: a holder that wakes up too late finds no folder to open a journal in or to put a manifest in, and what it had
put there before stays readable. A folder that such a holder makes anew under the old name is never looked at.
"""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from airflow_poison.core.errors import ClaimLostError
from airflow_poison.core.store import durability
from airflow_poison.core.store.table.layout import stage_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.core.store.files import Claim

OUT = "out"
JOURNAL = "journal"
BEGUN = "begun"
_FENCED = ".fenced"


@dataclass(slots=True)
class Attempt:
    """The folder of a new holder: made when a claim is about to be committed, another one for each try of that commit (see ``cleaning``)."""

    root: str
    key: str
    _name: str = ""

    def made(self) -> str:
        """Make a folder and return its name; an earlier try's goes."""
        if self._name:
            remove_tree(Path(self.root, stage_folder(self.key), self._name))
        self._name = token_hex(8)
        journal = Path(self.root, stage_folder(self.key), self._name, JOURNAL)
        while True:
            with suppress(FileNotFoundError):  # somebody has removed the empty folder of the key at this very moment
                journal.mkdir(parents=True, exist_ok=True)
                return self._name

    def drop(self) -> None:
        """Remove the folder of a holder that never was."""
        if self._name:
            remove_tree(Path(self.root, stage_folder(self.key), self._name))
            with suppress(OSError):  # others use the key's folder
                Path(self.root, stage_folder(self.key)).rmdir()


def own(root: str, claim: Claim) -> Path:
    """Return this holder's folder. Raises ClaimLostError when a later holder has fenced it."""
    folder = Path(root, stage_folder(claim.key), claim.attempt)
    if not Path(folder, JOURNAL).is_dir():
        raise ClaimLostError(lost(claim))
    return folder


def begin(root: str, claim: Claim, note: str, *, durable: bool) -> None:
    """Write a holder's note of how its delivery begins. Raises ClaimLostError when a later holder has fenced it."""
    folder = own(root, claim)
    try:
        (folder / BEGUN).write_text(note)
        if durable:
            durability.sync(folder / BEGUN)
            durability.sync_up(folder, Path(root))
    except FileNotFoundError as error:  # fenced while it was written
        raise ClaimLostError(lost(claim)) from error


def lost(claim: Claim) -> str:
    """Return the words for a claim that is not held any more."""
    return (
        f"The claim {claim.key!r} (epoch {claim.epoch}) is not held any more: it expired and was taken over, was released, or is finished. "
        "This pass changes nothing; its messages are with the later holder. Run the task again if it should look for further work."
    )


def fence(root: str, claim: Claim) -> None:
    """Shut the earlier holders out. Safe to repeat, and by anybody who knows the claim. Raises OSError when one could not be shut out.

    Whatever such a holder has done is looked for behind the fence: to go on without would deliver it again.
    """
    folder = Path(root, stage_folder(claim.key))
    for attempt in claim.earlier:
        try:
            Path(folder, attempt).rename(folder / (attempt + _FENCED))
        except OSError as error:
            # ENOENT: done by an earlier call. ENOTEMPTY: done too, and the shut-out holder has made its folder anew; nobody looks there.
            if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
                raise


def earlier(root: str, claim: Claim) -> Sequence[Path]:
    """Return the fenced folders of earlier holders, oldest first."""
    folder = Path(root, stage_folder(claim.key))
    fenced = [folder / (attempt + _FENCED) for attempt in claim.earlier]
    return [path for path in fenced if path.is_dir()]


def names(key: str, attempt: str) -> tuple[str, str]:
    """Return where, below the table's root, the folder of a holder of a claim may lie: before the fence and after it."""
    folder = f"{stage_folder(key)}/{attempt}"
    return folder, folder + _FENCED


def clear(root: str, key: str) -> None:
    """Remove everything staged under a run key; what cannot be removed is harmless (maintenance sweeps it)."""
    remove_tree(Path(root, stage_folder(key)))


def remove_tree(folder: Path) -> None:
    """Remove a folder as far as possible: a shut-out holder may still write below it."""
    shutil.rmtree(folder, ignore_errors=True)
