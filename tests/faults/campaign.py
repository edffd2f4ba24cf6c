"""The campaign: episodes of many actors under faults, each followed by a quiet end and by the checker.

The controller forks each run from itself, so it imports everything first and uses none of it: delta-rs must not be used before a fork.
A seed fixes what is tried: tasks, faults, order of starts. It cannot fix how the kernel interleaves processes.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  (pyarrow would import it in every run)
import pyarrow.compute
import pyarrow.parquet  # noqa: F401  (as above)
from deltalake import DeltaTable  # noqa: F401  (imported, never used, before a fork)
from deltalake.transaction import AddAction  # noqa: F401

from airflow_poison.core.errors import PoisonError
from tests.faults import actors, planted
from tests.faults.actor import Place, Task
from tests.faults.checker import check
from tests.faults.inject import CALLS, ERRORS, Injector, Plan, What
from tests.faults.ledger import FOLDER, Reader, append, note
from tests.faults.points import OF_THE_HANDLER, named_points
from tests.faults.talks import TALKERS
from tests.faults.verdict import Verdict
from tests.faults.world import LEASE, LONGEST_STOP, SPEED, Strangers, queues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SIDE_BY_SIDE = 4  # runs that go on; those that are stopped wait beside them
_MOST = 16
_HOLDING = ("store.claim.before_fence", "store.claim.after", "pass.deliver", "delivery.", "store.outcomes", "store.seal", "store.finish.", "handler.")
"""Where a receiver has a claim: one that is stopped there can be overtaken."""
_OF_DIALOGS = "delivery.dialogs."
_MEMORY = "/dev/shm"
"""Where episodes take place if possible: no kill of a process takes anything from a file system, whatever it lies on."""
_LONGEST_RUN = 60.0
_ROLES = {
    "send": 24,
    "receive": 46,
    "return": 8,
    "alert": 8,
    "administer": 22,
    "declare": 1,
    "maintain": 9,
    "repair": 0.5,
    "intrude": 0,
    "recover": 0,
}
_STRANGERS = 4
"""The weight of strangers, where there are any."""
_FAULTS = {What.NOTHING: 14, What.KILL: 34, What.LATE: 14, What.STOP: 10, What.ERROR: 8, What.CALL: 4, What.FULL: 3}
_OF_RECEIVERS = _FAULTS | {What.STOP: 100}
_OF_SESSIONS = _FAULTS | {What.STOP: 70, What.CHILD: 30, What.BOTH: 15}
"""Of receivers whose handlers run in a process of their own."""
_IN_SESSIONS = 0.25
"""The share of such receivers."""
_UPGRADING = ("store.upgrade.before_commit", "store.upgrade.after_commit")
_DONE, _FAILED, _BROKEN = 0, 3, 4


@dataclass(slots=True)
class Run:
    """A try of a task."""

    number: int
    task: Task
    plan: Plan
    tries: int
    started: float
    kill_at: float | None = None
    child: int | None = None
    kill_child_at: float | None = None
    stopped_at: float | None = None
    attempts: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    overtaken: bool = False


def _expected() -> dict[str, Counter[str]]:
    """Return points that receivers will reach: where they have a claim; the others show it by and by."""
    holding = [point for point in (*named_points(), *OF_THE_HANDLER) if point.startswith(_HOLDING)]
    kinds = {Task("receive", queue, "", 0).kind: queue in TALKERS for queue in queues()}
    return {kind: Counter(point for point in holding if talks or not point.startswith(_OF_DIALOGS)) for kind, talks in kinds.items()}


@dataclass(slots=True)
class Score:
    """What a campaign has seen.

    :ivar children: of the kills, those of children of server sessions.
    :ivar removed: data files and log entries that maintainers have removed.
    """

    kills: int = 0
    zombies: int = 0
    children: int = 0
    stops: int = 0
    io_errors: int = 0
    power_losses: int = 0
    removed: int = 0
    runs: int = 0
    visited: Counter[str] = field(default_factory=Counter)
    visits: dict[str, Counter[str]] = field(default_factory=_expected)
    faulted: Counter[str] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    drained: float = 0.0
    checked: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)

    def to_dict(self) -> dict[str, object]:
        faults = {name: getattr(self, name) for name in ("kills", "zombies", "io_errors", "power_losses")}
        return faults | self.verdict.numbers() | {name: getattr(self, name) for name in ("children", "stops", "removed", "runs")}


class Episode:
    """One store, some seconds of faults, a quiet end, and the checker's verdict.

    :param seed: fixes what is tried.
    :param seconds: how long actors run under faults.
    :param score: what the campaign has seen so far; added to, and asked which points have been met least.
    :param names: its queues; empty: all.
    :ivar quiet: whether everything has come to its end, so far.
    """

    def __init__(self, folder: Path, seed: int, seconds: float, score: Score, bug: str = "", names: tuple[str, ...] = ()) -> None:  # noqa: PLR0917
        self._chance, self._seconds, self._score, self._bug = random.Random(seed), seconds, score, bug
        self._patience = 12.0 if bug else 180.0
        old, power = self._chance.random() < 0.4, self._chance.random() < 0.5
        strangers = self._chance.choices([*Strangers], [70, 20, 10])[0]
        self._place = Place(str(folder), time.monotonic(), old, power, strangers, names or (*queues(),))
        self._roles = _ROLES | {"intrude": _STRANGERS if strangers is not Strangers.NONE else 0}
        self._unopened = {*self._place.queues} - TALKERS.keys() if old else set()
        self._reader = Reader(folder)
        self._runs: dict[int, Run] = {}
        self._again: list[tuple[Task, int]] = []
        self._follow: list[tuple[float, Task, int]] = []
        self._calm: set[str] = set()
        self._unsent: dict[str, Task] = {}
        self._killed: dict[int, bool] = {}
        self.quiet = True
        self._numbers = 0
        self._visits = score.visits

    @property
    def kind(self) -> str:
        """What is special about it, for people."""
        place = self._place
        strangers = place.strangers is not Strangers.NONE
        return ", old tables" * place.old + ", power fails" * place.power + f", strangers {place.strangers}" * strangers

    def run(self) -> Verdict:
        self._alone(lambda: actors.prepare(self._place))
        until = time.monotonic() + self._seconds
        power = until - self._chance.uniform(0.05, 0.7) * self._seconds if self._place.power else None
        while time.monotonic() < until:
            if power is not None and time.monotonic() > power:
                self._lose_power()
                power = None
            while len(self._runs) < _MOST and sum(run.stopped_at is None for run in self._runs.values()) < SIDE_BY_SIDE:
                self._start(*self._next())
            self._look()
            time.sleep(0.002)
        while self._runs:
            for run in self._runs.values():
                run.kill_at = None
            self._look()
            time.sleep(0.005)
        faults = time.monotonic()
        self._drain()
        drained = time.monotonic()
        verdict = self._verdict()
        self._score.drained += drained - faults
        self._score.checked += time.monotonic() - drained
        return verdict

    # What is started --------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[Task, int]:
        for follower in self._follow:
            if follower[0] < time.monotonic():
                self._follow.remove(follower)
                return follower[1:]
        if self._again and self._chance.random() < 0.6:
            return self._again.pop(0)
        self._numbers += 1
        role = self._chance.choices([*self._roles], [*self._roles.values()])[0]
        names = self._place.queues
        returning = [name for name in names if name in {"move", "reject"}]
        queue = self._chance.choice(returning if role == "return" and returning else names)
        isolation = "process" if role == "receive" and self._chance.random() < _IN_SESSIONS else "none"
        return Task(role, queue, f"{role}-{self._numbers}", self._chance.getrandbits(40), isolation), 0

    def _plan(self, task: Task) -> Plan:
        chance, role = self._chance, task.role
        if task.queue in self._unopened:
            self._unopened.remove(task.queue)
            return Plan(chance.choice([What.KILL, What.KILL, What.STOP, What.ERROR]), chance.choice(_UPGRADING), number=chance.choice(ERRORS))
        faults = _FAULTS if role != "receive" else _OF_RECEIVERS if task.isolation == "none" else _OF_SESSIONS
        what = chance.choices([*faults], [*faults.values()])[0]
        match what:
            case What.LATE | What.CHILD | What.BOTH:
                return Plan(what, seconds=chance.uniform(0, 0.35))
            case What.CALL:
                return Plan(what, visit=chance.randint(1, 30), number=chance.choice(ERRORS))
            case What.FULL:
                return Plan(what, number=chance.choice([0, 1, 2_000, 5_000, 40_000]))
            case _:
                holding = what is What.STOP and role == "receive" and chance.random() < 0.9
                point = self._point(task, _HOLDING if holding else ("",))
                return Plan(what, point, 1 if point else chance.randint(1, 9), number=chance.choice(ERRORS))

    def _point(self, task: Task, parts: tuple[str, ...]) -> str:
        """Return a point that such tasks reach, rather one where little has happened yet."""
        reached = sorted(point for point in self._visits_of(task) if point.startswith(parts))
        if not reached:
            return ""
        return self._chance.choices(reached, [1 / (1 + self._score.faulted[point]) for point in reached])[0]

    def _visits_of(self, task: Task) -> Counter[str]:
        return self._visits.setdefault(task.kind, Counter())

    def _start(self, task: Task, tries: int) -> None:
        plan = Plan() if task.key in self._calm and self._chance.random() < 0.8 else self._plan(task)
        number = self._score.runs = self._score.runs + 1
        if task.role == "send":
            self._unsent.setdefault(task.key, task)
        pid = self._fork(number, task.queue, lambda: self._act(task, plan))
        now = time.monotonic()
        self._runs[pid] = Run(number, task, plan, tries, now, now + plan.seconds if plan.what is What.LATE else None)

    def _act(self, task: Task, plan: Plan) -> None:
        injector = Injector(plan)
        injector.install()
        try:
            actors.act(task, self._place)
        finally:
            note("points", of=task.kind, visited=dict(injector.visited))

    def _fork(self, number: int, queue: str, act: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = _BROKEN
        try:
            actors.enter(self._place, number, queue)
            output = os.open(f"{self._place.folder}/output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            planted.plant(self._bug)
            act()
            code = _DONE
        except PoisonError as error:
            note("error", type=type(error).__name__, text=str(error)[:300])
            code = _FAILED
        except BaseException as error:  # noqa: BLE001  (the last frame of this process)
            note("error", type=type(error).__name__, text=str(error)[:300], unnamed=True)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # delta-rs has threads that do not like to be ended

    # What becomes of it -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for line in self._reader.news():
            self._heed(line)
        now = time.monotonic()
        for pid, run in [*self._runs.items()]:
            if run.kill_child_at is not None and now > run.kill_child_at:
                run.kill_child_at = None
                self._kill_child(run)
                run.kill_at = now if run.plan.what is What.BOTH else None
            if run.kill_at is not None and now > run.kill_at:
                os.kill(pid, signal.SIGKILL)
                run.kill_at = None
            if run.stopped_at is not None and (run.overtaken or now - run.stopped_at > self._longest_stop(run)):
                run.stopped_at = None
                os.kill(pid, signal.SIGCONT)
            if now - run.started > _LONGEST_RUN:
                self._stays(f"run {run.number} of {run.task} under {run.plan} did not end")
                os.kill(pid, signal.SIGKILL)
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED) if self._runs else (0, 0)
            if not pid:
                return
            if pid in self._runs:
                self._changed(pid, status)

    def _kill_child(self, run: Run) -> None:
        assert run.child is not None
        append(self._place.folder, "child_killed", run.number, pid=run.child)
        with suppress(ProcessLookupError):
            os.kill(run.child, signal.SIGKILL)
            self._score.kills += 1
            self._score.children += 1

    @staticmethod
    def _longest_stop(run: Run) -> float:
        return LONGEST_STOP if run.attempts or run.task.role == "maintain" else 0.4

    def _heed(self, line: Mapping[str, object]) -> None:  # noqa: C901, PLR0912  (one short case a kind of line)
        run = next((run for run in self._runs.values() if run.number == line["run"]), None)
        match line["kind"]:
            case "made" if run is not None:
                run.attempts.add(str(line["attempt"]))
            case "call" if run is not None and line["child"] and run.child != line["pid"]:
                assert isinstance(line["pid"], int)
                if run.plan.what in {What.CHILD, What.BOTH} and run.child is None:
                    run.kill_child_at = time.monotonic() + run.plan.seconds / 20
                run.child = line["pid"]
            case "removed":
                self._score.removed += 1
            case "held":
                earlier = line["earlier"]
                assert isinstance(earlier, list)
                for other in self._runs.values():
                    if other.number != line["run"] and other.stopped_at is not None and other.attempts & set(earlier) and not other.overtaken:
                        other.overtaken = True
                        self._score.zombies += 1
            case "fault":
                self._score.faulted[str(line["point"])] += 1
                self._score.io_errors += line["what"] in {"error", "call", "full"}
                if run is not None and isinstance(visited := line.get("visited"), dict):
                    self._score.visited.update(visited)
                    self._visits_of(run.task).update(visited)
            case "points":
                visited = line["visited"]
                assert isinstance(visited, dict)
                self._score.visited.update(visited)
                self._visits.setdefault(str(line["of"]), Counter()).update(visited)
            case "error" if line["type"] == "QueueHaltedError" and run is not None:
                self._follow_with("recover", run.task.queue)
            case "error" if run is not None and str(line["text"]).startswith("Somebody else has committed"):
                self._follow_with("repair", run.task.queue)
            case "error" if line.get("unnamed"):
                self._score.unnamed[f"{line['type']}: {str(line['text'])[:120]}"] += 1
            case "sent" | "talked":
                self._unsent.pop(str(line["key"]), None)

    def _follow_with(self, role: str, queue: str) -> None:
        if not any(task.role == role and task.queue == queue for _, task, _ in self._follow):
            self._numbers += 1
            self._follow.append((0.0, Task(role, queue, f"{role}-{self._numbers}", self._chance.getrandbits(40)), 0))

    def _lose_power(self) -> None:
        """End every process at once, and put the store into the state that the disk has kept."""
        for pid, run in [*self._runs.items()]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._killed[run.number] = True
            if run.task.role == "send" or self._chance.random() < 0.75:
                self._again.append((run.task, run.tries + 1))
        end_children(self._place.folder)
        for line in self._reader.news():
            self._heed(line)
        self._runs.clear()
        self._follow.clear()
        self._place.disk.lose_power()
        append(self._place.folder, "power", 0)
        self._score.power_losses += 1

    def _changed(self, pid: int, status: int) -> None:
        run = self._runs[pid]
        if os.WIFSTOPPED(status):
            self._score.stops += 1
            run.stopped_at = time.monotonic()
            if run.task.role == "receive":  # either Airflow thinks it is dead and runs it again, or another run finds its claim expired
                other = replace(run.task, key=f"{run.task.key}-other") if self._chance.random() < 0.5 else run.task
                self._calm.add(other.key)
                self._follow.append((time.monotonic() + (0.0 if other is run.task else LEASE.total_seconds() / SPEED), other, run.tries + 1))
            return
        del self._runs[pid]
        if os.WIFSIGNALED(status):
            self._score.kills += 1
            self._killed[run.number] = run.plan.what is What.LATE
        if (not os.WIFEXITED(status) or os.WEXITSTATUS(status)) and (run.task.role == "send" or (run.tries < 4 and self._chance.random() < 0.75)):
            self._again.append((run.task, run.tries + 1))

    # The end ----------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        time.sleep(LEASE.total_seconds() / SPEED)
        talking = tuple(name for name in self._place.queues if name in TALKERS)
        left: set[tuple[str, ...]] = {(name,) for name in self._place.queues if name not in TALKERS} | ({talking} if talking else set())
        until = time.monotonic() + self._patience
        while left:  # some messages end every process that delivers them
            if time.monotonic() > until:
                self._stays(f"{sorted(left)} did not become quiet")
                return
            for line in self._reader.news():
                self._heed(line)
            left = self._side_by_side({group: self._ending(group) for group in left})

    def _ending(self, group: tuple[str, ...]) -> Callable[[], None]:
        unsent = [task for task in self._unsent.values() if task.queue in group]
        return lambda: actors.drain(self._place, group, unsent)

    def _alone(self, act: Callable[[], None]) -> None:
        self._side_by_side({("",): act})

    def _side_by_side(self, acts: Mapping[tuple[str, ...], Callable[[], None]]) -> set[tuple[str, ...]]:
        """Do things without faults, each in a process of its own, and wait for them; return those that were killed all the same."""
        started = {}
        for group, act in acts.items():
            number = self._score.runs = self._score.runs + 1
            started[self._fork(number, group[0], act)] = number, group
        killed, until = set(), time.monotonic() + self._patience
        for pid, (number, group) in started.items():
            status = self._ended(pid, until)
            if status is None:
                self._stays(f"the quiet end of {group} did not come")
            elif os.WIFSIGNALED(status):
                self._killed[number] = False
                killed.add(group)
            elif os.WEXITSTATUS(status):
                self._stays(f"the quiet end of {group} failed")
        return killed

    def _stays(self, what: str) -> None:
        self.quiet = False
        self._score.verdict.stuck.append(f"{what}, see {self._place.folder}")

    @staticmethod
    def _ended(pid: int, until: float) -> int | None:
        """Return how a process ended; None when it had to be ended because it took too long."""
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None

    def _verdict(self) -> Verdict:
        for line in self._reader.news():
            self._heed(line)
        told = Path(self._place.folder, "verdict.json")
        quiet = self.quiet

        def tell() -> None:
            told.write_text(json.dumps(check(self._place.folder, self._killed, quiet=quiet).to_dict()))

        self._alone(tell)
        if told.exists():
            return Verdict.from_dict(json.loads(told.read_text()))
        printed = Path(self._place.folder, "output.txt").read_text(errors="replace").splitlines()
        return Verdict(stuck=[f"the checker failed: {' | '.join(printed[-7:])}"])


def end_children(folder: str) -> None:
    """End the processes that runs have started, and that outlive them for a moment; their environment says whose they are."""
    wanted = f"{FOLDER}={folder}\0".encode()
    while found := [pid for pid in _processes() if wanted in _environment(pid)]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> bytes:
    """Return what a process was started with; nothing of one that has ended, or is somebody else's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True, slots=True)
class Budget:
    """When a campaign ends.

    :param kills: at least so many.
    :param zombies: at least so many.
    :param seconds: at most so long.
    :param episode: seconds of faults in an episode.
    :param queues: which of them there are; empty: all.
    """

    kills: int
    zombies: int
    seconds: float
    episode: float = 10.0
    queues: tuple[str, ...] = ()


def run_campaign(seed: int, budget: Budget, *, bug: str = "", stop_at_first: bool = False, tell: Callable[[str], None] = lambda _: None) -> Score:
    """Run episodes until the budget is used; keep the folders of those that show a violation."""
    score, started, number = Score(), time.monotonic(), 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    while time.monotonic() - started < budget.seconds and (score.kills < budget.kills or score.zombies < budget.zombies):
        folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-{number}-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
        episode = Episode(folder, seed + number, budget.episode, score, bug, budget.queues)
        verdict = episode.run()
        score.verdict.add(verdict)
        number += 1
        passed = verdict.passed and episode.quiet
        tell(f"episode {number}, seed {seed + number - 1}{episode.kind}: {json.dumps(score.to_dict())}")
        if passed:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        for line in verdict.lines()[:20]:
            tell(f"  {line}")
        if bug:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            tell(f"  kept: {folder}")
        if stop_at_first:
            break
    return score


__all__ = ["CALLS", "Budget", "Score", "run_campaign"]
