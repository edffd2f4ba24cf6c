import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { Mock } from "../mock/answers";

import { open, type Opened } from "./page";

interface Person {
  /** Press a link or button by its name; the first one where there are several. */
  readonly press: (role: "link" | "button", name: string | RegExp) => Promise<void>;
  readonly pressed: () => number;
}

/** Where somebody can press: in the dialog where there is one, else on the page. */
function reachableNow(role: "link" | "button", name: string | RegExp): Element[] {
  const dialog = screen.queryByRole("dialog");
  return (dialog ? within(dialog) : screen).queryAllByRole(role, { name });
}

async function reachable(role: "link" | "button", name: string | RegExp): Promise<Element> {
  return waitFor(() => {
    const [found] = reachableNow(role, name);
    if (!found) throw new Error(`there is no ${role} ${String(name)}`);
    return found;
  });
}

function mouse({ user }: Opened): Person {
  let clicks = 0;
  return {
    press: async (role, name) => {
      const found = await reachable(role, name);
      clicks += 1;
      await user.click(found);
    },
    pressed: () => clicks,
  };
}

const MOST_TABS = 400;

function keyboard({ user }: Opened): Person {
  let keys = 0;
  return {
    press: async (role, name) => {
      await reachable(role, name);
      for (let tabs = 0; tabs < MOST_TABS; tabs += 1) {
        if (document.activeElement && reachableNow(role, name).includes(document.activeElement)) break;
        await user.tab();
      }
      keys += 1;
      await user.keyboard("{Enter}");
    },
    pressed: () => keys,
  };
}

describe.each([
  ["a mouse", mouse],
  ["the keyboard alone", keyboard],
])("somebody with %s", (_with, person) => {
  it("finds which kind of error is new with one click", async () => {
    const somebody = person(open());
    await somebody.press("link", /182,233 poison messages/);
    expect((await screen.findByText(/kinds are new since yesterday/)).textContent).toContain("UnicodeDecodeError");
    expect(somebody.pressed()).toBe(1);
  });
});

describe("somebody with a mouse", () => {
  it("edits and redrives the messages of a group with two clicks, and takes it back with two", async () => {
    const opened = open("?queue=orders&view=group&sub_queue=poison&error=0b12c34d56e7");
    const { user, mock } = opened;
    const somebody = mouse(opened);
    const field = await screen.findByLabelText("Merge patch (RFC 7396)");
    await user.clear(field);
    await user.paste('{"dep_delay": 15}');
    await somebody.press("button", "Edit and redrive 120,000 messages …");
    await somebody.press("button", "Edit and redrive 120,000 messages");
    await screen.findByRole("heading", { name: "Plan p-1" });
    expect(somebody.pressed()).toBe(2);
    mock.plans = mock.plans.map((each) => ({ ...each, state: "done", done: each.messages }));
    await user.click(screen.getByRole("button", { name: "Refresh" })); // it looks by itself, later
    await somebody.press("button", "Undo …");
    await somebody.press("button", "Undo");
    expect(await screen.findByText("undone")).toBeTruthy();
    expect(somebody.pressed()).toBe(4);
  });

  it("answers a question and sees the queue enabled with three clicks", async () => {
    const mock = new Mock();
    const somebody = mouse(open("", mock));
    await somebody.press("link", "Queue warehouse is disabled by message 1. What shall be done?");
    await somebody.press("button", "Remove message 1 and enable");
    await screen.findByRole("dialog");
    await somebody.press("button", "Remove message 1 and enable");
    expect(await screen.findByText(/^The queue is enabled\./)).toBeTruthy();
    expect(somebody.pressed()).toBe(3);
  });
});
