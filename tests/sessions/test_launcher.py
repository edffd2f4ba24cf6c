"""Children and the zygote that forked them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from airflow_poison.core.delivery.sessions import lastoutput, launcher
from airflow_poison.core.delivery.sessions.journalfile import Journal
from tests.sessions.test_endpoint_crashes import kill_and_wait

if TYPE_CHECKING:
    from pathlib import Path


def test_a_child_of_a_zygote_that_has_gone_is_not_asked_for_from_another(journals: Path) -> None:
    with Journal(journals, "0") as journal:
        said = lastoutput.create(lastoutput.path_beside(journal.path))
        orphan = launcher.start_child(journal.descriptor, journal.log_descriptor, said)
        kill_and_wait(psutil.Process().children())
        launcher.end_zygote()
        child = launcher.start_child(journal.descriptor, journal.log_descriptor, said)

        how = launcher.reap_child(orphan)

        assert how is None
        os.kill(child.pid, 0)
        status = launcher.reap_child(child)
        assert status is not None
        assert os.WIFSIGNALED(status)
        for one in (orphan, child):
            os.close(one.printed)
        os.close(said)
