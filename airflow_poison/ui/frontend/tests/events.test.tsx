import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";

import { open, rowsOf } from "./page";

const EVENTS = "?queue=orders&view=events";
const titles = () => screen.getAllByRole("heading", { level: 3 }).map((heading) => heading.textContent);

describe("events", () => {
  it("are grouped by run, plan and person, the newest first, with links to the run and its log", async () => {
    open(EVENTS);
    await screen.findAllByRole("table");
    expect(titles()).toEqual(["bob@host (in a shell)", "Plan p-old", "arrivals/scheduled__1/receive (a task)"]);
    expect(screen.getAllByRole("link", { name: /^(DAG run|task log) of/ }).map((link) => link.getAttribute("href"))).toEqual([
      "dags/arrivals/runs/scheduled__1",
      "dags/arrivals/runs/scheduled__1/tasks/receive",
    ]);
    const table = screen.getByRole("table", { name: /arrivals/ });
    expect(within(table).getAllByRole("row").slice(1).map((row) => row.querySelectorAll("td")[0]?.textContent)).toEqual(["MOVED_POISON", "POISON_EXCEPTION"]);
    expect(screen.getByText("12 earlier ones: airflow poison history shows them.")).toBeTruthy();
  });

  it("are grouped by message, which is a link; the address keeps it", async () => {
    const { user, address } = open(EVENTS);
    await user.selectOptions(await screen.findByLabelText("Shown"), "by message");
    expect(titles()).toEqual(["The queue itself", "Message 1"]);
    expect(address().get("by")).toBe("message");
    await user.click(screen.getByRole("link", { name: "Message 1" }));
    expect(address().get("lookup_id")).toBe("1");
  });

  it("are shown one after the other, with who acted and why", async () => {
    open(`${EVENTS}&by=time`);
    await screen.findByRole("table", { name: "Events" });
    const rows = rowsOf("Events");
    expect(rows.map(([, event]) => event)).toEqual(["QUEUE_DISABLED", "PLANNED", "MOVED_POISON", "POISON_EXCEPTION"]);
    expect(rows[1]?.[5]).toBe("by ann (in Airflow): carrier is backplan p-old");
  });

  it("say that there are none, and why they cannot be read", async () => {
    const mock = new Mock();
    mock.instead.set("events", { status: 200, body: { events: [], earlier: 0 } });
    const { user } = open(EVENTS, mock);
    expect(await screen.findByText("Nothing is recorded.")).toBeTruthy();
    mock.instead.set("events", { status: 403, body: { detail: "Forbidden" } });
    await user.click(screen.getByRole("button", { name: "Refresh" }));
    expect(await screen.findByText(/You may not read queues/)).toBeTruthy();
  });
});
