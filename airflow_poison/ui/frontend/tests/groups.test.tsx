import { act, screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import { Mock } from "../mock/answers";

import { beWide, lastPost, open, rowsOf, type Opened } from "./page";

const GROUPS = "?queue=orders&view=groups&sub_queue=poison";
const GROUP = "?queue=orders&view=group&sub_queue=poison&error=0b12c34d56e7";
const ABOUT = "group KeyError 0b12c34d56e7";
const types = () => rowsOf("Error groups").map(([error]) => error?.replace(/(new)?('|could|the|refused|division).*/, ""));

async function paste({ user }: Opened, label: string, text: string): Promise<void> {
  const field = screen.getByLabelText(label);
  await user.clear(field);
  await user.click(field);
  await user.paste(text);
}

describe("error groups", () => {
  it("are sorted by their messages at first, then by what somebody wants; the address keeps it", async () => {
    const { user, address } = open(GROUPS);
    await screen.findByRole("table", { name: "Error groups" });
    expect(rowsOf("Error groups").map((row) => row[1])).toEqual(["120,000", "41,000", "12,000", "8,000", "1,200", "33"]);
    await user.click(screen.getByRole("button", { name: "First seen" }));
    await user.click(screen.getByRole("button", { name: "First seen" }));
    expect(types()[0]).toBe("UnicodeDecodeError");
    expect(address().get("order")).toBe("first");
  });

  it("are searched by type and text", async () => {
    const { user, address } = open(GROUPS);
    await user.type(await screen.findByRole("searchbox", { name: "Search errors" }), "REGISTRY");
    expect(types()).toEqual(["TimeoutError"]);
    expect(address().get("search")).toBe("REGISTRY");
    await user.type(screen.getByRole("searchbox", { name: "Search errors" }), "x");
    expect(screen.getByText("No error has “REGISTRYx” in its type or text.")).toBeTruthy();
  });

  it("mark the kinds that were not there yesterday, and name them first", async () => {
    const { user } = open(GROUPS);
    expect((await screen.findByText(/^2 kinds are new since yesterday/)).textContent).toBe("2 kinds are new since yesterday: UnicodeDecodeError, ZeroDivisionError");
    expect(rowsOf("Error groups").map(([error]) => error?.includes("Errornew"))).toEqual([false, false, false, false, true, true]);
    await user.click(within(screen.getByText(/^2 kinds are new/)).getByRole("link", { name: "ZeroDivisionError" }));
    expect(await screen.findByRole("heading", { name: "ZeroDivisionError" })).toBeTruthy();
  });

  it("have every verb", async () => {
    const { user } = open(GROUPS);
    for (const verb of ["Edit and redrive", "Edit", "Put back", "Move", "Send to", "Remove"]) {
      await user.click(await screen.findByRole("button", { name: `More actions: ${ABOUT}` }));
      await user.click(await screen.findByRole("menuitem", { name: `${verb} …` }));
      expect(await screen.findByRole("dialog", { name: `${verb}: ${ABOUT}` })).toBeTruthy();
      await user.click(screen.getByRole("button", { name: "Cancel" }));
      await waitFor(() => {
        expect(screen.queryByRole("dialog")).toBeNull();
      });
    }
  });

  it("are cards in a narrow window, which can be sorted, too", async () => {
    beWide(false);
    const { user, address } = open(GROUPS);
    await user.selectOptions(await screen.findByRole("combobox", { name: "Sort by" }), "Last seen");
    expect(address().get("order")).toBe("last");
  });

  it("say that no message has failed", async () => {
    open("?queue=feed-01&view=groups");
    expect(await screen.findByText("No message has failed.")).toBeTruthy();
  });

  it("say what the server says", async () => {
    const mock = new Mock();
    mock.instead.set("groups", { status: 503, body: { detail: "The query took longer than 20 s. Ask again in 10 s." } });
    open(GROUPS, mock);
    expect((await screen.findByRole("alert")).textContent).toContain("The query took longer than 20 s.");
  });
});

describe("a group's page", () => {
  it("has its counts, its failure beside bodies, and a link to its messages", async () => {
    const { user, address } = open(GROUP);
    expect(await screen.findByRole("heading", { name: "KeyError" })).toBeTruthy();
    expect(screen.getByText("120,000, 66 % of all")).toBeTruthy();
    const samples = await screen.findByRole("group", { name: "Samples" });
    expect(within(samples).getAllByRole("button")).toHaveLength(10);
    expect(screen.getByRole("region", { name: "Failure of the sample" }).textContent).toContain("KeyError: 'carrier'");
    expect(screen.getByRole("region", { name: "Body of the sample" }).textContent).toContain('"dep_delay": 75');
    await user.click(within(samples).getByRole("button", { name: "6" }));
    expect(screen.getByText("edited")).toBeTruthy();
    await user.click(screen.getByRole("link", { name: "Its 120,000 messages" }));
    expect(JSON.parse(address().get("selection") ?? "")).toEqual({ error: "0b12c34d56e7" });
  });

  it("is reached from the list, and named in the title", async () => {
    const { user } = open(GROUPS);
    await user.click(await screen.findByRole("link", { name: "KeyError" }));
    expect(await screen.findByRole("heading", { name: "KeyError" })).toBeTruthy();
    expect(document.title).toContain("error group 0b12c34d56e7 · orders");
  });

  it("tries an edit on ten samples, and plans it for all in one plan with the redrive", async () => {
    const opened = open(GROUP);
    const { user, mock } = opened;
    await screen.findByRole("heading", { name: "Edit them" });
    await paste(opened, "Merge patch (RFC 7396)", '{"dep_delay": 15}');
    await user.click(screen.getByRole("button", { name: "Try it on 10 samples" }));
    const result = within(screen.getByRole("group", { name: "Result on samples" }));
    expect(await result.findAllByRole("region", { name: /^Difference of message/ })).toHaveLength(10);
    expect(lastPost(mock, "plan")["selection"]).toEqual({ sub_queue: "poison", lookup_ids: [0, 6, 12, 18, 24, 30, 36, 42, 48, 54] });
    await user.click(screen.getByRole("button", { name: "Edit and redrive 120,000 messages …" }));
    await user.click(await screen.findByRole("button", { name: "Edit and redrive 120,000 messages" })); // it was planned at once
    expect(lastPost(mock, "apply")).toMatchObject({
      selection: { sub_queue: "poison", error: "0b12c34d56e7" },
      action: { verb: "edit", patch: '{"dep_delay": 15}', target: "main" },
      canary: { messages: 100, share: 0.95 },
    });
    expect(await screen.findByText(/^Edit and put back with a merge patch/)).toBeTruthy();
  });

  it("plans the edit alone, without a canary", async () => {
    const opened = open(GROUP);
    await screen.findByRole("heading", { name: "Edit them" });
    await paste(opened, "Merge patch (RFC 7396)", '{"dep_delay": 15}');
    await opened.user.click(screen.getByRole("button", { name: "Edit 120,000 messages …" }));
    await opened.user.click(await screen.findByRole("button", { name: "Edit 120,000 messages" }));
    expect(lastPost(opened.mock, "apply")).toMatchObject({ action: { verb: "edit", patch: '{"dep_delay": 15}' } });
    expect(lastPost(opened.mock, "apply")).not.toHaveProperty("canary");
    expect(lastPost(opened.mock, "apply")).not.toHaveProperty("action.target");
  });

  it("does not try what is no edit, and says what the server refuses", async () => {
    const mock = new Mock();
    const opened = open(GROUP, mock);
    const { user } = opened;
    await screen.findByRole("heading", { name: "Edit them" });
    await user.click(screen.getByRole("button", { name: "Try it on 10 samples" }));
    expect(screen.getByText(/The patch changes nothing/)).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Edit and redrive 120,000 messages …" }));
    expect(screen.queryByRole("dialog")).toBeNull();
    expect(mock.asked.some(({ method }) => method === "POST")).toBe(false);
    mock.instead.set("plan", { status: 400, body: { detail: "patch: it is too deep." } });
    await paste(opened, "Merge patch (RFC 7396)", '{"a": 1}');
    await user.click(screen.getByRole("button", { name: "Try it on 10 samples" }));
    expect((await screen.findByRole("alert")).textContent).toContain("patch: it is too deep.");
  });

  it("has no edit for who may not act", async () => {
    const mock = new Mock();
    mock.rights = { read: true, act: false, unmask: false };
    open(GROUP, mock);
    await screen.findByRole("region", { name: "Body of the sample" });
    expect(screen.queryByRole("heading", { name: "Edit them" })).toBeNull();
  });

  it("says that its messages are gone", async () => {
    open("?queue=orders&view=group&sub_queue=poison&error=ffffffffffff");
    expect(await screen.findByText("No message of error group ffffffffffff is in poison any more.")).toBeTruthy();
    expect(await screen.findByText("No message.")).toBeTruthy();
  });

  it("says that it is being read, that it may not be, and why it cannot be", async () => {
    const mock = new Mock();
    mock.instead.set("samples", { status: 403, body: { detail: "Forbidden" } });
    mock.instead.set("groups", { status: 503, body: { detail: "Queue 'orders' cannot be read." } });
    open(GROUP, mock);
    expect((await screen.findAllByText("Reading …")).length).toBeGreaterThan(0);
    await waitFor(() => {
      expect(screen.getAllByRole("alert").map((each) => each.textContent)).toEqual([
        expect.stringContaining("Queue 'orders' cannot be read."),
        expect.stringContaining("You may not read queues"),
      ]);
    });
  });

  it("keeps what it shows when it cannot be read again", async () => {
    vi.useFakeTimers({ shouldAdvanceTime: true });
    const mock = new Mock();
    open(GROUP, mock);
    await screen.findByRole("region", { name: "Body of the sample" });
    mock.instead.set("samples", { status: 503, body: { detail: "not now" } });
    await act(() => vi.advanceTimersByTimeAsync(60_000));
    expect(await screen.findByText(/^From .*: not now/)).toBeTruthy();
    expect(screen.getByRole("region", { name: "Body of the sample" })).toBeTruthy();
    vi.useRealTimers();
  });
});
