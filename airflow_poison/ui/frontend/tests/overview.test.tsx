import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";
import { HOSTILE, queue } from "../mock/data";

import { beWide, open, rowsOf } from "./page";

describe("the overview", () => {
  it("shows first what needs attention, the most urgent queue on top", async () => {
    open();
    const list = await screen.findByRole("list", { name: "Queues that need attention" });
    const found = within(list).getAllByRole("listitem").map((item) => within(item).getAllByRole("link").map((link) => link.textContent));
    expect(found.map(([name]) => name)).toEqual(["warehouse", "payments", "orders", HOSTILE]);
    expect(found[0]?.slice(1)).toEqual(["disabled: Message 1 was rolled back 5 times.", "Queue warehouse is disabled by message 1. What shall be done?", "1 poison message."]);
    expect(found[2]?.slice(1)).toEqual(["182,233 poison messages, 182,000 more than an hour ago.", "Plan p-9 is under way."]);
    expect(screen.getByRole("heading", { name: "4 queues need attention" })).toBeTruthy();
  });

  it("leads from a need to where it is dealt with", async () => {
    const { user, address } = open();
    await user.click(await screen.findByRole("link", { name: /182,233 poison messages, / }));
    expect(Object.fromEntries(address())).toEqual({ conn_id: "poison_default", queue: "orders", view: "groups", sub_queue: "poison" });
  });

  it("never says of a queue with an outage that it is enabled", async () => {
    const { user } = open();
    await user.type(await screen.findByRole("searchbox", { name: "Search by name" }), "payments");
    expect(rowsOf("Queues").map((row) => row[1])).toEqual(["outage"]);
    await user.click(within(screen.getByRole("table", { name: "Queues" })).getByRole("link", { name: "payments" }));
    await screen.findByRole("navigation", { name: "Parts of the queue" });
    expect(screen.queryByText("enabled")).toBeNull();
  });

  it("shows instants in the zone of Airflow's UI", async () => {
    localStorage.setItem("timezone", JSON.stringify("Asia/Kolkata"));
    const mock = new Mock();
    mock.queues = [queue("calm", {}, { needs: [{ kind: "outage", text: "What its handler needs is away since 2026-11-27T23:30:00+00:00." }] })];
    open("", mock);
    expect(await screen.findByText("What its handler needs is away since 2026-11-28 05:00:00.")).toBeTruthy();
  });

  it("says that the questions cannot be read, and shows all else", async () => {
    const mock = new Mock();
    mock.instead.set("decisions", { status: 503, body: { detail: "The database is away." } });
    open("", mock);
    expect((await screen.findByRole("alert")).textContent).toContain("Questions about queues cannot be read: The database is away.");
    expect(rowsOf("Queues")).toHaveLength(25);
  });

  it("is named in the browser's title, as a queue is with its view", async () => {
    document.title = "Airflow";
    const { user } = open();
    await screen.findByRole("table", { name: "Queues" });
    expect(document.title).toBe("Poison queues - Airflow");
    await user.click(within(screen.getByRole("table", { name: "Queues" })).getByRole("link", { name: "orders" }));
    await screen.findByRole("heading", { name: "Messages in poison" });
    expect(document.title).toBe("poison · orders - Airflow");
  });

  it("says so when nothing needs anybody", async () => {
    const mock = new Mock();
    mock.queues = [queue("calm", { main: 1 })];
    open("", mock);
    expect(await screen.findByText(/Nothing needs anybody/)).toBeTruthy();
  });

  it("has totals of all queues", async () => {
    open();
    const totals = await screen.findByRole("group", { name: "Totals" });
    expect(totals.textContent).toContain("100 queues");
    expect(totals.textContent).toContain("1 halted");
    expect(totals.textContent).toContain("182,234 in poison");
    expect(totals.textContent).toMatch(/\d new poison since yesterday/);
  });

  it("is searched by name", async () => {
    const { user, address } = open();
    await user.type(await screen.findByRole("searchbox", { name: "Search by name" }), "FEED-0");
    expect(rowsOf("Queues")).toHaveLength(10);
    expect(address().get("search")).toBe("FEED-0");
    await user.type(screen.getByRole("searchbox"), "nothing");
    expect(screen.getByText("No queue has “FEED-0nothing” in its name.")).toBeTruthy();
  });

  it("is sorted by a column, and the other way at a second click", async () => {
    const { user, address } = open();
    await user.click(await screen.findByRole("button", { name: "poison" }));
    await user.click(screen.getByRole("button", { name: "poison" }));
    expect(rowsOf("Queues")[0]?.[0]).toBe("orders");
    expect(screen.getByRole("columnheader", { name: "poison" }).getAttribute("aria-sort")).toBe("descending");
    expect(address().get("desc")).toBe("true");
  });

  it("shows 25 queues at a time", async () => {
    const { user } = open();
    await screen.findByRole("table", { name: "Queues" });
    expect(rowsOf("Queues")).toHaveLength(25);
    await user.click(screen.getByRole("button", { name: "Last" }));
    expect(screen.getByText("76–100 of 100")).toBeTruthy();
    expect(screen.getByRole("button", { name: "Next" }).hasAttribute("disabled")).toBe(true);
  });

  it("tells a store without queues from one whose folder does not exist", async () => {
    const mock = new Mock();
    mock.queues = [];
    open("", mock);
    expect(await screen.findByText("The store of connection poison_default has no queue")).toBeTruthy();
    expect(screen.queryByRole("alert")).toBeNull();
  });

  it("is an error where the store's folder is missing, which names the store", async () => {
    const mock = new Mock();
    mock.queues = [];
    mock.exists = false;
    open("?conn_id=lake", mock);
    const { textContent: told } = await screen.findByRole("alert");
    expect(told).toContain("The store of connection lake does not exist");
    expect(told).toContain("Its folder is not where the API server runs.");
    expect(document.body.textContent).not.toContain("No queue yet");
  });

  it("names the queues that cannot be read", async () => {
    const mock = new Mock();
    mock.unreadable = ["bills"];
    open("", mock);
    expect((await screen.findByRole("alert")).textContent).toContain("Cannot be read: bills.");
  });

  it("is a list of cards in a narrow window, which can be sorted, too", async () => {
    beWide(false);
    const { user, address } = open();
    const list = await screen.findByRole("list", { name: "Queues" });
    expect(within(list).getAllByRole("listitem")).toHaveLength(25);
    expect(screen.queryByRole("table")).toBeNull();
    await user.selectOptions(screen.getByRole("combobox", { name: "Sort by" }), "Queue");
    expect(address().get("sort")).toBe("queue");
  });

  it("shows hostile names as text", async () => {
    open();
    await screen.findByRole("table", { name: "Queues" });
    expect(document.querySelectorAll("main script, main img")).toHaveLength(0);
    expect(document.title).not.toBe("taken");
  });

  it("goes to another connection", async () => {
    const { user, address, mock } = open();
    const field = await screen.findByRole("textbox", { name: "Connection" });
    await user.clear(field);
    await user.type(field, "other{Enter}");
    expect(address().get("conn_id")).toBe("other");
    expect(mock.asked.some(({ query }) => query.get("conn_id") === "other")).toBe(true);
  });
});
