/** Times in the zone that is chosen in Airflow's UI, as Airflow shows them. */

import dayjs from "dayjs";
import timezone from "dayjs/plugin/timezone";
import utc from "dayjs/plugin/utc";
import { useSyncExternalStore } from "react";

import type { Instant } from "../api/types";

dayjs.extend(utc);
dayjs.extend(timezone);

const KEY = "timezone"; // Airflow's UI keeps the zone under it, as JSON
const FORMAT = "YYYY-MM-DD HH:mm:ss";

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

export function timeIn(zone: string, instant: Instant | Date): string {
  return dayjs(instant).tz(zone).format(FORMAT);
}

const INSTANT = /\b\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)| \d\d:\d\d(?::\d\d)? UTC)/g;

/** A text with the instants that the server writes as times of a zone. */
export function timesIn(zone: string, text: string): string {
  return text.replaceAll(INSTANT, (instant) => timeIn(zone, instant.replace(" ", "T").replace(" UTC", "Z")));
}

export function timeInUtc(instant: Instant | Date): string {
  return `${dayjs(instant).utc().format(FORMAT)} UTC`;
}

/** The value of an input of type datetime-local for an instant, and back. Empty texts stay empty. */
export function toInput(zone: string, instant: Instant | undefined): string {
  return instant ? dayjs(instant).tz(zone).format("YYYY-MM-DDTHH:mm:ss") : "";
}

export function fromInput(zone: string, text: string): Instant | undefined {
  return text ? dayjs.tz(text, zone).toISOString() : undefined;
}
