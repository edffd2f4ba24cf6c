/** Made by `make types` from airflow_poison/ui/shapes.py and posts.py: change these. */

/** What becomes of messages; a patch may be JSON text. */
export interface Action {
  readonly verb: "put_back" | "move" | "send_to" | "remove" | "edit";
  readonly target?: string;
  readonly patch?: unknown;
  readonly body?: string | null;
  readonly function?: string;
  readonly properties?: Readonly<Record<string, string | null>>;
}

/** What is to become of messages; see PlanAction. A patch may be JSON text: its numbers keep their digits. */
export interface ActionRequest {
  readonly verb: string;
  readonly target?: string;
  readonly patch?: Readonly<Record<string, unknown>> | string | null;
  readonly body?: string | null;
  readonly function?: string;
  readonly properties?: Readonly<Record<string, string | null>>;
}

/** The answer to a pending question. */
export interface Answer {
  readonly dag_id: string;
  readonly run_id: string;
  readonly task_id: string;
  readonly map_index?: number;
  readonly option: string;
  readonly reason?: string;
}

/** A plan that was shown to the user; ``queue_id``, as the plan has it, says of which queue, should one of the same name take its place. */
export interface Applied {
  readonly queue: string;
  readonly selection: Selection;
  readonly action: ActionRequest;
  readonly limit?: number | null;
  readonly version: number;
  readonly queue_id?: string;
  readonly reason?: string;
  readonly rate?: number | null;
  readonly chunk?: number | null;
  readonly canary?: First | null;
}

/** A body as people read it: ``body_encoding`` is ``text``, ``base64``, or the encoding that XML says. */
export interface Body {
  readonly body: string;
  readonly body_encoding: string;
  readonly body_bytes?: number;
  readonly body_cut?: boolean;
}

/** How many messages go first, and the share of them that must be settled. */
export interface Canary {
  readonly messages: number;
  readonly share: number;
}

/** What has become of the messages that went first. */
export interface CanarySeen {
  readonly version?: number;
  readonly settled: number;
  readonly failed: number;
  readonly waiting: number;
  readonly errors: readonly PlannedGroup[];
}

/** Messages that a pass holds. */
export interface Claim {
  readonly key: string;
  readonly sub_queue: string;
  readonly messages: number;
  readonly expires_at: string;
  readonly expired: boolean;
  readonly given_up?: boolean;
}

/** One conversation: what waits for it, what has not left, what ends it. */
export interface Conversation {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly at: string;
  readonly conversation: OneConversation;
  readonly far_queue: FarQueue | null;
  readonly messages: readonly MessageRow[];
  readonly more: number;
  readonly unsent: Readonly<Record<string, number>>;
  readonly halts: boolean;
  readonly ended_by: string | null;
}

/** One side of a conversation. */
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
  readonly lifetime: string | null;
  readonly dialog_timer: string | null;
  readonly sent: number;
  readonly waiting: Readonly<Record<string, number>>;
  readonly failures: number;
  readonly error: DialogError | null;
  readonly began_at: string | null;
  readonly cleaned?: boolean;
}

/** The conversations of a queue. */
export interface Conversations {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly at: string;
  readonly conversations: readonly ConversationRow[];
  readonly more: number;
}

/** A question about a queue that waits for an answer. */
export interface Decision {
  readonly dag_id: string;
  readonly run_id: string;
  readonly task_id: string;
  readonly map_index: number;
  readonly queue: string;
  readonly subject: string;
  readonly body: string | null;
  readonly options: readonly string[];
  readonly at?: string;
  readonly may_answer?: boolean;
  readonly url: string | null;
}

/** The questions of a queue, or of a connection. */
export interface Decisions {
  readonly conn_id?: string;
  readonly queue?: string | null;
  readonly decisions: readonly Decision[];
}

/** What waits in one sub-queue. */
export interface Depth {
  readonly messages: number;
  readonly claimed: number;
  readonly oldest_enqueued_at: string | null;
  readonly next_due_at: string | null;
  readonly due?: number;
  readonly by_move_count?: Readonly<Record<string, number>>;
}

/** The error that has ended a conversation. */
export interface DialogError {
  readonly code: number;
  readonly description: string;
}

/** Messages that failed alike. */
export interface ErrorGroup {
  readonly error: string;
  readonly kind: string;
  readonly type: string;
  readonly text: string;
  readonly messages: number;
  readonly share: number;
  readonly first_seen: string | null;
  readonly last_seen: string | null;
  readonly sample: number | null;
  readonly trend: readonly number[];
  readonly new: boolean;
}

/** The newest events. */
export interface Events {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly events: readonly QueueEvent[];
  readonly earlier: number;
}

/** The queue of the partner's service. */
export interface FarQueue {
  readonly queue: string;
  readonly state: string;
}

/** How many messages are done first, and the share of them that must be settled before the others follow. */
export interface First {
  readonly messages: number;
  readonly share?: number;
}

/** The error groups of a selection. */
export interface Groups {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly version?: number;
  readonly at?: string;
  readonly messages: number;
  readonly groups: readonly ErrorGroup[];
  readonly more?: number;
}

/** Something that has happened to a message. */
export interface HistoryEvent {
  readonly at: string;
  readonly type: string;
  readonly details: Readonly<Record<string, string>>;
  readonly links?: Links | null;
  readonly event?: string;
  readonly lookup_id?: number | null;
  readonly abort_count?: number;
  readonly move_count?: number;
}

/** The last failure of a message. */
export interface LastError {
  readonly kind?: string | null;
  readonly type?: string | null;
  readonly message?: string | null;
  readonly fingerprint?: string | null;
  readonly trace?: string | null;
}

/** Where Airflow shows the run and the log of the task that has acted. */
export interface Links {
  readonly dag_run: string | null;
  readonly task_log: string | null;
}

/** One message with all that has happened to it; ``masked`` are the paths of what is hidden. */
export interface MessageAnswer {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly message: WholeMessage;
  readonly original: Body | null;
  readonly masked?: readonly string[];
  readonly history: readonly HistoryEvent[];
}

/** A message without its body. */
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
  readonly enqueued_at: string | null;
  readonly expires_at: string | null;
  readonly due_at: string | null;
  readonly last_error: LastError | null;
  readonly reason: string | null;
  readonly edited?: boolean;
}

/** A page of messages. */
export interface Messages {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly sub_queue?: SubQueue | null;
  readonly messages: readonly MessageRow[];
  readonly total: number;
  readonly version: number;
  readonly more?: number;
}

/** What is to become of a recorded plan. */
export interface OfPlan {
  readonly queue: string;
  readonly reason?: string;
  readonly plan: string;
}

/** What every change of a queue says. */
export interface OnQueue {
  readonly queue: string;
  readonly reason?: string;
}

/** A conversation with the handle of its other side. */
export interface OneConversation {
  readonly handle: string;
  readonly conversation_id: string;
  readonly group_id: string;
  readonly is_initiator: boolean;
  readonly service: string;
  readonly far_service: string;
  readonly contract: string;
  readonly state: string;
  readonly priority: number;
  readonly lifetime: string | null;
  readonly dialog_timer: string | null;
  readonly sent: number;
  readonly waiting: Readonly<Record<string, number>>;
  readonly failures: number;
  readonly error: DialogError | null;
  readonly began_at: string | null;
  readonly cleaned?: boolean;
  readonly far_handle: string;
}

/** What a handler needs is away. */
export interface Outage {
  readonly since: string;
  readonly next_probe_at: string;
  readonly fingerprint?: string;
}

/** A plan; ``planned`` and without an id while it is not recorded. */
export interface Plan {
  readonly queue: string;
  readonly plan: string;
  readonly version: number;
  readonly action: Action;
  readonly selection: Selection;
  readonly at: string;
  readonly messages: number;
  readonly claimed: number;
  readonly groups: readonly PlannedGroup[];
  readonly samples: readonly Sample[];
  readonly state: PlanState | "planned";
  readonly done: number;
  readonly skipped: number;
  readonly who: string;
  readonly reason: string;
  readonly rate: number | null;
  readonly chunk: number | null;
  readonly canary: Canary | null;
  readonly canary_seen?: CanarySeen | null;
  readonly undoable: boolean;
  readonly export_to?: string;
  readonly unfit?: readonly UnfitMessage[];
  readonly error?: string;
  readonly queue_id?: string;
  readonly server?: PlanServer | null;
}

/** What this server does with a plan. */
export interface PlanServer {
  readonly state: "" | "running" | "waiting" | "later";
  readonly before: number;
  readonly error: string;
}

export type PlanState = "running" | "paused" | "canary" | "stopped" | "done" | "cancelled" | "undoing" | "undone" | "failed";

/** A selection of a queue's messages, and what is to become of them. */
export interface Planned {
  readonly queue: string;
  readonly selection: Selection;
  readonly action: ActionRequest;
  readonly limit?: number | null;
}

/** Messages of a plan that failed alike. */
export interface PlannedGroup {
  readonly error: string;
  readonly type: string;
  readonly text: string;
  readonly messages: number;
}

/** The recorded plans of a queue. */
export interface Plans {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly plans: readonly Plan[];
}

/** One queue; in the overview with what it needs, on its own page with its conversations. */
export interface Queue {
  readonly conn_id?: string;
  readonly queue: string;
  readonly version?: number;
  readonly at: string;
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
  readonly counters?: Readonly<Record<string, number>>;
  readonly sub_queues: Readonly<Record<SubQueue, Depth>>;
  readonly outbox?: number;
  readonly unsent?: number;
  readonly oldest_enqueued_at: string | null;
  readonly next_due_at: string | null;
  readonly claims: readonly Claim[];
  readonly expired_claims: number;
  readonly sources: readonly Source[];
  readonly needs?: readonly QueueNeed[];
  readonly trend?: Trend | null;
  readonly has_conversations?: boolean;
  readonly conversations?: number | null;
}

/** Something that has happened. */
export interface QueueEvent {
  readonly at: string;
  readonly event: string;
  readonly lookup_id: number | null;
  readonly abort_count: number;
  readonly move_count: number;
  readonly details: Readonly<Record<string, string>>;
  readonly links?: Links | null;
}

/** What in a queue needs a person. */
export interface QueueNeed {
  readonly kind: "halted" | "outage" | "plan" | "poison_growing" | "poison" | "overdue" | "expired_claim" | "plan_at_work";
  readonly text: string;
  readonly plan?: string;
}

/** All queues of a connection. */
export interface Queues {
  readonly conn_id?: string;
  readonly at: string;
  readonly exists: boolean;
  readonly queues: readonly Queue[];
  readonly unreadable: readonly string[];
  readonly totals: Totals;
}

/** What a user may do. */
export interface Rights {
  readonly read: boolean;
  readonly act: boolean;
  readonly unmask: boolean;
}

/** A message of a plan. :param before: of an edit, the beginning of the body; ``after``: what it becomes. ``unfit``: why it cannot be edited. */
export interface Sample {
  readonly lookup_id: number;
  readonly sub_queue: string;
  readonly reason: string;
  readonly before?: string | null;
  readonly after?: string | null;
  readonly unfit?: string;
}

/** Some messages of a selection. */
export interface Samples {
  readonly conn_id?: string;
  readonly queue?: string;
  readonly version?: number;
  readonly samples: readonly WholeMessage[];
  readonly total: number;
}

/** Which messages are meant. */
export interface Selection {
  readonly sub_queue?: SubQueue | null;
  readonly error?: string;
  readonly error_type?: string;
  readonly text?: string;
  readonly since?: string;
  readonly until?: string;
  readonly counts?: readonly string[];
  readonly group?: string;
  readonly message_type?: string;
  readonly message_id?: string;
  readonly properties?: Readonly<Record<string, string>>;
  readonly lookup_ids?: readonly number[];
  readonly where?: string;
}

/** How far a source was taken. */
export interface Source {
  readonly source: string;
  readonly kind: string;
  readonly position: string;
  readonly at?: Readonly<Record<string, unknown>>;
  readonly taken_at: string;
  readonly messages: number;
  readonly malformed: number;
}

export type SubQueue = "main" | "retry" | "poison" | "postponed" | "transmission";

/** How much there is in all queues together. */
export interface Totals {
  readonly queues: number;
  readonly halted: number;
  readonly outages: number;
  readonly messages: Readonly<Record<SubQueue, number>>;
}

/** The last hours of a queue, the oldest first. */
export interface Trend {
  readonly hours: number;
  readonly poison: readonly number[];
  readonly settled: readonly number[];
}

/** A message of a plan that stays as it is. :param why: empty where more messages stay than reasons are recorded. */
export interface UnfitMessage {
  readonly lookup_id: number;
  readonly why: string;
}

/** A message with the beginning of its body. */
export interface WholeMessage {
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
  readonly enqueued_at: string | null;
  readonly expires_at: string | null;
  readonly due_at: string | null;
  readonly last_error: LastError | null;
  readonly reason: string | null;
  readonly edited?: boolean;
  readonly body: string;
  readonly body_encoding: string;
  readonly body_bytes: number;
  readonly body_cut: boolean;
}

/** The bodies of requests that act, by their paths. */
export interface Requests {
  readonly apply: Applied;
  readonly cancel: OfPlan;
  readonly decide: Answer;
  readonly disable: OnQueue;
  readonly enable: OnQueue;
  readonly pause: OfPlan;
  readonly plan: Planned;
  readonly resume: OfPlan;
  readonly undo: OfPlan;
}
