"""Handlers for the tests of conversations: the body says what they do, and every call is written down.

A body is ``<folder> <word>[,<word>...]``; a system message has none, and its handler ends the conversation.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.values.failures import Postpone, Unprocessable
from tests.sessions.endpoint_handlers import _strike, _until, _write

if TYPE_CHECKING:
    from airflow_poison.dialogs.transaction import Conversation
    from airflow_poison.values.message import Message

kept: list[Conversation] = []
"""Conversations that a handler keeps beyond its delivery."""


def talk(message: Message) -> None:
    """Do what the body says, word by word."""
    if message.is_system:
        assert message.conversation is not None
        message.conversation.end()
        return
    folder, _, said = message.text.partition(" ")
    _write(folder, "call", message)
    for word in said.split(","):
        act(message, folder, *word.split(" ", 1))
    _write(folder, "done", message)


def talk_and_return(message: Message) -> object:
    """Do what the body says, and return work that has not been done."""
    talk(message)
    return (word for word in message.text.split())


def act(message: Message, folder: str, word: str, argument: str = "") -> None:  # noqa: C901, PLR0912, PLR0915  (one branch a word)
    """Do one thing."""
    conversation = message.conversation
    if word == "plain":
        assert conversation is None
        return
    assert conversation is not None
    match word:
        case "ok":
            pass
        case "answer":
            conversation.reply(argument or f"to {message.lookup_id}", "Answer")
        case "ask":
            conversation.send({"asks": argument}, "Question")
        case "end":
            conversation.end()
        case "end-error":
            conversation.end(int(argument), "no")
        case "cleanup":
            conversation.end_with_cleanup()
        case "timer":
            conversation.set_timer(float(argument))
        case "raise":
            raise ValueError(f"bad {message.lookup_id}")
        case "raise-once" if not message.abort_count:
            raise ValueError(f"bad {message.lookup_id}")
        case "die-once" if not message.abort_count:
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang-once" if not message.abort_count:
            time.sleep(3600)
        case "raise-once" | "die-once" | "hang-once":
            pass
        case "unprocessable":
            raise Unprocessable("no")
        case "postpone":
            raise Postpone
        case "savepoint":
            conversation.roll_back_to_savepoint()
        case "track":
            conversation.track_failure()
        case "keep":
            kept.append(conversation)
        case "use-kept":
            kept[0].reply("late", "Answer")
        case "later":
            thread = threading.Thread(target=_later, args=(conversation, Path(folder) / "late"))
            thread.start()
        case "until-late":
            _until((Path(folder) / "late").exists)
        case "in-a-fork":
            _in_a_fork(conversation, Path(folder) / "forked")
        case "state":
            (Path(folder) / f"state-{message.lookup_id}").write_text(conversation.state.value)
        case "large":
            conversation.reply(b"x" * int(argument), "Answer")
        case "meet":
            (Path(folder) / f"met-{message.lookup_id}").touch()
            _until(lambda: len(list(Path(folder).glob("met-*"))) >= int(argument))
        case "worker" | "all":
            if (Path(folder) / "worker").exists():
                _strike(Path(folder) / "worker", also_here=word == "all")
        case _:
            raise AssertionError(word)


def _later(conversation: Conversation, path: Path) -> None:
    """Act in a conversation when its delivery is over."""
    _until(lambda: conversation._closed)
    try:
        conversation.reply("late", "Answer")
    except Exception as error:  # noqa: BLE001
        beside = path.with_suffix(".new")
        beside.write_text(f"{type(error).__name__}: {error}")
        beside.rename(path)  # whoever sees it reads all of it


def _in_a_fork(conversation: Conversation, path: Path) -> None:
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    try:
        conversation.reply("elsewhere", "Answer")
    except Exception as error:  # noqa: BLE001
        path.write_text(f"{type(error).__name__}: {error}")
    os._exit(0)


def put_off(message: Message) -> None:
    """Give every message back for later."""
    raise Postpone


def refuse(message: Message) -> None:
    """Call every message unprocessable."""
    raise Unprocessable("no")
