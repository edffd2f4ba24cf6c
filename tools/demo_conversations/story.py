"""The story of the demo: each step waits until it has happened, and says so in a line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_poison.passes.inspect import inspect
from airflow_poison.rules.queue_disabling import Inspection
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from tools.airflow.client import HEALTH
from tools.airflow.home import AirflowError
from tools.demo_conversations.sides import SHOP, WAREHOUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from tools.airflow.client import Airflow, Run
    from tools.airflow.services import Services
    from tools.demo_conversations.place import Place
    from tools.demo_conversations.sides import Sides

T = TypeVar("T")

RECOVERY, ASK = "parts_warehouse_recovery", "recovery.ask"
DAGS = (SHOP, WAREHOUSE, RECOVERY)
LATE_ORDER = [7, "gear", 1]
LOOK_SECONDS = 0.5
STEP_SECONDS = 600.0


@dataclass(slots=True)
class Story:
    """One demo."""

    place: Place
    services: Services
    airflow: Airflow
    sides: Sides
    console: Console
    began: float = field(default_factory=time.monotonic)

    def tell(self) -> None:
        """Let it happen. Raises AirflowError when it does not."""
        self._start()
        self._order()
        self._break_down()
        self._order_meanwhile()
        self._decide()
        self._go_on()

    def _start(self) -> None:
        self._until(lambda: self.airflow.ready((*HEALTH, "triggerer")), "Airflow has started")
        self._until(self._parsed, "its DAGs are parsed")
        self._say("Airflow runs, with three DAGs: the shop's, the warehouse's, and one for people who look after the warehouse.")

    def _order(self) -> None:
        self.airflow.trigger(SHOP)
        orders = self._until(lambda: [order for order in self.sides.orders() if order.state != "new"], "the shop has ordered")
        self._until(lambda: all(order.state != "new" for order in self.sides.orders()), "the shop has ordered everything")
        orders = self.sides.orders()
        self._say(f"The shop begins a dialog with the warehouse for each of {len(orders)} orders: {'; '.join(order.text for order in orders)}.")

    def _break_down(self) -> None:
        self._until(self.sides.is_off, "the warehouse's queue is disabled")
        shipments = self.sides.shipments()
        self._say("Shafts were withdrawn from stock when their order had been accepted. The warehouse receives the orders.")
        self._say(f"It ships {' and '.join(f'{pieces} x {part}' for _, part, pieces in shipments)}. The next order cannot be processed:")
        self._say("five deliveries in a row are rolled back, and the queue is disabled: nothing is received, and nothing arrives.", indent=True)
        alert = self._until(lambda: self.sides.alerts()[:1], "somebody is alerted")[0]
        self._say(f"Alerted: {alert['reason']}")

    def _order_meanwhile(self) -> None:
        self.airflow.trigger(SHOP, {"orders": [LATE_ORDER]})
        self._until(
            lambda: any(order.number == LATE_ORDER[0] and order.state == "sent" for order in self.sides.orders()), "the shop has ordered once more"
        )
        self._say("Meanwhile a customer orders 1 x gear. That is no error for the shop: the message waits at its side.")

    def _decide(self) -> None:
        run = self._until(lambda: next(iter(self.airflow.runs(RECOVERY)), None), "people are asked")
        self._until(lambda: self._parked(run), "the question is asked")
        question = self.airflow.call("GET", self._question(run))
        self._say(f"People are asked in Airflow's UI: {question['subject']}")
        self._inspect()
        answer = next(option for option in question["options"] if "conversation" in option.lower())
        self.airflow.call("PATCH", self._question(run), {"chosen_options": [answer], "params_input": {}})
        self._say(f"Their answer: {answer}.")
        self._until(lambda: not self.sides.is_off(), "the queue is enabled")
        self._say("The conversation is ended with error 127, and the queue is enabled.")

    def _inspect(self) -> None:
        store = open_store(str(self.place.store))
        table = store.open(WAREHOUSE)
        seen = inspect(table, SystemClock(), mode=Inspection.BROWSE).messages[0]
        self._say(f"They look at message {seen.lookup_id}: {seen.text}")

    def _go_on(self) -> None:
        self._until(lambda: all(order.state in {"shipped", "refused"} for order in self.sides.orders()), "the shop has all answers")
        refused = [order for order in self.sides.orders() if order.note]
        self._say("The shop has received what became of every order; of these it was told that they failed:")
        for order in refused:
            self._say(f"order {order.number}, {order.text}: {order.note}", indent=True)
        self._until(lambda: not (self.sides.left(SHOP) + self.sides.left(WAREHOUSE)) and self._idle(), "no message is left")

    # Parts -------------------------------------------------------------------------------------------------------

    def _say(self, text: str, *, indent: bool = False) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        clock = "" if indent else f"{minutes}:{seconds:02}"
        self.console.print(f"{clock:>5}  {text}", highlight=False, markup=False, soft_wrap=True)

    def _until(self, condition: Callable[[], T | None], what: str) -> T:
        deadline = time.monotonic() + STEP_SECONDS
        while not (found := condition()):
            self.services.check()
            self._refuse_failures()
            if time.monotonic() > deadline:
                raise AirflowError(f"Not within {STEP_SECONDS:.0f} s: {what}. Task logs are in {self.place.shown(self.place.logs)}.")
            time.sleep(LOOK_SECONDS)
        return found

    def _parsed(self) -> bool:
        errors = self.airflow.import_errors()
        if errors:
            raise AirflowError(f"Airflow cannot parse the DAGs:\n{errors[0]['stack_trace']}")
        return all(self.airflow.has_dag(dag_id) for dag_id in DAGS)

    def _refuse_failures(self) -> None:
        """Raise for a failed run; those of the warehouse fail as long as its queue is disabled."""
        failed = [run for dag_id in (SHOP, RECOVERY) for run in self._runs(dag_id) if run.state == "failed"]
        if failed:
            raise AirflowError(f"The run {failed[-1].run_id} of {failed[-1].dag_id} has failed.")

    def _runs(self, dag_id: str) -> list[Run]:
        return self.airflow.runs(dag_id) if self.airflow.ready(()) and self.airflow.has_dag(dag_id) else []

    def _idle(self) -> bool:
        return all(run.ended for dag_id in DAGS for run in self.airflow.runs(dag_id))

    def _parked(self, run: Run) -> bool:
        """Whether the question waits and its process has ended: Airflow's scheduler fails a task that is answered before."""
        states: dict[str, Any] = {task.task_id: task.state for task in self.airflow.tasks(run)}
        if states.get(ASK) != "awaiting_input":
            return False
        ended = f"task_id='{ASK}', run_id='{run.run_id}', try_number=1, "
        lines = (self.place.logs / "scheduler.log").read_text(errors="replace").splitlines()
        return any(ended in line for line in lines if "Received executor event" in line)

    @staticmethod
    def _question(run: Run) -> str:
        return f"{run.path}/taskInstances/{ASK}/-1/hitlDetails"
