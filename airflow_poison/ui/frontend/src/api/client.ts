/** Requests to the server of the page: GET to read, POST to act. Both raise `Refused` with a sentence for people. */

import type { Plan, Requests } from "./generated";

export type Query = Readonly<Record<string, string | number | boolean | null | undefined>>;

export const PATIENCE_SECONDS = 120;
const NOT_MODIFIED = 304;

/** Why the server has not done what was asked. `status` is 0 where it has not answered; `again` is after how many seconds it wants to be asked. */
export class Refused extends Error {
  constructor(
    message: string,
    readonly status = 0,
    readonly again = 0,
  ) {
    super(message);
  }
}

/** `found` is missing where the answer is still the one that had the ETag; `now` is the server's time. */
export interface Reading<T> {
  readonly found?: T;
  readonly tag: string | null;
  readonly now: string;
}

export async function read<T>(name: string, query: Query, signal: AbortSignal, tag: string | null = null): Promise<Reading<T>> {
  const answer = await request(address(name, query), { signal, headers: tag === null ? {} : { "If-None-Match": tag } });
  const now = new Date(answer.headers.get("Date") ?? Date.now()).toISOString();
  return { tag: answer.headers.get("ETag"), now, ...(answer.status === NOT_MODIFIED ? {} : { found: (await answer.json()) as T }) };
}

/** What the server answers to an act. */
export type Told<N extends keyof Requests> = N extends "enable" | "disable" | "decide" ? unknown : Plan;

/** Act. As Airflow's own UI does, it sends JSON, and the token of an `XSRF-TOKEN` cookie where somebody in front of the server sets one. */
export async function act<N extends keyof Requests>(name: N, connId: string, body: Requests[N]): Promise<Told<N>> {
  const token = /(?:^|;\s*)XSRF-TOKEN=([^;]*)/.exec(document.cookie)?.[1];
  const answer = await request(address(name, { conn_id: connId }), {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(token === undefined ? {} : { "X-XSRF-TOKEN": decodeURIComponent(token) }) },
    body: JSON.stringify(body),
  });
  return (await answer.json()) as Told<N>;
}

function address(name: string, query: Query): URL {
  const url = new URL(`poison/api/${name}`, document.baseURI);
  for (const [key, value] of Object.entries(query)) if (value !== null && value !== undefined) url.searchParams.set(key, String(value));
  return url;
}

type Options = Omit<RequestInit, "headers"> & { readonly headers?: Readonly<Record<string, string>> };

async function request(url: URL, options: Options): Promise<Response> {
  const { signal } = options;
  let answer: Response;
  try {
    answer = await fetch(url, { ...options, credentials: "same-origin", headers: { Accept: "application/json", ...options.headers } });
  } catch (error) {
    if (signal?.aborted) throw new Refused(`The server has not answered within ${PATIENCE_SECONDS} s.`);
    throw new Refused(`The server cannot be reached (${error instanceof Error ? error.message : "no reason given"}).`);
  }
  if (!answer.ok && answer.status !== NOT_MODIFIED) throw await refusal(answer, options.method ?? "GET");
  return answer;
}

async function refusal(answer: Response, method: string): Promise<Refused> {
  const { status } = answer;
  const again = Number(answer.headers.get("Retry-After") ?? 0) || 0;
  const detail = detailOf(await answer.json().catch(() => null));
  if (status === 401) return new Refused("You are signed out. Load the page again to sign in.", status);
  if (status === 403) return new Refused(forbidden(method, detail), status);
  return new Refused(detail ?? `The server answered with status ${status}.`, status, again);
}

function forbidden(method: string, detail: string | null): string {
  if (method === "GET") return "You may not read queues: that takes the right to read assets.";
  return detail && detail !== "Forbidden" ? detail : "You may not do this: it takes the right to change assets and the right to edit the connection.";
}

/** FastAPI says `detail` as a text, or, of an argument that cannot be, as a list of `{loc, msg}`. */
function detailOf(body: unknown): string | null {
  if (typeof body !== "object" || body === null || !("detail" in body)) return null;
  const { detail } = body;
  if (typeof detail === "string") return detail;
  if (!Array.isArray(detail)) return null;
  const told = detail.map((each: { loc?: unknown[]; msg?: string }) => [each.loc?.slice(1).join("."), each.msg].filter(Boolean).join(": "));
  return told.filter(Boolean).join("; ") || null;
}
