/** In which order queues are listed. */

import type { NeedKind, Queue, SubQueue } from "../api/types";
import type { Sort } from "../parts/column";

const URGENCY: readonly NeedKind[] = ["halted", "outage", "poison_growing", "overdue", "expired_claim"];
const LAST = "\uffff";

/** A number that is lower the sooner somebody should look at a queue. */
export function urgency({ needs = [] }: Queue): number {
  const ranks = needs.map(({ kind }) => URGENCY.indexOf(kind)).map((rank) => (rank < 0 ? URGENCY.length : rank));
  return Math.min(...ranks, URGENCY.length + 1);
}

export function needing(queues: readonly Queue[]): Queue[] {
  return queues.filter(({ needs = [] }) => needs.length).toSorted((one, other) => urgency(one) - urgency(other) || byName(one, other));
}

const depth = (place: SubQueue) => (queue: Queue) => queue.sub_queues[place].messages;

const KEYS: Readonly<Record<string, (queue: Queue) => number | string>> = {
  needs: urgency,
  queue: ({ queue }) => queue,
  main: depth("main"),
  retry: depth("retry"),
  poison: depth("poison"),
  oldest: ({ oldest_enqueued_at: at }) => at ?? LAST,
  due: ({ next_due_at: at }) => at ?? LAST,
};

export function inOrder(queues: readonly Queue[], { by, desc }: Sort): Queue[] {
  const key = KEYS[by] ?? urgency;
  const sign = desc ? -1 : 1;
  return queues.toSorted((one, other) => sign * compare(key(one), key(other)) || byName(one, other));
}

function compare(one: number | string, other: number | string): number {
  return typeof one === "string" || typeof other === "string" ? String(one).localeCompare(String(other)) : one - other;
}

function byName(one: Queue, other: Queue): number {
  return one.queue.localeCompare(other.queue);
}
