import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";
import { HOSTILE, QUESTION } from "../mock/data";
import { blocksOf, explained, inlinesOf } from "../src/lib/markdown";

import { lastPost, open } from "./page";

const WAREHOUSE = "?queue=warehouse&sub_queue=main";
const question = () => screen.findByRole("region", { name: /^Question: Queue warehouse is disabled/ });

describe("a question", () => {
  it("is rendered: no Markdown is to be seen, and nothing of it is HTML", async () => {
    open(WAREHOUSE);
    const { textContent: text } = await question();
    expect(text).toContain("Queue warehouse is disabled by message 1: nothing is received from it.");
    expect(text).toContain(HOSTILE);
    expect(text).toContain("fenced ``` inside");
    expect(text).toContain("sent2026-11-27 23:30:00");
    expect(text).toContain("property notea | b");
    expect(text).not.toMatch(/\*\*|\|---/);
    expect(document.querySelectorAll("main script, main img")).toHaveLength(0);
  });

  it("explains each answer beside its button", async () => {
    open(WAREHOUSE);
    const answers = within(within(await question()).getByRole("list", { name: "Answers" })).getAllByRole("listitem");
    expect(answers.map((each) => each.textContent)).toEqual([
      "Remove message 1 and enableit is kept in warehouse;poison; what is behind it is received.",
      "Enable, leave message 1 as it isit keeps its counts, and may halt the queue again.",
      "Leave it disablednothing is changed.",
    ]);
  });

  it("is answered with a reason, and followed until the queue is enabled", async () => {
    const { user, mock } = open(WAREHOUSE);
    await user.click(within(await question()).getByRole("button", { name: "Remove message 1 and enable" }));
    const dialog = await screen.findByRole("dialog");
    expect(dialog.textContent).toContain("what is behind it is received");
    await user.type(within(dialog).getByLabelText("Reason"), "a duplicate");
    await user.click(within(dialog).getByRole("button", { name: "Remove message 1 and enable" }));
    expect(await screen.findByText("Answered: Remove message 1 and enable")).toBeTruthy();
    expect(await screen.findByText(/^The queue is enabled\./)).toBeTruthy();
    expect(lastPost(mock, "decide")).toEqual({
      dag_id: "arrivals",
      run_id: "manual__1",
      task_id: "ask",
      map_index: -1,
      option: "Remove message 1 and enable",
      reason: "a duplicate",
    });
    await waitFor(() => {
      expect(screen.queryByText(/A decision is needed/)).toBeNull();
    });
    await user.click(screen.getByRole("button", { name: "Close" }));
    expect(screen.queryByText(/^Answered/)).toBeNull();
  });

  it("stays, when the answer is refused", async () => {
    const mock = new Mock();
    mock.instead.set("decide", { status: 409, body: { detail: "Somebody was faster." } });
    const { user } = open(WAREHOUSE, mock);
    await user.click(within(await question()).getByRole("button", { name: "Leave it disabled" }));
    await user.click(within(await screen.findByRole("dialog")).getByRole("button", { name: "Leave it disabled" }));
    expect(await screen.findByText("Somebody was faster.")).toBeTruthy();
    expect(screen.queryByText(/^Answered/)).toBeNull();
  });

  it.each([
    ["the right to act", { read: true, act: false, unmask: false }, true],
    ["being asked", { read: true, act: true, unmask: true }, false],
  ])("has no buttons without %s, and says so", async (_what, rights, mayAnswer) => {
    const mock = new Mock();
    mock.rights = rights;
    mock.decisions = mock.decisions.map((each) => ({ ...each, may_answer: mayAnswer }));
    open(WAREHOUSE, mock);
    const found = within(await question());
    expect(found.getByText(/^You may not answer it/)).toBeTruthy();
    expect(found.queryAllByRole("button")).toEqual([]);
  });

  it("that cannot be read is told, and the queue is shown", async () => {
    const mock = new Mock();
    mock.instead.set("decisions", { status: 503, body: { detail: "The database is away." } });
    open(WAREHOUSE, mock);
    expect(await screen.findByText("Questions about this queue cannot be read: The database is away.")).toBeTruthy();
    expect(await screen.findByRole("table", { name: "Messages" })).toBeTruthy();
  });
});

describe("Markdown", () => {
  it("is blocks", () => {
    expect(blocksOf(QUESTION).map(({ kind }) => kind)).toEqual(["paragraph", "code", "table", "paragraph", "code", "list"]);
    expect(blocksOf("```\nnever ended\n* no item")).toEqual([{ kind: "code", text: "never ended\n* no item" }]);
    expect(blocksOf("one\ntwo\n\nthree")).toEqual([
      { kind: "paragraph", line: "one\ntwo" },
      { kind: "paragraph", line: "three" },
    ]);
    expect(blocksOf("")).toEqual([]);
  });

  it("has code whose fence is longer than what it holds, and stars that are none", () => {
    expect(inlinesOf("a `` ` `` **b** * c ** d")).toEqual([
      { kind: "text", text: "a " },
      { kind: "code", text: "`" },
      { kind: "text", text: " " },
      { kind: "bold", text: "b" },
      { kind: "text", text: " * c ** d" },
    ]);
  });

  it("keeps a list that does not explain the options", () => {
    const { blocks, meanings } = explained("* **other**: no option", ["leave"]);
    expect([blocks.length, meanings.size]).toEqual([1, 0]);
  });
});
