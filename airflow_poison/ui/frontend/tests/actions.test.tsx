import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";
import type { MessageAnswer } from "../src/api/types";

import { lastPost, open, type Opened } from "./page";

const POISON = "?queue=orders&sub_queue=poison";

async function begin({ user }: Opened, about: string, name: string): Promise<void> {
  const actions = await screen.findByRole("group", { name: `Actions: ${about}` });
  await user.click(within(actions).getByRole("button", { name: `${name} …` }));
  await screen.findByRole("dialog");
}

async function plan({ user }: Opened): Promise<void> {
  await user.click(screen.getByRole("button", { name: "Plan: nothing is done yet" }));
}

async function type({ user }: Opened, label: string, text: string): Promise<void> {
  const field = within(screen.getByRole("dialog")).getByLabelText(label);
  await user.clear(field);
  await user.click(field);
  await user.paste(text);
}

describe("a redrive", () => {
  it("is planned, confirmed with a reason, followed and undone", async () => {
    const opened = open(POISON);
    const { user, mock, address } = opened;
    await begin(opened, "all 182,233 messages", "Redrive");
    await type(opened, "Rate: messages a second", "500");
    await plan(opened);
    const confirm = await screen.findByRole("button", { name: "Redrive 182,233 messages" });
    expect(mock.asked.some(({ name }) => name === "apply")).toBe(false);
    const dialog = within(screen.getByRole("dialog"));
    expect(dialog.getByRole("table", { name: "Error groups of the plan" })).toBeTruthy();
    expect(dialog.getByRole("group", { name: "Samples" }).textContent).toContain("Message 1 in poison");
    expect(dialog.getByText(/canary: 100 first, goes on when 95 % of them are settled; at most 500 a second/)).toBeTruthy();
    await type(opened, "Reason", "the carrier is back");
    await user.click(confirm);
    expect(await screen.findByRole("heading", { name: "Plan p-1" })).toBeTruthy();
    expect(address().get("plan")).toBe("p-1");
    expect(lastPost(mock, "apply")).toEqual({
      queue: "orders",
      selection: { sub_queue: "poison" },
      action: { verb: "put_back" },
      version: 412,
      queue_id: "id of orders",
      reason: "the carrier is back",
      rate: 500,
      canary: { messages: 100, share: 0.95 },
    });
    await user.click(await screen.findByRole("button", { name: "Pause" })); // one click, without a dialog
    expect(screen.queryByRole("dialog")).toBeNull();
    expect(await screen.findByText("paused")).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Undo …" }));
    await type(opened, "Reason", "too early");
    await user.click(screen.getByRole("button", { name: "Undo" }));
    expect(await screen.findByText("undone")).toBeTruthy();
    expect(lastPost(mock, "undo")).toEqual({ queue: "orders", plan: "p-1", reason: "too early" });
  });

  it("needs a canary", async () => {
    const opened = open(POISON);
    await begin(opened, "all 182,233 messages", "Redrive");
    await type(opened, "Canary: messages", "0");
    await type(opened, "Canary: settled, in %", "101");
    await plan(opened);
    expect(screen.getByText("“0” is no whole number of at least 1.")).toBeTruthy();
    expect(screen.getByText(/“101” is no share/)).toBeTruthy();
    expect(opened.mock.asked.some(({ method }) => method === "POST")).toBe(false);
  });

  it("of an error group takes that group", async () => {
    const opened = open(POISON);
    await begin(opened, "group KeyError 0b12c34d56e7", "Redrive");
    await plan(opened);
    await screen.findByRole("button", { name: "Redrive 120,000 messages" });
    expect(lastPost(opened.mock, "plan")["selection"]).toEqual({ sub_queue: "poison", error: "0b12c34d56e7" });
  });
});

describe("an action", () => {
  it("that the server refuses says why, and can be changed", async () => {
    const opened = open(POISON);
    opened.mock.instead.set("apply", { status: 409, body: { detail: "Queue 'orders' has changed since version 412; plan it again." } });
    await begin(opened, "all 182,233 messages", "Put back");
    await plan(opened);
    await opened.user.click(await screen.findByRole("button", { name: "Put back 182,233 messages" }));
    expect(await screen.findByText(/has changed since version 412/)).toBeTruthy();
    await opened.user.click(screen.getByRole("button", { name: "Change" }));
    expect(screen.getByRole("button", { name: "Plan: nothing is done yet" })).toBeTruthy();
  });

  it("of another kind begins with its own form, also where a plan of the first one is shown", async () => {
    const opened = open(POISON);
    await begin(opened, "all 182,233 messages", "Redrive");
    await plan(opened);
    await screen.findByRole("button", { name: "Redrive 182,233 messages" });
    const actions = screen.getByRole("group", { name: "Actions: all 182,233 messages", hidden: true });
    fireEvent.click(within(actions).getByRole("button", { name: "Remove …", hidden: true })); // a script, or a screen reader
    expect(await screen.findByRole("button", { name: "Plan: nothing is done yet" })).toBeTruthy();
    expect(screen.getByRole("dialog", { name: "Remove: all 182,233 messages" })).toBeTruthy();
    expect(screen.queryByRole("button", { name: /182,233 messages$/ })).toBeNull();
  });

  it("moves to a sub-queue", async () => {
    const opened = open("?queue=orders&sub_queue=retry");
    await begin(opened, "all 412 messages", "Move");
    await opened.user.selectOptions(screen.getByLabelText("To sub-queue"), "poison");
    await type(opened, "Limit: messages", "10");
    await plan(opened);
    await screen.findByRole("button", { name: "Move 10 messages" });
    expect(lastPost(opened.mock, "plan")).toEqual({ queue: "orders", selection: { sub_queue: "retry" }, action: { verb: "move", target: "poison" }, limit: 10 });
  });

  it("sends to another queue, and says that this cannot be undone", async () => {
    const opened = open(POISON);
    await begin(opened, "all 182,233 messages", "Send to");
    await type(opened, "To queue", "archive");
    await plan(opened);
    expect(await screen.findByText("This cannot be undone.")).toBeTruthy();
    expect(lastPost(opened.mock, "plan")["action"]).toEqual({ verb: "send_to", target: "archive" });
  });

  it("is only offered where it can be done", async () => {
    open("?queue=orders&sub_queue=main");
    const actions = await screen.findByRole("group", { name: "Actions: all 1,204 messages" });
    expect(within(actions).getAllByRole("button").map((button) => button.textContent)).toEqual(["Edit …", "Move …", "Send to …", "Remove …"]);
  });

  it("is asked for before Escape or Cancel drops what was typed", async () => {
    const opened = open(POISON);
    const { user } = opened;
    await begin(opened, "all 182,233 messages", "Edit");
    await type(opened, "Merge patch (RFC 7396)", '{"a": 1}');
    await user.keyboard("{Escape}");
    expect(await screen.findByText("What you have typed would be lost.")).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Go on typing" }));
    expect(screen.getByLabelText<HTMLTextAreaElement>("Merge patch (RFC 7396)").value).toBe('{"a": 1}');
    await user.click(screen.getByRole("button", { name: "Cancel" }));
    await user.click(await screen.findByRole("button", { name: "Drop it" }));
    await waitFor(() => {
      expect(screen.queryByRole("dialog")).toBeNull();
    });
  });

  it("keeps a reason that was typed, too", async () => {
    const opened = open("?queue=orders");
    await opened.user.click(await screen.findByRole("button", { name: "Disable …" }));
    await type(opened, "Reason", "stocktaking");
    await opened.user.keyboard("{Escape}");
    expect(await screen.findByText("What you have typed would be lost.")).toBeTruthy();
    await opened.user.keyboard("{Escape}"); // it stays
    expect(screen.getByLabelText<HTMLInputElement>("Reason").value).toBe("stocktaking");
  });

  it("is not done when somebody presses Escape", async () => {
    const opened = open(POISON);
    await begin(opened, "all 182,233 messages", "Remove");
    await plan(opened);
    await screen.findByRole("button", { name: "Remove 182,233 messages" });
    await opened.user.keyboard("{Escape}");
    await waitFor(() => {
      expect(screen.queryByRole("dialog")).toBeNull();
    });
    expect(opened.mock.asked.some(({ name }) => name === "apply")).toBe(false);
  });
});

describe("an edit", () => {
  it("of many messages is a merge patch or properties, with a difference of samples", async () => {
    const opened = open(POISON);
    await begin(opened, "all 182,233 messages", "Edit");
    expect(screen.queryByRole("option", { name: "the whole body" })).toBeNull();
    await type(opened, "Merge patch (RFC 7396)", '{"dep_delay": 15.10, "note": null, "id": 12345678901234567890}');
    await type(opened, "Properties", "fixed=yes\n-note");
    await plan(opened);
    expect(await screen.findByRole("region", { name: "Difference of message 1" })).toBeTruthy();
    expect(lastPost(opened.mock, "plan")["action"]).toEqual({
      verb: "edit",
      patch: '{"dep_delay": 15.10, "note": null, "id": 12345678901234567890}', // as it was written: no digit goes through JavaScript's numbers
      properties: { fixed: "yes", note: null },
    });
  });

  it("that is no patch is not planned", async () => {
    const opened = open(POISON);
    await begin(opened, "all 182,233 messages", "Edit");
    for (const [text, problem] of [
      ["{", /This is no JSON/],
      ["[1]", /A merge patch is a JSON object/],
      ["{}", /The patch changes nothing/],
    ] as const) {
      await type(opened, "Merge patch (RFC 7396)", text);
      await plan(opened);
      expect(screen.getByText(problem)).toBeTruthy();
    }
    expect(opened.mock.asked.some(({ method }) => method === "POST")).toBe(false);
  });

  it("of one message can be of its whole body", async () => {
    const opened = open("?queue=orders&lookup_id=1");
    await begin(opened, "message 1", "Edit");
    expect(screen.getByLabelText<HTMLTextAreaElement>("Body", { selector: "textarea" }).value).toContain('"flight":12345678901234567890');
    await type(opened, "Body", "{}");
    await plan(opened);
    await screen.findByRole("button", { name: "Edit 1 message" });
    expect(lastPost(opened.mock, "plan")).toEqual({ queue: "orders", selection: { sub_queue: "poison", lookup_ids: [1] }, action: { verb: "edit", body: "{}" } });
  });

  it("of a filtered selection goes back in the same plan, some of them first", async () => {
    const opened = open(`${POISON}&selection=${encodeURIComponent(JSON.stringify({ error_type: "KeyError" }))}`);
    await begin(opened, "all 182,233 messages", "Edit and redrive");
    await type(opened, "Merge patch (RFC 7396)", '{"currency": "EUR"}');
    await type(opened, "Canary: messages", "50");
    await plan(opened);
    await opened.user.click(await screen.findByRole("button", { name: "Edit and redrive 182,233 messages" }));
    expect(lastPost(opened.mock, "apply")).toMatchObject({
      selection: { sub_queue: "poison", error_type: "KeyError" },
      action: { verb: "edit", patch: '{"currency": "EUR"}', target: "main" },
      canary: { messages: 50, share: 0.95 },
    });
  });

  it("of one message goes back in the same plan, without a canary", async () => {
    const opened = open("?queue=orders&lookup_id=1");
    await begin(opened, "message 1", "Edit and put back");
    await type(opened, "Body", "{}");
    await plan(opened);
    await opened.user.click(await screen.findByRole("button", { name: "Edit and put back 1 message" }));
    const applied = lastPost(opened.mock, "apply");
    expect(applied).toMatchObject({ selection: { sub_queue: "poison", lookup_ids: [1] }, action: { verb: "edit", body: "{}", target: "main" } });
    expect(applied).not.toHaveProperty("canary");
  });

  it("of a body with carriage returns is none of the whole: a field of text makes line feeds of them", async () => {
    const mock = new Mock();
    const found = mock.answer("GET", "message", new URLSearchParams("queue=orders&lookup_id=1"), {});
    const answer = found.body as MessageAnswer;
    mock.instead.set("message", { status: 200, body: { ...answer, message: { ...answer.message, body: "a\\x0d\nb", body_bytes: 4 } } });
    const opened = open("?queue=orders&lookup_id=1", mock);
    await begin(opened, "message 1", "Edit");
    expect(screen.getByText(/does not have the body byte for byte/)).toBeTruthy();
    expect(screen.queryByRole("option", { name: "the whole body" })).toBeNull();
  });

  it.each([
    [3, /does not have the body byte for byte/],
    [4, /The body is no text/],
    [7, /Values of the body are hidden/],
  ])("of message %i cannot be of its whole body: what the page does not have would be lost", async (id, why) => {
    const opened = open(`?queue=orders&lookup_id=${id}`);
    await begin(opened, `message ${id}`, "Edit");
    expect(screen.getByText(why)).toBeTruthy();
    expect(screen.queryByRole("option", { name: "the whole body" })).toBeNull();
  });
});

describe("a queue", () => {
  it("is disabled and enabled with a reason", async () => {
    const opened = open("?queue=orders");
    await opened.user.click(await screen.findByRole("button", { name: "Disable …" }));
    await type(opened, "Reason", "stocktaking");
    await opened.user.click(screen.getByRole("button", { name: "Disable" }));
    await opened.user.click(await screen.findByRole("button", { name: "Enable …" }));
    expect(lastPost(opened.mock, "disable")).toEqual({ queue: "orders", reason: "stocktaking" });
    await opened.user.click(screen.getByRole("button", { name: "Enable" }));
    expect(await screen.findByRole("button", { name: "Disable …" })).toBeTruthy();
  });
});

describe("a viewer", () => {
  it.each(["?queue=orders&view=group&error=0b12c34d56e7", "?queue=orders&sub_queue=poison", "?queue=warehouse", "?queue=orders&lookup_id=1", "?queue=orders&view=plans&plan=p-old", "?queue=orders&view=groups"])(
    "sees no buttons that act at %s",
    async (query) => {
      const mock = new Mock();
      mock.rights = { read: true, act: false, unmask: false };
      open(query, mock);
      await screen.findByRole("navigation", { name: "Parts of the queue" });
      await waitFor(() => {
        expect(document.querySelectorAll("[data-reading]")).toHaveLength(0);
      });
      expect(screen.getAllByRole("button").filter((button) => button.textContent.endsWith("…"))).toEqual([]);
      expect(screen.queryAllByRole("checkbox")).toEqual([]);
      expect(screen.queryAllByRole("button", { name: "enable" })).toEqual([]);
    },
  );
});
