"""An episode: one store, many actors under faults, a quiet end, and what the checker says.

The controller forks each run from itself, so it imports everything first and uses none of it: delta-rs must not be used before a fork.
A seed fixes what is tried: tasks, faults, order of starts. It cannot fix how the kernel interleaves processes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb  # noqa: F401  (imported, never used, before a fork)
import obstore.store  # noqa: F401  (imported, never used, before a fork)
import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  (pyarrow would import it in every run)
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet  # noqa: F401  (as above)
import sqlalchemy  # noqa: F401  (as above)
from deltalake import DeltaTable  # noqa: F401  (imported, never used, before a fork)
from deltalake.transaction import AddAction  # noqa: F401

from airflow_poison.values.errors import PoisonError
from tests.faults import actors, planted
from tests.faults.actor import Place, Task
from tests.faults.bucket import URI, mirror
from tests.faults.chances import Chances
from tests.faults.checker import check
from tests.faults.inject import Injector, Plan, What
from tests.faults.ledger import Reader, append, note
from tests.faults.processes import end_children, ended
from tests.faults.talks import TALKERS
from tests.faults.verdict import Verdict
from tests.faults.world import LONGEST_STOP, LONGEST_STOP_IN_A_BUCKET, SPEED, Strangers, queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.faults.bucket import Bucket
    from tests.faults.score import Score

SIDE_BY_SIDE = 4  # runs that go on; those that are stopped wait beside them
_MOST = 16
_LONGEST_RUN = 60.0
_NODES = 3
_LOST = 0.4
"""The share of the kills after which the node is lost, too."""
_DONE, _FAILED, _BROKEN = 0, 3, 4
_MENDABLE = ("Somebody else has committed", "The log of the queue table")
"""How errors begin that people answer with a repair."""
_PERSISTENT = frozenset({"send", "damage"})
"""What is run again until it is done."""
_OF_BOTH = frozenset({"send", "receive", "administer"})
"""What the other Airflow may run as well."""


@dataclass(slots=True)
class Run:
    """A try of a task."""

    number: int
    task: Task
    plan: Plan
    tries: int
    started: float
    node: str
    kill_at: float | None = None
    child: int | None = None
    kill_child_at: float | None = None
    stopped_at: float | None = None
    attempts: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    overtaken: bool = False


class Episode:
    """One store, some seconds of faults, a quiet end, and the checker's verdict.

    :param seed: fixes what is tried.
    :param seconds: how long actors run under faults.
    :param score: what the campaign has seen so far; added to, and asked which points have been met least.
    :param names: its queues; empty: all.
    :param bucket: where they are, if not in a folder. Then there are no earlier formats, which were never in a bucket; no loss of power, for a
        store that has answered keeps its word; no strangers, whom no repair undoes there; and nobody damages files, which are copies. Processes run
        on several nodes instead, and a node may be lost with its folder. Outputs, sources and exports stay in a folder that all nodes see.
    :ivar stuck: what has not come to its end, so far.
    """

    def __init__(  # noqa: PLR0917
        self, folder: Path, seed: int, seconds: float, score: Score, bug: str = "", names: tuple[str, ...] = (), bucket: Bucket | None = None
    ) -> None:
        self._random, self._seconds, self._score, self._bug = random.Random(seed), seconds, score, bug
        self._patience = 20.0 if bug else 180.0 if bucket is None else 720.0
        self._random.random()  # keeps what the seeds of the tests stand for
        power = self._random.random() < 0.5
        strangers = self._random.choices([*Strangers], [50, 35, 15] if power else [70, 20, 10])[0]
        damaged = self._random.random() < 0.3
        shared = self._random.random() < 0.4
        if bucket is not None:
            power, strangers, damaged = False, Strangers.NONE, False
        self._bucket, at = bucket, (URI, bucket.options) if bucket is not None else ("", {})
        self._place = Place(str(folder), time.monotonic(), power, strangers, damaged, shared, names or (*queues(),), *at)
        self._nodes = [f"node-{number}" for number in range(_NODES)]
        self._chances = Chances(self._random, self._place, score)
        self._reader = Reader(folder)
        self._runs: dict[int, Run] = {}
        self._again: list[tuple[Task, int]] = []
        self._follow: list[tuple[float, Task, int]] = []
        self._calm: set[str] = set()
        self._unsent: dict[str, Task] = {}
        self._killed: dict[int, bool] = {}
        self._damage = Counter[str]()
        self._errors: dict[int, str] = {}
        self.stuck: list[str] = []
        self._numbers = self._harmed = 0

    @property
    def kind(self) -> str:
        """What is special about it, for people."""
        place = self._place
        strangers = place.strangers is not Strangers.NONE
        done = ", ".join(f"{what} {times}" for what, times in sorted(self._damage.items()))
        damaged = f", files are damaged ({done or 'none yet'})" * place.damaged
        return (
            ", power fails" * place.power
            + f", strangers {place.strangers}" * strangers
            + damaged
            + ", two Airflows" * place.shared
            + f", in a bucket ({self._harmed} requests harmed)" * bool(place.bucket)
        )

    def run(self) -> Verdict:
        self._alone(lambda: actors.prepare(self._place))
        if self._bucket is not None:
            self._bucket.storm()
        until = time.monotonic() + self._seconds
        power = until - self._random.uniform(0.05, 0.7) * self._seconds if self._place.power else None
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
        if self._bucket is not None:
            self._bucket.calm()
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
        if self._again and self._random.random() < 0.6:
            return self._again.pop(0)
        self._numbers += 1
        task = self._chances.task(self._numbers)
        if self._place.shared and task.role in _OF_BOTH and self._random.random() < 0.4:
            self._follow.append((time.monotonic(), replace(task, installation="two"), 0))
        return task, 0

    def _start(self, task: Task, tries: int) -> None:
        plan = Plan() if task.name in self._calm and self._random.random() < 0.8 else self._chances.plan(task)
        number = self._score.runs = self._score.runs + 1
        if task.role == "send":
            self._unsent.setdefault(task.name, task)
        node = self._some_node()
        pid = self._fork(number, task.queue, node, lambda: self._act(task, plan))
        now = time.monotonic()
        late = now + plan.seconds * self._slowness if plan.what is What.LATE else None
        self._runs[pid] = Run(number, task, plan, tries, now, node, late)

    def _some_node(self) -> str:
        return self._random.choice(self._nodes) if self._place.bucket else ""

    @property
    def _slowness(self) -> float:
        """How much longer a run takes than in a folder."""
        return 4.0 if self._place.bucket else 1.0

    def _act(self, task: Task, plan: Plan) -> None:
        injector = Injector(plan)
        injector.install()
        try:
            actors.act(task, self._place)
        finally:
            note("points", of=task.kind, visited=dict(injector.visited))

    def _fork(self, number: int, queue: str, node: str, act: Callable[[], None]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = _BROKEN
        try:
            actors.enter(self._place, number, queue, node)
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
            if now - run.started > _LONGEST_RUN * self._slowness:
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

    def _longest_stop(self, run: Run) -> float:
        longest = LONGEST_STOP_IN_A_BUCKET if self._place.bucket else LONGEST_STOP
        return longest if run.attempts or run.task.role == "maintain" else 0.4

    def _heed(self, line: Mapping[str, object]) -> None:  # noqa: C901, PLR0912  (one short case a kind of line)
        run = next((run for run in self._runs.values() if run.number == line["run"]), None)
        match line["kind"]:
            case "made" if run is not None:
                run.attempts.add(str(line["attempt"]))
            case "call" if run is not None and line["child"] and run.child != line["pid"]:
                assert isinstance(line["pid"], int)
                if run.plan.what in {What.CHILD, What.BOTH} and run.child is None:
                    run.kill_child_at = time.monotonic() + run.plan.seconds * self._slowness / 20
                run.child = line["pid"]
            case "removed":
                self._score.removed += 1
            case "injected":
                self._score.injected += 1
                self._harmed += 1
            case "damage":
                self._score.damages += 1
                self._damage[str(line["what"])] += 1
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
                    self._score.visits_of(run.task).update(visited)
            case "points":
                visited = line["visited"]
                assert isinstance(visited, dict)
                self._score.visited.update(visited)
                self._score.visits.setdefault(str(line["of"]), Counter()).update(visited)
            case "error" if line["type"] == "QueueHaltedError" and run is not None:
                self._follow_with("recover", run.task.queue)
            case "error" if run is not None and str(line["text"]).startswith(_MENDABLE):
                self._follow_with("repair", run.task.queue)
            case "error":
                self._errors[int(str(line["run"]))] = said = f"{line['type']}: {str(line['text'])[:300]}"
                self._score.unnamed.update([said[:160]] * bool(line.get("unnamed")))
            case "sent" | "talked" | "taken":
                self._unsent.pop(str(line["key"]), None)

    def _follow_with(self, role: str, queue: str) -> None:
        if not any(task.role == role and task.queue == queue for _, task, _ in self._follow):
            self._numbers += 1
            self._follow.append((0.0, Task(role, queue, f"{role}-{self._numbers}", self._random.getrandbits(40)), 0))

    def _lose_power(self) -> None:
        """End every process at once, and put the store into the state that the disk has kept."""
        self._end([*self._runs])
        end_children(self._place.folder)
        for line in self._reader.news():
            self._heed(line)
        self._follow.clear()
        self._place.disk.lose_power()
        append(self._place.folder, "power", 0)
        self._score.power_losses += 1

    def _end(self, pids: Iterable[int]) -> None:
        """End processes that nobody has expected to end."""
        for pid in pids:
            run = self._runs[pid]
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._killed[run.number] = True
            if run.task.role in _PERSISTENT or self._random.random() < 0.75:
                self._again.append((run.task, run.tries + 1))
            del self._runs[pid]

    def _lose_node(self, node: str) -> None:
        """End every process of a node, and remove its folder; another node takes its place."""
        lost = [pid for pid, run in self._runs.items() if run.node == node]
        self._score.kills += len(lost)
        self._end(lost)
        end_children(str(self._place.node(node)), "TMPDIR")
        shutil.rmtree(self._place.node(node), ignore_errors=True)
        append(self._place.folder, "node_lost", 0, node=node)
        self._score.nodes_lost += 1
        self._nodes.remove(node)
        self._nodes.append(f"node-{_NODES + self._score.nodes_lost}")

    def _changed(self, pid: int, status: int) -> None:
        run = self._runs[pid]
        if os.WIFSTOPPED(status):
            self._score.stops += 1
            run.stopped_at = time.monotonic()
            if run.task.role == "receive":  # either Airflow thinks it is dead and runs it again, or another run finds its claim expired
                other = replace(run.task, key=f"{run.task.key}-other") if self._random.random() < 0.5 else run.task
                self._calm.add(other.name)
                self._follow.append(
                    (time.monotonic() + (0.0 if other is run.task else self._place.lease.total_seconds() / SPEED), other, run.tries + 1)
                )
            return
        del self._runs[pid]
        if os.WIFSIGNALED(status):
            self._score.kills += 1
            self._killed[run.number] = run.plan.what is What.LATE
            if self._place.bucket and self._random.random() < _LOST:
                self._lose_node(run.node)
        failed = not os.WIFEXITED(status) or os.WEXITSTATUS(status)
        if failed and (run.task.role in _PERSISTENT or (run.tries < 4 and self._random.random() < 0.75)):
            self._again.append((run.task, run.tries + 1))

    # The end ----------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        time.sleep(self._place.lease.total_seconds() / SPEED)
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
        return lambda: actors.drain(self._place, group, unsent, max(60.0, self._patience / 3))

    def _alone(self, act: Callable[[], None]) -> None:
        self._side_by_side({("",): act})

    def _side_by_side(self, acts: Mapping[tuple[str, ...], Callable[[], None]]) -> set[tuple[str, ...]]:
        """Do things without faults, each in a process of its own, and wait for them; return those that were killed all the same."""
        started = {}
        for group, act in acts.items():
            number = self._score.runs = self._score.runs + 1
            started[self._fork(number, group[0], self._some_node(), act)] = number, group
        killed, until = set(), time.monotonic() + self._patience
        for pid, (number, group) in started.items():
            status = ended(pid, until)
            if status is None:
                self._stays(f"the quiet end of {group} did not come")
            elif os.WIFSIGNALED(status):
                self._killed[number] = False
                killed.add(group)
            elif os.WEXITSTATUS(status):
                for line in self._reader.news():
                    self._heed(line)
                self._stays(f"the quiet end of {group} failed: {self._errors.get(number)}")
        return killed

    def _stays(self, what: str) -> None:
        self.stuck.append(f"{what}, see {self._place.folder}")

    def _verdict(self) -> Verdict:
        for line in self._reader.news():
            self._heed(line)
        told = Path(self._place.folder, "verdict.json")
        quiet = not self.stuck

        def tell() -> None:
            if self._place.bucket:
                mirror(Path(self._place.folder), self._place.options)
            told.write_text(json.dumps(check(self._place.folder, self._killed, quiet=quiet).to_dict()))

        self._alone(tell)
        if told.exists():
            return Verdict.from_dict(json.loads(told.read_text()))
        printed = Path(self._place.folder, "output.txt").read_text(errors="replace").splitlines()
        return Verdict(stuck=[f"the checker failed: {' | '.join(printed[-7:])}"])
