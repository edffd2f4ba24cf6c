import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";
import type { Plan } from "../src/api/plans";

import { lastPost, open, rowsOf } from "./page";

describe("a plan that has failed", () => {
  it("says why, and can be resumed, cancelled and undone", async () => {
    const mock = new Mock();
    mock.plans = mock.plans.map((each) => ({ ...each, state: "failed", done: 100, error: "QueueNotFoundError: There is no queue 'gone' in the store." }));
    open("?queue=orders&view=plans&plan=p-old", mock);
    expect((await screen.findByRole("alert")).textContent).toContain("It cannot go on: QueueNotFoundError: There is no queue 'gone' in the store. When");
    expect(screen.getByText("failed")).toBeTruthy();
    expect(["Resume …", "Cancel the plan …", "Undo …"].filter((name) => screen.queryByRole("button", { name }) === null)).toEqual([]);
  });
});

describe("a plan that its canary has stopped", () => {
  it("can go on without it, be cancelled, or be undone", async () => {
    const mock = new Mock();
    mock.plans = mock.plans.map((each) => ({ ...each, state: "stopped", done: 100 }));
    open("?queue=orders&view=plans&plan=p-old", mock);
    const actions = await screen.findByRole("group", { name: "Actions of plan p-old" });
    expect(within(actions).getAllByRole("button").map((button) => button.textContent)).toEqual(["Go on without the canary …", "Cancel the plan …", "Undo …"]);
    expect(screen.getByText("stopped by its canary")).toBeTruthy();
  });
});

describe("a canary", () => {
  const seen = { settled: 61, failed: 3, waiting: 36, errors: [{ error: "0b12c34d56e7", type: "KeyError", text: "'carrier'", messages: 3 }] };
  const going = (more: Partial<Plan>) => {
    const mock = new Mock();
    mock.instead.set("plan", { status: 200, body: { ...mock.plans[0], done: 100, canary: { messages: 100, share: 0.95 }, canary_seen: seen, server: { state: "later", before: 0, error: "" }, ...more } });
    open("?queue=orders&view=plans&plan=p-old", mock);
  };

  it("says how its messages fare, by which errors they failed again, and how many must be settled", async () => {
    going({ state: "canary" });
    expect(await screen.findByText(/^Canary: of 100 messages, 61 settled, 3 failed again, 36 still to be received or tried again\. The others follow when 95 % \(95\) are settled\./)).toBeTruthy();
    expect(rowsOf("Errors of the canary")).toEqual([["KeyError'carrier'", "3"]]);
  });

  it("that is decided takes no place", async () => {
    going({ state: "running", canary_seen: null });
    await screen.findByRole("progressbar");
    expect(screen.queryByText(/^Canary: of/)).toBeNull();
  });
});

describe("a plan that is under way", () => {
  it("is paused in the list of plans with one click", async () => {
    const mock = new Mock();
    mock.plans = mock.plans.map((each) => ({ ...each, state: "running", server: { state: "running", before: 0, error: "" } }));
    const { user } = open("?queue=orders&view=plans", mock);
    await user.click(await screen.findByRole("button", { name: "Pause" }));
    expect(await screen.findByText("paused")).toBeTruthy();
    expect(lastPost(mock, "pause")).toEqual({ queue: "orders", plan: "p-old", reason: "" });
  });

  it("says why it cannot be paused", async () => {
    const mock = new Mock();
    mock.plans = mock.plans.map((each) => ({ ...each, state: "running", messages: 1e9, server: { state: "running", before: 0, error: "" } }));
    mock.instead.set("pause", { status: 409, body: { detail: "Plan 'p-old' is done." } });
    const { user } = open("?queue=orders&view=plans&plan=p-old", mock);
    await user.click(await screen.findByRole("button", { name: "Pause" }));
    expect((await screen.findByRole("alert")).textContent).toContain("Plan 'p-old' is done.");
  });
});

describe("a plan that no server goes on with", () => {
  it("says so, and can be resumed", async () => {
    const mock = new Mock();
    mock.plans = mock.plans.map((each) => ({ ...each, state: "running", done: 100, messages: 1e9, server: { state: "", before: 0, error: "" } }));
    const { user } = open("?queue=orders&view=plans&plan=p-old", mock);
    expect(await screen.findByText(/This server does not go on with it/)).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Resume …" }));
    await user.click(await screen.findByRole("button", { name: "Resume" }));
    await waitFor(() => {
      expect(lastPost(mock, "resume")).toEqual({ queue: "orders", plan: "p-old", reason: "" });
    });
  });

  it.each([
    [{ state: "waiting", before: 2, error: "" }, "It waits behind 2 other plans."],
    [{ state: "later", before: 0, error: "" }, /It waits for passes/],
    [{ state: "", before: 0, error: "PoisonError. The log says why." }, /It does not go on: PoisonError/],
  ] as const)("or that waits says for what", async (server, text) => {
    const mock = new Mock();
    mock.plans = mock.plans.map((each) => ({ ...each, state: "running", done: 100, messages: 1e9, server }));
    open("?queue=orders&view=plans&plan=p-old", mock);
    expect(await screen.findByText(text)).toBeTruthy();
  });
});
