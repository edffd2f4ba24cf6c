import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";
import { HOSTILE, queue } from "../mock/data";
import type { Groups } from "../src/api/types";

import { lastPost, open, rowsOf } from "./page";

const POISON = "?queue=orders&sub_queue=poison";

function lastQuery(mock: Mock, name: string): URLSearchParams {
  return mock.asked.findLast((each) => each.name === name)?.query ?? new URLSearchParams();
}

describe("a queue", () => {
  it("opens on the message that halts it", async () => {
    open("?queue=warehouse");
    expect(await screen.findByRole("heading", { name: "Message 1" })).toBeTruthy();
    expect(document.title).toContain("message 1 · warehouse");
  });

  it.each([
    ["orders", "Messages in poison"],
    ["payments", "Messages in main"],
    [HOSTILE, "Messages in retry"],
  ])("opens on its poison, on what waits, or on what is to be received: %s", async (name, heading) => {
    open(`?${new URLSearchParams({ queue: name }).toString()}`);
    expect(await screen.findByRole("heading", { name: heading })).toBeTruthy();
  });

  it("does not change its view under somebody's eyes", async () => {
    const { mock, user } = open("?queue=feed-01");
    await screen.findByRole("heading", { name: "Messages in main" });
    mock.queues = [queue("feed-01", { main: 1, poison: 3 })];
    await user.click(screen.getByRole("button", { name: "Refresh" }));
    await screen.findByText("3", { selector: "strong" });
    expect(screen.getByRole("heading", { name: "Messages in main" })).toBeTruthy();
  });

  it("is where it was, after the way back", async () => {
    const { user } = open(POISON);
    await screen.findByRole("table", { name: "Messages" });
    const main = screen.getByRole("main");
    main.scrollTop = 700;
    fireEvent.scroll(main);
    await user.click(within(screen.getByRole("table", { name: "Messages" })).getByRole("link", { name: "Message 3" }));
    await screen.findByRole("heading", { name: "Message 3" });
    expect(main.scrollTop).toBe(0);
    await user.click(screen.getByTestId("back"));
    await screen.findByRole("table", { name: "Messages" });
    expect(main.scrollTop).toBe(700);
  });

  it("says why it is halted, and leads to the message", async () => {
    const { user, address } = open("?queue=warehouse");
    expect((await screen.findAllByRole("alert"))[0]?.textContent).toContain(`warehouse is disabled: Message 1 was rolled back 5 times: ${HOSTILE}`);
    await user.click(screen.getByRole("link", { name: "Look at message 1." }));
    expect(address().get("lookup_id")).toBe("1");
  });

  it("shows an outage, a pass that has died, and its claims", async () => {
    open("?queue=payments&view=settings");
    expect(await screen.findByText(/payments has an outage since/)).toBeTruthy();
    expect(screen.getByText(/A pass has died/)).toBeTruthy();
    expect(rowsOf("Claims")[0]?.slice(1)).toEqual(["main", "500", "expired: the next receive takes it over"]);
    expect(screen.getByText("receive retry count")).toBeTruthy();
  });

  it("shows how far its sources were taken, and nothing of the kind where there are none", async () => {
    open("?queue=payments&view=settings");
    await screen.findByRole("heading", { name: "Sources" });
    expect(rowsOf("Sources")[0]?.slice(0, 4)).toEqual(["/landing/*.json", "1,204 files were taken", "41,027", "3"]);
    open("?queue=warehouse&view=settings");
    expect(await screen.findByText("No pass is at work.")).toBeTruthy();
  });

  it("has a link to each of its parts, and says which one is shown", async () => {
    open("?queue=warehouse&view=events");
    const parts = await screen.findByRole("navigation", { name: "Parts of the queue" });
    const links = within(parts).getAllByRole("link");
    expect(links.map((link) => link.textContent)).toEqual(["main", "retry", "poison", "error groups", "plans", "events", "conversations", "policy"]);
    expect(links.filter((link) => link.getAttribute("aria-current") === "page").map((link) => link.textContent)).toEqual(["events"]);
  });

  it.each([
    ["selection={bad", "selection=“{bad” in the address is no filter"],
    ["selection={}&sub_queue=posion", "sub_queue=“posion” in the address is no sub-queue"],
    [`selection=${encodeURIComponent('{"lookup_ids":[]}')}`, "in the address is no filter"],
    [`selection=${encodeURIComponent('{"sub_queue":"main"}')}`, "in the address is no filter"],
  ])("says of a link with %s what is wrong, and offers no action", async (wrong, text) => {
    const { mock } = open(`?queue=orders&sub_queue=poison&${wrong}`.replace("sub_queue=poison&selection={}&", ""));
    expect((await screen.findByRole("alert")).textContent).toContain(text);
    expect(screen.queryByRole("table", { name: "Messages" })).toBeNull();
    expect(screen.queryByRole("button", { name: "Remove …" })).toBeNull();
    expect(mock.asked.some(({ name }) => name === "messages")).toBe(false);
  });

  it("offers nothing for messages without a failure, which no group selects", async () => {
    const mock = new Mock();
    const found = mock.answer("GET", "groups", new URLSearchParams("queue=orders"), {}).body as Groups;
    mock.instead.set("groups", { status: 200, body: { ...found, groups: [{ ...found.groups[0], error: "", kind: "", type: "", text: "" }] } });
    open("?queue=orders&view=groups", mock);
    await screen.findByRole("table", { name: "Error groups" });
    expect(rowsOf("Error groups")[0]?.[0]).toBe("no failure");
    expect(screen.queryByRole("button", { name: "Remove …" })).toBeNull();
  });

  it("says plainly that it is not there", async () => {
    open("?queue=nowhere");
    expect((await screen.findByRole("alert")).textContent).toContain("There is no queue 'nowhere' in the store of connection 'poison_default'.");
  });

  it("shows the largest error groups of poison, each a link to its page, which leads to its messages", async () => {
    const { user, mock } = open(POISON);
    await screen.findByRole("table", { name: "Error groups" });
    expect(rowsOf("Error groups").map(([, messages]) => messages)).toEqual(["120,000", "41,000", "12,000", "8,000", "1,200"]);
    await user.click(screen.getByRole("link", { name: "All 6 groups" }));
    await waitFor(() => {
      expect(rowsOf("Error groups")).toHaveLength(6);
    });
    await user.click(screen.getByRole("link", { name: "KeyError" }));
    await user.click(await screen.findByRole("link", { name: "Its 120,000 messages" }));
    await screen.findByText("1–50 of 120,000");
    expect(JSON.parse(lastQuery(mock, "messages").get("selection") ?? "")).toMatchObject({ sub_queue: "poison", error: "0b12c34d56e7" });
  });
});

describe("messages", () => {
  it("are shown a page at a time", async () => {
    const { user, mock, address } = open(POISON);
    await screen.findByText("1–50 of 182,233");
    await user.click(screen.getByRole("button", { name: "Next" }));
    await screen.findByText("51–100 of 182,233");
    expect(lastQuery(mock, "messages").get("offset")).toBe("50");
    expect(address().get("offset")).toBe("50"); // a link leads to this page
    await user.click(screen.getByRole("combobox", { name: "Search messages" }));
    await user.paste("type: KeyError");
    await user.keyboard("{Enter}");
    await waitFor(() => {
      expect(address().get("selection")).toBe('{"error_type":"KeyError"}');
    });
    expect(address().get("offset")).toBeNull(); // what is searched for has a first page of its own
  });

  it("are sorted by the server", async () => {
    const { user, mock } = open(POISON);
    await user.click(await screen.findByRole("button", { name: "Aborts" }));
    await waitFor(() => {
      expect(lastQuery(mock, "messages").get("order")).toBe("abort_count");
    });
  });

  it("are filtered by every field of a selection", async () => {
    const { user, mock, address } = open(POISON);
    await user.click(await screen.findByRole("button", { name: "All fields" }));
    const form = screen.getByRole("form", { name: "Filter messages" });
    const fill = async (name: string, text: string) => {
      await user.click(within(form).getByLabelText(name));
      await user.paste(text);
    };
    await fill("Text", "carrier");
    await fill("Error type", "KeyError");
    await fill("Error group", "0b12c34d56e7");
    await fill("Counts", "abort_count >= 3, crash_count>0");
    await fill("Lookup ids", "7, 8");
    await fill("Message type", "//Flights/Arrival");
    await fill("Message id", "m-7");
    await fill("Group", "VX");
    await fill("Properties", "country=US\nnote=a=b");
    await fill("SQL condition", "body.carrier = 'VX'");
    await user.selectOptions(within(form).getByLabelText("Sub-queue"), "everywhere");
    await user.type(within(form).getByLabelText("Enqueued since"), "2026-11-25T10:00:00");
    await user.click(within(form).getByRole("button", { name: "Apply the filter" }));
    await screen.findByRole("heading", { name: "Messages everywhere" });
    expect(JSON.parse(lastQuery(mock, "messages").get("selection") ?? "")).toEqual({
      sub_queue: null,
      text: "carrier",
      error: "0b12c34d56e7",
      error_type: "KeyError",
      counts: ["abort_count>=3", "crash_count>0"],
      lookup_ids: [7, 8],
      message_type: "//Flights/Arrival",
      message_id: "m-7",
      group: "VX",
      properties: { country: "US", note: "a=b" },
      where: "body.carrier = 'VX'",
      since: "2026-11-25T10:00:00.000Z",
    });
    expect(lastQuery(mock, "messages").has("sub_queue")).toBe(false);
    expect(within(screen.getByRole("list", { name: "The filter" })).getAllByRole("listitem")).toHaveLength(13);
    await user.click(screen.getByRole("button", { name: "Clear" }));
    expect(address().has("selection")).toBe(false);
  });

  it("are searched with one field, whose parts become chips that can be taken away; the address says the same", async () => {
    const { user, mock, address } = open(POISON);
    const search = async (text: string) => {
      await user.click(await screen.findByRole("combobox", { name: "Search messages" }));
      await user.paste(text);
      await user.keyboard("{Enter}");
    };
    await search("carrier");
    await search("type: KeyError");
    await search("move_count >= 3");
    await search("country=US");
    await search("since: 2026-11-25 10:00");
    await search("sql: body.carrier = 'VX'");
    const wanted = { text: "carrier", error_type: "KeyError", counts: ["move_count>=3"], properties: { country: "US" }, since: "2026-11-25T10:00:00.000Z", where: "body.carrier = 'VX'" };
    expect(JSON.parse(address().get("selection") ?? "")).toEqual(wanted);
    const chips = within(screen.getByRole("list", { name: "The filter" }));
    expect(chips.getAllByRole("listitem")).toHaveLength(6);
    expect(screen.getByRole("button", { name: "Copy link" })).toBeTruthy();
    await user.click(chips.getByRole("button", { name: "Without move_count>=3" }));
    await user.click(screen.getByRole("button", { name: "Without property country = US" }));
    await user.click(screen.getByRole("button", { name: "Without text “carrier”" }));
    const rest = { error_type: wanted.error_type, since: wanted.since, where: wanted.where };
    expect(JSON.parse(address().get("selection") ?? "")).toEqual(rest);
    expect(JSON.parse(lastQuery(mock, "messages").get("selection") ?? "")).toEqual({ sub_queue: "poison", ...rest });
  });

  it("that are searched for come without the largest groups of all", async () => {
    open(`${POISON}&selection=${encodeURIComponent(JSON.stringify({ text: "carrier" }))}`);
    await screen.findByRole("table", { name: "Messages" });
    expect(screen.queryByRole("table", { name: "Error groups" })).toBeNull();
  });

  it("are not asked for with a search that is none", async () => {
    const { user, mock } = open(POISON);
    await screen.findByRole("table", { name: "Messages" });
    const before = mock.asked.length;
    await user.type(screen.getByRole("combobox", { name: "Search messages" }), "since: tomorrow{Enter}");
    expect(screen.getByText("“tomorrow” is no time: write 2 h, 3 d, 2026-11-25 or 2026-11-25 10:00.")).toBeTruthy();
    expect(mock.asked).toHaveLength(before);
  });

  it("are not asked for with a field that is none: the form says which", async () => {
    const { user, mock } = open(POISON);
    await user.click(await screen.findByRole("button", { name: "All fields" }));
    await user.click(screen.getByLabelText("Counts"));
    await user.paste("tries > 3");
    await user.click(screen.getByLabelText("Lookup ids"));
    await user.paste("seven");
    const before = mock.asked.length;
    await user.click(screen.getByRole("button", { name: "Apply the filter" }));
    expect(screen.getByText(/“tries>3” is no condition/)).toBeTruthy();
    expect(screen.getByText(/“seven” is no lookup id/)).toBeTruthy();
    expect(mock.asked).toHaveLength(before);
  });

  it("say what the server says of a condition that is none", async () => {
    open(`${POISON}&selection=${encodeURIComponent(JSON.stringify({ where: "carier = 1" }))}`);
    expect(await screen.findByText(/there is no column or field 'carier'/)).toBeTruthy();
  });

  it("have the columns that somebody has chosen, also the next time", async () => {
    const { user } = open(POISON);
    await user.click(await screen.findByRole("button", { name: "Columns" }));
    await user.click(await screen.findByRole("menuitemcheckbox", { name: "Priority" }));
    await user.click(screen.getByRole("menuitemcheckbox", { name: "Crashes" }));
    const heads = () => screen.getAllByRole("columnheader").map((head) => head.textContent.replace(/ [↑↓↕]$/, ""));
    await waitFor(() => {
      expect(heads()).toContain("Priority");
    });
    expect(heads()).not.toContain("Crashes");
    expect(localStorage.getItem("airflow-poison.columns")).toContain("priority");
  });

  it("are chosen one by one for an action", async () => {
    const { user, mock } = open(POISON);
    await user.click(await screen.findByRole("checkbox", { name: "Choose message 2" }));
    await user.click(screen.getByRole("checkbox", { name: "Choose message 5" }));
    const actions = screen.getByRole("group", { name: "Actions: 2 chosen messages" });
    await user.click(within(actions).getByRole("button", { name: "Put back …" }));
    await user.click(await screen.findByRole("button", { name: "Plan: nothing is done yet" }));
    await screen.findByRole("button", { name: "Put back 2 messages" });
    expect(lastPost(mock, "plan")).toEqual({ queue: "orders", selection: { sub_queue: "poison", lookup_ids: [2, 5] }, action: { verb: "put_back" } });
  });
});
