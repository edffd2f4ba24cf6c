import { act, screen } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { act as post, Refused } from "../src/api/client";
import { Question } from "../src/api/question";

import { Mock } from "../mock/answers";

import { open } from "./page";

const ROUND = 15_000;
const later = (milliseconds: number) => act(() => vi.advanceTimersByTimeAsync(milliseconds));

/** Answers of the server, given one after the other; `held` ones wait. */
function answers(...given: (Response | Error)[]) {
  const asked: string[] = [];
  vi.stubGlobal("fetch", (url: URL) => {
    asked.push(url.href);
    const next = given.length > 1 ? given.shift() : given[0];
    return next instanceof Error ? Promise.reject(next) : Promise.resolve(next?.clone());
  });
  return asked;
}

const good = (value: unknown) => new Response(JSON.stringify(value));
const bad = (status: number, headers: Record<string, string> = {}) => new Response(JSON.stringify({ detail: "not now" }), { status, headers });

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("a question", () => {
  it("keeps the last good answer when a newer reading fails, and says when it is from", async () => {
    answers(good(1), bad(503));
    const question = new Question<number>("queue", {});
    await question.ask();
    const { at } = question.current();
    await later(1000);
    await question.ask();
    expect(question.current()).toEqual({ found: 1, at, error: "not now", status: 503 });
  });

  it("asks with the ETag of the last answer, which stays, as of now, while nothing has changed", async () => {
    const sent: unknown[] = [];
    vi.stubGlobal("fetch", (_: URL, { headers }: RequestInit) => {
      sent.push((headers as Record<string, string>)["If-None-Match"]);
      const first = sent.length === 1;
      const told = { ETag: '"a"', Date: `Sat, 28 Nov 2026 10:00:0${sent.length} GMT` };
      return Promise.resolve(new Response(first ? '{"at":"then","depth":7}' : null, { status: first ? 200 : 304, headers: told }));
    });
    const question = new Question<unknown>("queue", {});
    await question.ask();
    await question.ask();
    expect(sent).toEqual([undefined, '"a"']);
    expect(question.current().found).toEqual({ at: "2026-11-28T10:00:02.000Z", depth: 7 });
  });

  it("is asked once at a time, and says that it is late", async () => {
    const asked: string[] = [];
    vi.stubGlobal("fetch", (url: URL) => {
      asked.push(url.href);
      return new Promise(() => undefined);
    });
    const question = new Question<number>("queue", {});
    void question.ask();
    await later(ROUND);
    void question.ask();
    expect(asked).toHaveLength(1);
    expect(question.current().late).toBe(true);
  });

  it("is asked less and less often while it fails, at most every two minutes", async () => {
    const asked = answers(bad(500));
    const question = new Question<number>("queue", {});
    for (let round = 0; round < 80; round += 1) {
      await question.ask();
      await later(ROUND);
    }
    expect(asked.length).toBeGreaterThan(9);
    expect(asked.length).toBeLessThan(16);
  });

  it("waits as long as a busy server wants, unless somebody insists", async () => {
    const asked = answers(bad(503, { "Retry-After": "60" }), good(1));
    const question = new Question<number>("queue", {});
    await question.ask();
    await later(45_000);
    await question.ask();
    expect(asked).toHaveLength(1);
    await question.ask(true);
    expect(question.current().found).toBe(1);
  });

  it("gives up after two minutes", async () => {
    vi.stubGlobal(
      "fetch",
      (_: URL, { signal }: { signal: AbortSignal }) =>
        new Promise((_give, fail) => {
          signal.addEventListener("abort", () => {
            fail(new Error("aborted"));
          });
        }),
    );
    const question = new Question<number>("queue", {});
    void question.ask();
    await later(120_000);
    expect(question.current().error).toBe("The server has not answered within 120 s.");
  });

  it.each([
    [401, "You are signed out. Load the page again to sign in."],
    [403, "You may not read queues: that takes the right to read assets."],
    [404, "not now"],
  ])("says of status %i what to do", async (status, text) => {
    answers(bad(status));
    const question = new Question<number>("queue", {});
    await question.ask();
    expect(question.current().error).toBe(text);
  });

  it("says which argument cannot be", async () => {
    answers(new Response(JSON.stringify({ detail: [{ loc: ["query", "limit"], msg: "Input should be less than 200" }] }), { status: 422 }));
    const question = new Question<number>("messages", {});
    await question.ask();
    expect(question.current().error).toBe("limit: Input should be less than 200");
  });
});

describe("an act", () => {
  it("is sent as JSON from this page, with the token of a proxy where there is one", async () => {
    document.cookie = "XSRF-TOKEN=a%20b";
    const sent: RequestInit[] = [];
    vi.stubGlobal("fetch", (_: URL, options: RequestInit) => {
      sent.push(options);
      return Promise.resolve(good({}));
    });
    await post("enable", "poison_default", { queue: "orders" });
    document.cookie = "XSRF-TOKEN=; Max-Age=0";
    expect(sent[0]).toMatchObject({ method: "POST", credentials: "same-origin", body: '{"queue":"orders"}' });
    expect(sent[0]?.headers).toEqual({ "Accept": "application/json", "Content-Type": "application/json", "X-XSRF-TOKEN": "a b" });
  });

  it("that is forbidden says why", async () => {
    answers(new Response(JSON.stringify({ detail: "Forbidden" }), { status: 403 }));
    await expect(post("enable", "poison_default", { queue: "orders" })).rejects.toThrow(/the right to edit the connection/);
    answers(bad(403));
    await expect(post("enable", "poison_default", { queue: "orders" })).rejects.toEqual(new Refused("not now", 403));
  });
});

describe("the page", () => {
  it("reads again every 15 seconds while it is visible, and groups a quarter as often", async () => {
    const { mock } = open("?queue=orders&sub_queue=poison");
    const times = (name: string) => mock.asked.filter((each) => each.name === name).length;
    await later(10);
    expect([times("queue"), times("messages"), times("groups"), times("rights")]).toEqual([1, 1, 1, 1]);
    for (let round = 0; round < 4; round += 1) await later(ROUND);
    expect([times("queue"), times("messages"), times("groups"), times("rights")]).toEqual([5, 5, 2, 1]);
    vi.spyOn(document, "visibilityState", "get").mockReturnValue("hidden");
    await later(10 * ROUND);
    expect(times("queue")).toBe(5);
  });

  it("keeps what it shows when a refresh fails, and says from when it is", async () => {
    const { mock } = open("?queue=orders&sub_queue=main");
    await later(10);
    mock.instead.set("messages", { status: 503, body: { detail: "not now" } });
    await later(ROUND);
    expect(screen.getByText(/^From \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\. The last try to read it again has failed: not now$/)).toBeTruthy();
    expect(screen.getByText("1–50 of 1,204")).toBeTruthy();
  });

  it("reads at once when somebody wants it", async () => {
    const { mock } = open("?queue=orders&sub_queue=main");
    await later(10);
    const before = mock.asked.length;
    act(() => {
      screen.getByRole("button", { name: "Refresh" }).click();
    });
    await later(10);
    expect(mock.asked.length).toBeGreaterThan(before);
  });
});

describe("every screen", () => {
  it.each(["", "?queue=orders", "?queue=orders&view=groups", "?queue=orders&view=plans", "?queue=orders&view=events", "?queue=orders&view=settings", "?queue=warehouse&view=conversations", "?queue=orders&lookup_id=1"])(
    "that cannot be shown says so, and the header stays: %s",
    async (query) => {
      vi.useRealTimers();
      vi.spyOn(console, "error").mockImplementation(() => undefined); // React tells of it
      const mock = new Mock();
      for (const name of ["queues", "groups", "plans", "events", "conversations", "message", "messages"]) mock.instead.set(name, { status: 200, body: {} });
      if (query.includes("settings")) mock.queues = mock.queues.map((each) => ({ ...each, claims: null as never }));
      open(query, mock);
      expect((await screen.findAllByText(/^This part cannot be shown \(TypeError/)).length).toBeGreaterThan(0);
      expect(screen.getByRole("button", { name: "Refresh" })).toBeTruthy();
    },
  );
});

