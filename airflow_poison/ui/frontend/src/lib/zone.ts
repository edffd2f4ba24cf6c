/** Times in the zone that is chosen in Airflow's UI, as Airflow shows them. */

import { useSyncExternalStore } from "react";

import type { Instant } from "../api/types";

const KEY = "timezone"; // Airflow's UI keeps the zone under it, as JSON
const DAY = 24 * 3600 * 1000;

function chosen(): string {
  try {
    const zone: unknown = JSON.parse(localStorage.getItem(KEY) ?? "null");
    if (typeof zone === "string" && zone) {
      new Intl.DateTimeFormat("en", { timeZone: zone });
      return zone;
    }
  } catch {
    // no storage, no JSON, or no such zone: the browser's own
  }
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
}

function subscribe(view: () => void): () => void {
  window.addEventListener("storage", view);
  window.addEventListener("local-storage", view); // Airflow's own event, for this window
  return () => {
    window.removeEventListener("storage", view);
    window.removeEventListener("local-storage", view);
  };
}

export function useZone(): string {
  return useSyncExternalStore(subscribe, chosen);
}

const clocks = new Map<string, Intl.DateTimeFormat>();

/** What a clock of a zone shows, whichever zone the browser is in: sums of local times are wrong in the hour that the browser's own clock skips. */
export function timeIn(zone: string, instant: Instant | Date): string {
  const clock = clocks.get(zone) ?? new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" });
  clocks.set(zone, clock);
  const date = new Date(instant);
  return Number.isNaN(date.getTime()) ? String(instant) : clock.format(date);
}

const INSTANT = /\b\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)| \d\d:\d\d(?::\d\d)? UTC)/g;

/** A text with the instants that the server writes as times of a zone. */
export function timesIn(zone: string, text: string): string {
  return text.replaceAll(INSTANT, (instant) => timeIn(zone, instant.replace(" ", "T").replace(" UTC", "Z")));
}

export function timeInUtc(instant: Instant | Date): string {
  return `${timeIn("UTC", instant)} UTC`;
}

/** The value of an input of type datetime-local for an instant, and back. Empty texts stay empty. */
export function toInput(zone: string, instant: Instant | undefined): string {
  return instant ? timeIn(zone, instant).replace(" ", "T") : "";
}

/** A time that the clock shows twice is the earlier one; one that it skips is as late after the skip as it would have been, as in the shell. */
export function fromInput(zone: string, text: string): Instant | undefined {
  if (!text) return undefined;
  const wall = Date.parse(`${text}Z`);
  const [before, behind] = [wall - DAY, wall + DAY].map((at) => new Date(wall - (Date.parse(`${toInput(zone, new Date(at).toISOString())}Z`) - at)).toISOString());
  const shown = new Date(wall).toISOString().slice(0, 19);
  return before !== undefined && behind !== undefined && toInput(zone, before) !== shown && toInput(zone, behind) === shown ? behind : before;
}
