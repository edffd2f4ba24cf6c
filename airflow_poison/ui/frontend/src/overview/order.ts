/** In which order queues are listed. */

import type { Decision, Need, NeedKind, Queue, SubQueue } from "../api/types";
import { newPoison } from "../lib/state";
import type { Sort } from "../parts/column";

const URGENCY: readonly NeedKind[] = ["halted", "outage", "question", "plan", "poison_growing", "poison", "overdue", "expired_claim", "plan_at_work"];
const LAST = "\uffff";

/** A number that is lower the sooner somebody should look at a queue. */
export function urgency({ needs = [] }: { readonly needs?: readonly Need[] }): number {
  const ranks = needs.map(({ kind }) => URGENCY.indexOf(kind)).map((rank) => (rank < 0 ? URGENCY.length : rank));
  return Math.min(...ranks, URGENCY.length + 1);
}

export interface Needing {
  readonly queue: Queue;
  readonly needs: readonly Need[];
}

/** Queues with what they need, the questions about them among it, the most urgent first. */
export function needing(queues: readonly Queue[], decisions: readonly Decision[]): Needing[] {
  return queues
    .map((queue) => {
      const asked = decisions.filter((each) => each.queue === queue.queue).map(({ subject }): Need => ({ kind: "question", text: subject }));
      const needs = [...(queue.needs ?? []), ...asked].toSorted((one, other) => URGENCY.indexOf(one.kind) - URGENCY.indexOf(other.kind));
      return { queue, needs };
    })
    .filter(({ needs }) => needs.length)
    .toSorted((one, other) => urgency(one) - urgency(other) || poisonOf(other.queue) - poisonOf(one.queue) || byName(one.queue, other.queue));
}

const depth = (place: SubQueue) => (queue: Queue) => queue.sub_queues[place].messages;
const poisonOf = depth("poison");

const KEYS: Readonly<Record<string, (queue: Queue) => number | string>> = {
  needs: urgency,
  queue: ({ queue }) => queue,
  main: depth("main"),
  retry: depth("retry"),
  poison: poisonOf,
  new: (queue) => newPoison(queue) ?? -1,
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
