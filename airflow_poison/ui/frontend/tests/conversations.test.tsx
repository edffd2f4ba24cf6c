import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";
import { HOSTILE } from "../mock/data";
import type { Conversation } from "../src/api/types";

import { open, rowsOf } from "./page";

describe("conversations", () => {
  it("are listed with their states, services and partners", async () => {
    open("?queue=warehouse&view=conversations");
    await screen.findByRole("table", { name: "Conversations" });
    expect(rowsOf("Conversations")[0]?.slice(1, 4)).toEqual(["SI started inbound", `//Warehouse→ //Shop${HOSTILE}`, "//Shop/Parts"]);
    expect(screen.getByRole("link", { name: "Also those that have ended" })).toBeTruthy();
  });

  it("say who waits, what is not sent, where the partner is, and what ends them", async () => {
    open("?queue=warehouse&conversation=8912277c");
    expect(await screen.findByText(/airflow poison end-conversation warehouse 8912277c --error 127/)).toBeTruthy();
    expect(screen.getByText(/2 of its messages go for good, .* is told an error, and the queue is enabled/)).toBeTruthy();
    const said = within(screen.getByRole("list", { name: "Messages of the conversation" })).getAllByRole("listitem");
    expect(said.map((each) => each.getAttribute("aria-label"))).toEqual([`from //Shop${HOSTILE}`, `from //Shop${HOSTILE}`, "from //Warehouse"]);
    expect(said[0]?.textContent).toContain("//Flights/Arrival 1");
    expect(said[2]?.textContent).toBe("//Shop/Order1 message, not sent yet");
    expect(screen.getByText(/is disabled: what is not sent yet waits here/)).toBeTruthy();
    expect(screen.getByRole("link", { name: "its side" }).getAttribute("href")).toContain("conversation=0a668759");
  });

  it("are a thread without an entry where nothing waits", async () => {
    const mock = new Mock();
    const found = mock.answer("GET", "conversation", new URLSearchParams("queue=warehouse&handle=8912277c"), {}).body as Conversation;
    mock.instead.set("conversation", { status: 200, body: { ...found, messages: [], unsent: {} } });
    open("?queue=warehouse&conversation=8912277c", mock);
    expect(await screen.findByText("Nothing waits at this side, and all that was said here has left.")).toBeTruthy();
  });

  it("that are not there say why", async () => {
    open("?queue=warehouse&conversation=nowhere");
    expect(await screen.findByText(/has no conversation 'nowhere'/)).toBeTruthy();
  });
});
