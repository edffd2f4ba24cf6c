"""Children and the zygote that forked them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from airflow_poison.delivery import printed, zygote
from airflow_poison.delivery.journal import Journal
from tests.sessions.test_endpoint_crashes import kill_and_wait
from tests.sessions.zygotes import zygotes

if TYPE_CHECKING:
    from pathlib import Path


def test_a_child_of_a_zygote_that_has_gone_is_not_asked_for_from_another(journals: Path) -> None:
    with Journal(journals, "0") as journal:
        said = printed.create(printed.path_beside(journal.path))
        orphan = zygote.start_child(journal.descriptor, journal.log_descriptor, said)
        kill_and_wait(zygotes())
        zygote.end_zygote()
        child = zygote.start_child(journal.descriptor, journal.log_descriptor, said)

        how = zygote.reap_child(orphan)

        assert how is None
        os.kill(child.pid, signal.SIGKILL)  # else it may end by itself first, when its socket is closed
        assert zygote.reap_child(child) == signal.SIGKILL
        for one in (orphan, child):
            os.close(one.printed)
        os.close(said)
