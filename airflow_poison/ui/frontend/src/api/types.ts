/** What the server answers: its types are made from the server's own shapes (`make types`). Here is what the page adds to them. */

import type { QueueNeed, SubQueue } from "./generated";

export type * from "./generated";

export const SUB_QUEUES = ["main", "retry", "poison", "postponed", "transmission"] as const satisfies readonly SubQueue[];

/** ISO 8601. */
export type Instant = string;

/** `question` is of the page: a required action that waits. */
export type NeedKind = QueueNeed["kind"] | "question";

export interface Need extends Omit<QueueNeed, "kind"> {
  readonly kind: NeedKind;
}
