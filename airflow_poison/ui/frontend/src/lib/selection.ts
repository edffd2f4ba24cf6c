/** Selections of messages: in the address, in requests, and in words. */

import type { Selection } from "../api/plans";
import type { SubQueue } from "../api/types";
import { count, many } from "./words";

/** A selection without its empty fields; the sub-queue stands beside it in the address. */
export type Filter = Omit<Selection, "sub_queue">;

export const EVERYWHERE = "everywhere";

export function withoutEmpty(filter: Filter): Filter {
  const isSet = ([, value]: readonly [string, unknown]) => typeof value === "object" && value !== null ? Object.keys(value).length > 0 : Boolean(value);
  return Object.fromEntries(Object.entries(filter).filter(isSet));
}

const isText = (value: unknown) => typeof value === "string" && value !== "";
const isListOf = (type: string) => (value: unknown) => Array.isArray(value) && value.length > 0 && value.every((each) => typeof each === type);
const isTexts = (value: unknown) => typeof value === "object" && value !== null && Object.values(value).length > 0 && Object.values(value).every((each) => typeof each === "string");
const FIELDS: Readonly<Record<keyof Filter, (value: unknown) => boolean>> = {
  error: isText,
  error_type: isText,
  text: isText,
  since: isText,
  until: isText,
  counts: isListOf("string"),
  group: isText,
  message_type: isText,
  message_id: isText,
  properties: isTexts,
  lookup_ids: isListOf("number"),
  where: isText,
};

/** Read a filter from the address. Null for what is none: without it, a link to some messages would be one to all of them. */
export function parseFilter(text: string | null): Filter | null {
  if (text === null) return {};
  try {
    const found: unknown = JSON.parse(text);
    if (typeof found !== "object" || found === null || Array.isArray(found)) return null;
    return Object.entries(found).every(([name, value]) => Object.hasOwn(FIELDS, name) && FIELDS[name as keyof Filter](value)) ? found : null;
  } catch {
    return null;
  }
}

export function selectionOf(place: SubQueue | null, filter: Filter): Selection {
  return { sub_queue: place, ...filter };
}

export interface Chip {
  readonly label: string;
  /** The filter without it. */
  readonly rest: Filter;
}

/** The parts of a filter that can be taken away one by one. */
export function chipsOf(filter: Filter, time: (instant: string) => string): Chip[] {
  const { counts, properties, ...others } = filter;
  return [
    ...Object.keys(others).map((name) => {
      const [label = name] = inWords({ [name]: filter[name as keyof Filter] }, time);
      return { label, rest: withoutEmpty({ ...filter, [name]: undefined }) };
    }),
    ...(counts ?? []).map((count, place) => ({ label: count, rest: withoutEmpty({ ...filter, counts: (counts ?? []).filter((_, other) => other !== place) }) })),
    ...Object.entries(properties ?? {}).map(([name, value]) => ({
      label: `property ${name} = ${value}`,
      rest: withoutEmpty({ ...filter, properties: Object.fromEntries(Object.entries(properties ?? {}).filter(([other]) => other !== name)) }),
    })),
  ];
}

/** What a filter wants, one text for each field that is set. */
export function inWords(filter: Filter, time: (instant: string) => string): string[] {
  const { error, error_type, text, since, until, counts, group, message_type, message_id, properties, lookup_ids, where } = filter;
  return [
    error && `error group ${error}`,
    error_type && `error type ${error_type}`,
    text && `text “${text}”`,
    since && `since ${time(since)}`,
    until && `until ${time(until)}`,
    ...(counts ?? []),
    group && `group ${group}`,
    message_type && `message type ${message_type}`,
    message_id && `message id ${message_id}`,
    ...Object.entries(properties ?? {}).map(([name, value]) => `property ${name} = ${value}`),
    lookup_ids && (lookup_ids.length <= 5 ? `lookup ids ${lookup_ids.join(", ")}` : `${count(lookup_ids.length)} lookup ids`),
    where && `SQL ${where}`,
  ].filter((each): each is string => Boolean(each));
}

export function selectionInWords(selection: Selection, time: (instant: string) => string): string {
  const { sub_queue: place = "poison", ...filter } = selection;
  const wanted = inWords(filter, time);
  return `${place === null ? "All sub-queues" : `Sub-queue ${place}`}${wanted.length ? `; ${wanted.join("; ")}` : ", all messages"}`;
}

export function chosenInWords(number: number): string {
  return `${many(number, "message")} chosen`;
}
