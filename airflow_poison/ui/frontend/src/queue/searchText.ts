/** What somebody types into the search field, as a part of a filter. */

import type { Filter } from "../lib/selection";
import { fromInput } from "../lib/zone";

export interface Term {
  readonly filter?: Filter;
  readonly problem?: string;
}

const COUNT = /^(abort_count|move_count|crash_count|priority)\s*(>=|<=|!=|=|>|<)\s*(\d+)$/;
const NAMED = /^([a-z_ ]+):\s*(.*)$/is;
const PROPERTY = /^([^\s=<>!]+)=(.*)$/s;
const AGO = /^(\d+)\s*(min|h|d)$/;
const SECONDS: Readonly<Record<string, number>> = { min: 60, h: 3_600, d: 86_400 };
const TEXTS: Readonly<Record<string, keyof Filter>> = {
  type: "error_type",
  error_type: "error_type",
  error: "error",
  group: "group",
  message_type: "message_type",
  message_id: "message_id",
  sql: "where",
  where: "where",
};

/** The words that a search field may begin with, for its suggestions. */
export const WORDS = ["type:", "error:", "group:", "since: 2 h", "until: 1 d", "abort_count>=", "move_count>=", "crash_count>0", "name=value", "message_type:", "message_id:", "id:", "sql:"];

/** Return what a text asks for in addition to a filter, or why it asks for nothing. */
export function termOf(text: string, before: Filter, zone: string, now = new Date()): Term {
  const wanted = text.trim();
  if (COUNT.test(wanted)) return { filter: { ...before, counts: [...(before.counts ?? []), wanted.replaceAll(/\s+/g, "")] } };
  const [, word, value = ""] = NAMED.exec(wanted) ?? [];
  const name = word?.trim().toLowerCase();
  if (name !== undefined && value.trim() && (Object.hasOwn(TEXTS, name) || ["since", "until", "id", "lookup_id"].includes(name))) return named(name, value.trim(), before, zone, now);
  const [, property, is = ""] = PROPERTY.exec(wanted) ?? [];
  if (property !== undefined) return { filter: { ...before, properties: { ...before.properties, [property]: is.trim() } } };
  return wanted ? { filter: { ...before, text: wanted } } : { problem: "Write what to look for." };
}

function named(name: string, value: string, before: Filter, zone: string, now: Date): Term {
  const field = TEXTS[name];
  if (field === "error" && !/^[0-9a-f]{12}$/.test(value)) return { problem: `“${value}” is no error group: its id has 12 hexadecimal digits. For the type of an error write type: ${value}` };
  if (field) return { filter: { ...before, [field]: value } };
  if (name === "since" || name === "until") {
    const instant = instantOf(value, zone, now);
    return instant ? { filter: { ...before, [name]: instant } } : { problem: `“${value}” is no time: write 2 h, 3 d, 2026-11-25 or 2026-11-25 10:00.` };
  }
  const ids = value.split(/[,\s]+/).filter(Boolean);
  const wrong = ids.find((each) => !/^\d{1,15}$/.test(each));
  return wrong === undefined ? { filter: { ...before, lookup_ids: [...(before.lookup_ids ?? []), ...ids.map(Number)] } } : { problem: `“${wrong}” is no lookup id: write numbers with commas between them.` };
}

function instantOf(value: string, zone: string, now: Date): string | undefined {
  const [, number, unit = ""] = AGO.exec(value) ?? [];
  if (number !== undefined) return new Date(now.getTime() - Number(number) * (SECONDS[unit] ?? 0) * 1000).toISOString();
  const day = /^(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?))?$/.exec(value);
  const time = `${day?.[1] ?? ""}T${day?.[2] ?? "00:00"}`;
  const instant = new Date(`${time}Z`);
  return day && !Number.isNaN(instant.getTime()) && instant.toISOString().startsWith(time) ? fromInput(zone, time) : undefined;
}
