/** Selections, actions and plans, as the server answers and takes them. */

import type { Instant, SubQueue } from "./types";

export interface Selection {
  readonly sub_queue?: SubQueue | null;
  readonly error?: string;
  readonly error_type?: string;
  readonly text?: string;
  readonly since?: Instant;
  readonly until?: Instant;
  readonly counts?: readonly string[];
  readonly group?: string;
  readonly message_type?: string;
  readonly message_id?: string;
  readonly properties?: Readonly<Record<string, string>>;
  readonly lookup_ids?: readonly number[];
  readonly where?: string;
}

export type Verb = "put_back" | "move" | "send_to" | "remove" | "edit";

export interface Action {
  readonly verb: Verb;
  readonly target?: string;
  readonly patch?: unknown;
  readonly properties?: Readonly<Record<string, string | null>>;
  readonly function?: string;
  readonly body?: string | null;
}

export interface Canary {
  readonly messages: number;
  readonly share: number;
}

export type PlanState = "planned" | "running" | "paused" | "canary" | "stopped" | "done" | "cancelled" | "undoing" | "undone" | "failed";

export interface PlanGroup {
  readonly error: string;
  readonly type: string;
  readonly text: string;
  readonly messages: number;
}

export interface PlanSample {
  readonly lookup_id: number;
  readonly sub_queue: string;
  readonly reason: string | null;
  readonly before: string | null;
  readonly after: string | null;
  readonly unfit?: string;
}

export interface Plan {
  readonly queue: string;
  readonly plan: string;
  readonly version: number;
  readonly action: Action;
  readonly selection: Selection;
  readonly at: Instant;
  readonly messages: number;
  readonly claimed: number;
  readonly groups: readonly PlanGroup[];
  readonly samples: readonly PlanSample[];
  readonly state: PlanState;
  readonly done: number;
  readonly skipped: number;
  readonly who: string;
  readonly reason: string;
  readonly rate: number | null;
  readonly chunk: number | null;
  readonly canary: Canary | null;
  readonly undoable: boolean;
  /** Why one that has failed could not go on. */
  readonly error?: string;
  /** What this server does with it: `running`, `waiting` behind so many, `later` for passes, or nothing; and its last error. */
  readonly server?: { readonly state: "" | "running" | "waiting" | "later"; readonly before: number; readonly error: string };
}

export interface Plans {
  readonly plans: readonly Plan[];
}
