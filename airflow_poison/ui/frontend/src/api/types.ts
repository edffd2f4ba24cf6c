/** What the server answers and takes: the JSON of `/poison/api`. */

export const SUB_QUEUES = ["main", "retry", "poison", "postponed", "transmission"] as const;
export type SubQueue = (typeof SUB_QUEUES)[number];

export type Instant = string;

export interface Depth {
  readonly messages: number;
  readonly claimed: number;
  readonly oldest_enqueued_at: Instant | null;
  readonly next_due_at: Instant | null;
}

export interface Outage {
  readonly since: Instant;
  readonly next_probe_at: Instant;
}

export interface Claim {
  readonly key: string;
  readonly sub_queue: string;
  readonly messages: number;
  readonly expires_at: Instant;
  readonly expired: boolean;
}

export interface Source {
  readonly source: string;
  readonly kind: string;
  readonly position: string;
  readonly taken_at: Instant;
  readonly messages: number;
  readonly malformed: number;
}

export type NeedKind = "halted" | "outage" | "poison_growing" | "overdue" | "expired_claim";

export interface Need {
  readonly kind: NeedKind;
  readonly text: string;
}

export interface Trend {
  readonly hours: number;
  readonly poison: readonly number[];
  readonly settled: readonly number[];
}

export interface Queue {
  readonly queue: string;
  readonly at: Instant;
  readonly state: string;
  readonly reason: string | null;
  readonly poison_state: string;
  readonly poison_reason: string | null;
  readonly halted: boolean;
  readonly halted_by: number | null;
  readonly blocked_until: string | null;
  readonly blocked_by: number | null;
  readonly obstacle: string;
  readonly outage: Outage | null;
  readonly poison_outage: Outage | null;
  readonly policy: Readonly<Record<string, unknown>>;
  readonly sub_queues: Readonly<Record<SubQueue, Depth>>;
  readonly oldest_enqueued_at: Instant | null;
  readonly next_due_at: Instant | null;
  readonly claims: readonly Claim[];
  readonly expired_claims: number;
  readonly sources: readonly Source[];
  readonly needs?: readonly Need[];
  readonly trend?: Trend | null;
  readonly has_conversations?: boolean;
  readonly conversations?: number | null;
}

export interface Totals {
  readonly queues: number;
  readonly halted: number;
  readonly outages: number;
  readonly messages: Readonly<Record<SubQueue, number>>;
}

export interface Queues {
  readonly at: Instant;
  readonly exists: boolean;
  readonly queues: readonly Queue[];
  readonly unreadable: readonly string[];
  readonly totals: Totals;
}

export interface LastError {
  readonly kind?: string | null;
  readonly type?: string | null;
  readonly message?: string | null;
  readonly fingerprint?: string | null;
  readonly trace?: string | null;
}

export interface MessageRow {
  readonly lookup_id: number;
  readonly message_id: string;
  readonly sub_queue: SubQueue;
  readonly abort_count: number;
  readonly move_count: number;
  readonly crash_count: number;
  readonly priority: number;
  readonly group_id: string | null;
  readonly conversation_id: string | null;
  readonly message_type: string | null;
  readonly properties: Readonly<Record<string, string>>;
  readonly enqueued_at: Instant | null;
  readonly expires_at: Instant | null;
  readonly due_at: Instant | null;
  readonly last_error: LastError | null;
  readonly reason: string | null;
}

export interface Messages {
  readonly messages: readonly MessageRow[];
  readonly total: number;
  readonly version: number;
}

export interface Body {
  readonly body: string;
  readonly body_encoding: string;
}

export interface WholeMessage extends MessageRow, Body {
  readonly body_bytes: number;
  readonly body_cut: boolean;
}

export interface Links {
  readonly dag_run: string | null;
  readonly task_log: string | null;
}

export interface HistoryEvent {
  readonly at: Instant;
  readonly type: string;
  readonly details: Readonly<Record<string, string>>;
  readonly links?: Links;
}

export interface MessageAnswer {
  readonly message: WholeMessage;
  readonly original: Body | null;
  readonly masked?: readonly string[];
  readonly history: readonly HistoryEvent[];
}

export interface QueueEvent {
  readonly at: Instant;
  readonly event: string;
  readonly lookup_id: number | null;
  readonly abort_count: number;
  readonly move_count: number;
  readonly details: Readonly<Record<string, string>>;
}

export interface Events {
  readonly events: readonly QueueEvent[];
  readonly earlier: number;
}

export interface ErrorGroup {
  readonly error: string;
  readonly kind: string;
  readonly type: string;
  readonly text: string;
  readonly messages: number;
  readonly share: number;
  readonly first_seen: Instant | null;
  readonly last_seen: Instant | null;
  readonly sample: number | null;
  readonly trend: readonly number[];
}

export interface Groups {
  readonly messages: number;
  readonly groups: readonly ErrorGroup[];
}

export interface Rights {
  readonly read: boolean;
  readonly act: boolean;
  readonly unmask: boolean;
}

export interface Decision {
  readonly dag_id: string;
  readonly run_id: string;
  readonly task_id: string;
  readonly map_index: number;
  readonly subject: string;
  readonly body: string | null;
  readonly options: readonly string[];
  readonly url: string | null;
}

export interface Decisions {
  readonly decisions: readonly Decision[];
}

export interface ConversationRow {
  readonly handle: string;
  readonly conversation_id: string;
  readonly group_id: string;
  readonly is_initiator: boolean;
  readonly service: string;
  readonly far_service: string;
  readonly contract: string;
  readonly state: string;
  readonly priority: number;
  readonly lifetime: Instant | null;
  readonly dialog_timer: Instant | null;
  readonly sent: number;
  readonly waiting: Readonly<Record<string, number>>;
  readonly failures: number;
  readonly error: { readonly code: number; readonly description: string } | null;
  readonly began_at: Instant | null;
}

export interface Conversations {
  readonly at: Instant;
  readonly conversations: readonly ConversationRow[];
  readonly more: number;
}

export interface Conversation {
  readonly at: Instant;
  readonly conversation: ConversationRow & { readonly far_handle: string };
  readonly far_queue: { readonly queue: string; readonly state: string } | null;
  readonly messages: readonly MessageRow[];
  readonly more: number;
  readonly unsent: Readonly<Record<string, number>>;
  readonly halts: boolean;
  readonly ended_by: string | null;
}
