/** The whole page in a test: its server is the made-up one. */

import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { render, screen, within } from "@testing-library/react";
import userEvent, { type UserEvent } from "@testing-library/user-event";
import { MemoryRouter, useLocation, useNavigate } from "react-router-dom";
import { vi } from "vitest";

import { Mock } from "../mock/answers";
import { App } from "../src/App";

export interface Opened {
  readonly mock: Mock;
  readonly user: UserEvent;
  /** The query of the page's address. */
  readonly address: () => URLSearchParams;
}

function Address() {
  const navigate = useNavigate();
  return (
    <>
      <output data-testid="address">{useLocation().search}</output>
      <button data-testid="back" onClick={() => void navigate(-1)} />
    </>
  );
}

export function serve(mock: Mock): void {
  vi.stubGlobal("fetch", async (url: URL, options: RequestInit) => {
    await Promise.resolve();
    const name = url.pathname.replace(/^.*\/poison\/api\//, "");
    const body: unknown = typeof options.body === "string" ? JSON.parse(options.body) : {};
    const { status, body: answer } = mock.answer(options.method ?? "GET", name, url.searchParams, body);
    return new Response(JSON.stringify(answer), { status });
  });
}

export function open(query = "", mock = new Mock()): Opened {
  mock.mostRows = 6; // rows with boxes are slow in jsdom
  serve(mock);
  const user = userEvent.setup();
  render(
    <ChakraProvider value={defaultSystem}>
      <MemoryRouter initialEntries={[`/plugin/poison${query}`]}>
        <App />
        <Address />
      </MemoryRouter>
    </ChakraProvider>,
  );
  return { mock, user, address: () => new URLSearchParams(screen.getByTestId("address").textContent) };
}

/** The rows of a table: the texts of their cells. */
export function rowsOf(name: string): string[][] {
  const table = screen.getByRole("table", { name });
  const [, ...rows] = within(table).getAllByRole("row");
  return rows.map((row) => [...row.querySelectorAll("th, td")].map((cell) => cell.textContent));
}

/** The fields of the last request of a name that acted. */
export function lastPost(mock: Mock, name: string): Record<string, unknown> {
  const found = mock.asked.findLast((each) => each.method === "POST" && each.name === name);
  if (!found) throw new Error(`nobody has asked for ${name}`);
  return found.body as Record<string, unknown>;
}

export function beWide(wide = true): void {
  vi.stubGlobal("matchMedia", (media: string) => ({
    media,
    matches: !wide,
    addEventListener: () => undefined,
    removeEventListener: () => undefined,
  }));
}
