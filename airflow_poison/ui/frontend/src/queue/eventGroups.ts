/** Events by the run, plan or person that they belong to, or by message; the newest group first. */

import type { Links, QueueEvent } from "../api/types";

export type By = "run" | "message" | "time";

export interface EventGroup {
  readonly key: string;
  readonly who: string | null;
  readonly plan: string | null;
  readonly message: number | null;
  readonly links: Links | null;
  /** The newest first. */
  readonly events: readonly QueueEvent[];
}

export function eventGroups(events: readonly QueueEvent[], by: By): EventGroup[] {
  const groups = new Map<string, QueueEvent[]>();
  for (const event of events.toReversed()) {
    const key = keyOf(event, by);
    groups.set(key, [...(groups.get(key) ?? []), event]);
  }
  return [...groups].map(([key, found]) => {
    const [newest] = found;
    const { who = null, plan = null } = newest?.details ?? {};
    return { key, who, plan: by === "run" ? plan : null, message: by === "message" ? (newest?.lookup_id ?? null) : null, links: newest?.links ?? null, events: found };
  });
}

function keyOf({ details, lookup_id: id }: QueueEvent, by: By): string {
  if (by === "message") return id === null ? "queue" : `message ${id}`;
  return by === "time" ? "" : JSON.stringify([details["plan"] ?? null, details["plan"] ? null : (details["who"] ?? details["run"] ?? null)]);
}
