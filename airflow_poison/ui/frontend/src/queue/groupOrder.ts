/** Error groups as people work with them: which fit a search, in which order. */

import type { ErrorGroup } from "../api/types";
import type { Sort } from "../parts/column";

const KEYS: Readonly<Record<string, (group: ErrorGroup) => number | string>> = {
  error: ({ type, text }) => `${type} ${text}`,
  messages: ({ messages }) => messages,
  first: ({ first_seen: at }) => at ?? "",
  last: ({ last_seen: at }) => at ?? "",
};

export function groupsInOrder(groups: readonly ErrorGroup[], search: string, { by, desc }: Sort): ErrorGroup[] {
  const wanted = search.trim().toLowerCase();
  const key = KEYS[by] ?? (({ messages }: ErrorGroup) => messages);
  return groups
    .filter(({ type, text, error, kind }) => [type, text, error, kind].some((each) => each.toLowerCase().includes(wanted)))
    .toSorted((one, other) => (desc ? -1 : 1) * compare(key(one), key(other)));
}

function compare(one: number | string, other: number | string): number {
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
}
