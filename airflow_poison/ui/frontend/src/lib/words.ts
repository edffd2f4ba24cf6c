/** Numbers and times as words. */

import type { ConversationRow, Instant } from "../api/types";

const UNITS = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
] as const;

/** The two largest units of a time: `2 h 5 min`. */
export function span(seconds: number): string {
  let left = Math.max(0, Math.round(seconds));
  const words: string[] = [];
  for (const [unit, size] of UNITS) {
    const number = Math.floor(left / size);
    left %= size;
    if (number) words.push(`${number} ${unit}`);
    else if (words.length) break;
    if (words.length === 2) break;
  }
  return words.join(" ") || "0 s";
}

export function age(instant: Instant | null, now: Instant): string {
  return instant ? span((Date.parse(now) - Date.parse(instant)) / 1000) : "";
}

export function due(instant: Instant | null, now: Instant): string {
  if (!instant) return "";
  const seconds = (Date.parse(instant) - Date.parse(now)) / 1000;
  return seconds <= 0 ? "now" : `in ${span(seconds)}`;
}

export function count(number: number): string {
  return number.toLocaleString("en-US");
}

/** `1 message`, `2,000 messages`. */
export function many(number: number, one: string, more = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : more}`;
}

export function percent(share: number): string {
  return share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;
}

/** A value of a policy or a message as one text. */
export function plain(value: unknown): string {
  if (value === null || value === undefined || value === "") return "none";
  if (typeof value === "string") return value;
  return typeof value === "number" || typeof value === "boolean" ? String(value) : JSON.stringify(value);
}

export function waiting(row: ConversationRow): number {
  return Object.values(row.waiting).reduce((sum, number) => sum + number, 0);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
