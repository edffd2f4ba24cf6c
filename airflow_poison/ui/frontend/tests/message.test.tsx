import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import { Mock } from "../mock/answers";
import { BODY, HOSTILE } from "../mock/data";
import type { MessageAnswer } from "../src/api/types";

import { open, rowsOf } from "./page";

const body = () => screen.getByRole("region", { name: "Body" }).textContent;

describe("a message", () => {
  it("has its JSON laid out, without loss of digits", async () => {
    const { user } = open("?queue=orders&lookup_id=1");
    await screen.findByRole("heading", { name: /^Body/ });
    expect(body()).toContain('  "flight": 12345678901234567890,\n  "dep_delay": 75,');
    await user.click(screen.getByRole("button", { name: "As it is" }));
    expect(body()).toContain('"flight":12345678901234567890,"dep_delay":75');
    await user.click(screen.getByRole("button", { name: "Hex" }));
    expect(body()).toContain('00000000  7b 22 63 61 72 72 69 65 72 22 3a 22 56 58 22 2c  {"carrier":"VX",');
  });

  it("has its XML laid out", async () => {
    open("?queue=orders&lookup_id=2");
    await screen.findByRole("heading", { name: /^Body/ });
    expect(body()).toBe("<order>\n  <id>7</id>\n  <note>Größe</note>\n</order>");
  });

  it("is shown as bytes where it is no text", async () => {
    open("?queue=orders&lookup_id=4");
    await screen.findByRole("heading", { name: /no text/ });
    expect(body()).toContain("00000000  00 ff 20 62 79 74 65 73");
  });

  it("is text, whatever it holds, and says that escapes stand in it", async () => {
    open("?queue=orders&lookup_id=3");
    expect(await screen.findByText(/stand here as escapes/)).toBeTruthy();
    expect(body()).toContain(`${HOSTILE}\\x1b]0;owned`);
    expect(document.querySelectorAll("main script, main img")).toHaveLength(0);
    expect(document.title).not.toBe("taken");
  });

  it("is copied, and says so", async () => {
    const { user } = open("?queue=orders&lookup_id=1");
    await user.click(await screen.findByRole("button", { name: "Copy" }));
    expect(await screen.findByRole("button", { name: "Copied" })).toBeTruthy();
    expect(await navigator.clipboard.readText()).toContain('"dep_delay": 75');
  });

  it("is downloaded byte for byte under its name", async () => {
    const { user } = open("?queue=orders&lookup_id=4");
    let saved: Blob | undefined;
    URL.createObjectURL = (blob) => {
      saved = blob as Blob;
      return "blob:1";
    };
    URL.revokeObjectURL = () => undefined;
    const names: string[] = [];
    vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(function (this: HTMLAnchorElement) {
      names.push(this.download);
    });
    await user.click(await screen.findByRole("button", { name: "Download" }));
    expect(names).toEqual(["orders-4.bin"]);
    expect(saved?.size).toBe(8);
  });

  it("shows what was edited beside its original", async () => {
    open("?queue=orders&lookup_id=6");
    const diff = await screen.findByRole("region", { name: "Difference to the original body" });
    expect(within(diff).getByText(/−.*"dep_delay": 15/).tagName).toBe("DEL");
    expect(within(diff).getByText(/\+.*"dep_delay": 75/).tagName).toBe("INS");
  });

  it("says which values are hidden", async () => {
    open("?queue=orders&lookup_id=7");
    expect(await screen.findByText("1 value hidden: $.card")).toBeTruthy();
  });

  it("shows hidden values to who may see them: read once, noted, and hidden again", async () => {
    const { user, mock } = open("?queue=orders&lookup_id=7");
    await screen.findByText("1 value hidden: $.card");
    expect(body()).not.toContain("4111");
    expect(mock.asked.some(({ query }) => query.has("unmask"))).toBe(false);
    await user.click(screen.getByRole("button", { name: "Show hidden values" }));
    await screen.findByRole("button", { name: "Hide them again" });
    expect(body()).toContain('"card": "4111"');
    await user.click(screen.getByRole("button", { name: "Refresh" }));
    expect(mock.asked.filter(({ query }) => query.get("unmask") === "true")).toHaveLength(1);
    await user.click(screen.getByRole("button", { name: "Hide them again" }));
    expect(body()).toContain('"card": "***"');
  });

  it("offers no hidden values without the right, and says why they cannot be shown", async () => {
    const mock = new Mock();
    mock.rights = { read: true, act: true, unmask: false };
    open("?queue=orders&lookup_id=7", mock);
    await screen.findByText("1 value hidden: $.card");
    expect(screen.queryByRole("button", { name: "Show hidden values" })).toBeNull();
  });

  it("says why hidden values cannot be shown", async () => {
    const { user, mock } = open("?queue=orders&lookup_id=7");
    const button = await screen.findByRole("button", { name: "Show hidden values" });
    mock.instead.set("message", { status: 503, body: { detail: "Airflow's audit log cannot be written, so nothing was done." } });
    await user.click(button);
    expect((await screen.findAllByText(/audit log cannot be written/)).length).toBeGreaterThan(0);
    expect(body()).not.toContain("4111");
  });

  it("has its whole history, with who acted and links into Airflow, but no others", async () => {
    open("?queue=orders&lookup_id=1");
    await screen.findByRole("table", { name: "History" });
    expect(rowsOf("History").map(([, type]) => type)).toEqual(["EDITED", "MOVED_POISON", "MOVED_RETRY"]);
    expect(rowsOf("History")[0]?.[2]).toContain("by ann (in Airflow): dep_delay was wrong");
    const links = screen.getAllByRole("link", { name: /^(DAG run|task log) of/ }).map((link) => link.getAttribute("href"));
    expect(links).toEqual(["dags/arrivals/runs/scheduled__1", "dags/arrivals/runs/scheduled__1/tasks/receive"]);
  });

  it("has the trace of its last failure and its columns", async () => {
    open("?queue=orders&lookup_id=1");
    expect((await screen.findByRole("region", { name: "Trace" })).textContent).toContain("Traceback");
    expect(screen.getByText("property country")).toBeTruthy();
  });

  it("of a conversation says what ends it", async () => {
    open("?queue=warehouse&lookup_id=5");
    expect(await screen.findByRole("heading", { name: "Its conversation" })).toBeTruthy();
    expect(await screen.findByText(/A message of this conversation has halted the queue/)).toBeTruthy();
  });

  it("is laid out once, however often it is read", async () => {
    const looked = vi.spyOn(String.prototype, "trimStart"); // laying a body out begins with it
    const times = () => looked.mock.contexts.filter((text) => text === BODY).length;
    const { user, mock } = open("?queue=orders&lookup_id=1");
    await screen.findByRole("heading", { name: /^Body/ });
    for (let round = 0; round < 3; round += 1) {
      const asked = mock.asked.length;
      await user.click(screen.getByRole("button", { name: "Refresh" }));
      await waitFor(() => {
        expect(mock.asked.length).toBeGreaterThan(asked);
      });
    }
    expect(times()).toBe(1);
  });

  it("of thousands of brackets is shown as text, and as a difference", async () => {
    const mock = new Mock();
    const deep = "[".repeat(5_000) + "]".repeat(5_000);
    const found = mock.answer("GET", "message", new URLSearchParams("queue=orders&lookup_id=6"), {});
    const answer = found.body as MessageAnswer;
    mock.instead.set("message", { status: 200, body: { ...answer, message: { ...answer.message, body: deep, body_bytes: 10_000 } } });
    open("?queue=orders&lookup_id=6", mock);
    await screen.findByRole("heading", { name: /^Body/ });
    expect(body()).toBe(deep);
    expect(screen.queryByRole("button", { name: "Laid out" })).toBeNull();
    expect(screen.getByRole("region", { name: "Difference to the original body" })).toBeTruthy();
    expect(screen.getByRole("table", { name: "History" })).toBeTruthy();
  });

  it("of which a part fails keeps all others, and its actions", async () => {
    vi.spyOn(console, "error").mockImplementation(() => undefined); // React tells of it
    const mock = new Mock();
    const found = mock.answer("GET", "message", new URLSearchParams("queue=orders&lookup_id=1"), {});
    const answer = found.body as MessageAnswer;
    mock.instead.set("message", { status: 200, body: { ...answer, history: [{ at: "never", type: "EDITED", details: null, links: null }], message: { ...answer.message, body: null } } });
    open("?queue=orders&lookup_id=1", mock);
    await screen.findByRole("region", { name: "Trace" });
    expect(screen.getAllByText(/^This part cannot be shown \(TypeError/)).toHaveLength(2);
    expect(screen.getByRole("button", { name: "Remove …" })).toBeTruthy();
    expect(screen.getByText("property country")).toBeTruthy();
  });

  it("with long texts cuts them, and shows them whole in place", async () => {
    const mock = new Mock();
    const found = mock.answer("GET", "message", new URLSearchParams("queue=orders&lookup_id=1"), {});
    const answer = found.body as MessageAnswer;
    const long = "x".repeat(20_000);
    mock.instead.set("message", { status: 200, body: { ...answer, message: { ...answer.message, properties: { note: long } } } });
    const { user } = open("?queue=orders&lookup_id=1", mock);
    await screen.findByText("property note");
    expect(document.body.textContent).not.toContain("x".repeat(501));
    await user.click(screen.getByRole("button", { name: "Show all 20,000 characters" }));
    expect(document.body.textContent).toContain(long);
    await user.click(screen.getByRole("button", { name: "Show less" }));
    expect(document.body.textContent).not.toContain(long);
  });

  it("that is gone says where to look", async () => {
    open("?queue=orders&lookup_id=99");
    expect(await screen.findByText(/Message 99 is not in queue 'orders'/)).toBeTruthy();
  });
});
