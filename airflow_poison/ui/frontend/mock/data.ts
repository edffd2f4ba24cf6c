/** Made-up queues and messages, some of them hostile. */

import type { ConversationRow, ErrorGroup, MessageRow, Queue, QueueEvent, SubQueue } from "../src/api/types";

export const NOW = new Date();
export const HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";
export const BIG = 182_233;

export function ago(seconds: number): string {
  return new Date(NOW.getTime() - seconds * 1000).toISOString();
}

function depth(messages: number, oldest = 7_200, due: number | null = null) {
  return { messages, claimed: 0, oldest_enqueued_at: messages ? ago(oldest) : null, next_due_at: due === null ? null : ago(-due) };
}

export function queue(name: string, messages: Partial<Record<SubQueue, number>> = {}, more: Partial<Queue> = {}): Queue {
  const { main = 0, retry = 0, poison = 0, postponed = 0, transmission = 0 } = messages;
  return {
    queue: name,
    at: NOW.toISOString(),
    state: "enabled",
    reason: null,
    poison_state: "enabled",
    poison_reason: null,
    halted: false,
    halted_by: null,
    blocked_until: null,
    blocked_by: null,
    obstacle: "",
    outage: null,
    poison_outage: null,
    policy: { system: "Msmq4", receive_retry_count: 5, max_retry_cycles: 2, retry_cycle_delay: "PT30M", receive_error_handling: "Move" },
    sub_queues: {
      main: depth(main),
      retry: depth(retry, 5_000, 900),
      poison: depth(poison, 86_400),
      postponed: depth(postponed),
      transmission: depth(transmission),
    },
    oldest_enqueued_at: main + retry + poison ? ago(86_400) : null,
    next_due_at: retry ? ago(-900) : null,
    claims: [],
    expired_claims: 0,
    sources: [],
    needs: [],
    trend: { hours: 24, poison: trendOf(poison, name.length), settled: trendOf(main * 3 + 40, name.length + 3) },
    has_conversations: false,
    conversations: 0,
    ...more,
  };
}

export function trendOf(number: number, seed: number): number[] {
  return Array.from({ length: 24 }, (_, hour) => Math.round((number / 24) * (1 + Math.sin(hour * 0.7 + seed))));
}

export function queues(): Queue[] {
  const many = Array.from({ length: 96 }, (_, number) => queue(`feed-${String(number).padStart(2, "0")}`, { main: number % 7 }));
  return [
    queue(
      "orders",
      { main: 1_204, retry: 412, poison: BIG },
      { needs: [{ kind: "poison_growing", text: "182,233 poison messages, 182,000 more than an hour ago." }, { kind: "plan_at_work", text: "Plan p-9 is under way.", plan: "p-9" }], has_conversations: false },
    ),
    queue(
      "warehouse",
      { main: 2, poison: 1 },
      {
        state: "disabled",
        reason: `Message 1 was rolled back 5 times: ${HOSTILE}`,
        halted: true,
        halted_by: 1,
        policy: { system: "ServiceBroker" },
        needs: [{ kind: "halted", text: "disabled: Message 1 was rolled back 5 times." }, { kind: "poison", text: "1 poison message." }],
        has_conversations: true,
        conversations: 2,
      },
    ),
    queue(
      "payments",
      { main: 90, retry: 3 },
      {
        outage: { since: ago(1_800), next_probe_at: ago(-60) },
        needs: [
          { kind: "outage", text: `What its handler needs is away since ${ago(1_800)}.` },
          { kind: "expired_claim", text: "A pass has died; its 500 messages wait." },
        ],
        claims: [{ key: "a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4e5f6a1b2", sub_queue: "main", messages: 500, expires_at: ago(600), expired: true }],
        expired_claims: 1,
        sources: [
          { source: "/landing/*.json", kind: "Files", position: "1,204 files were taken", taken_at: ago(60), messages: 41_027, malformed: 3 },
        ],
      },
    ),
    queue(HOSTILE, { retry: 4 }, { needs: [{ kind: "overdue", text: "4 messages have been due for 2 h: nothing returns them." }] }),
    ...many,
  ];
}

const KINDS: readonly (readonly [string, string, number])[] = [
  ["KeyError", "'carrier'", 120_000],
  ["ValueError", "could not convert string to float: 'NA'", 41_000],
  ["TimeoutError", "the registry of planes did not answer within 30 s", 12_000],
  ["ValueError", `refused: ${HOSTILE}`, 8_000],
  ["UnicodeDecodeError", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte", 1_200],
  ["ZeroDivisionError", "division by zero", 33],
];

export function groups(): ErrorGroup[] {
  return KINDS.map(([type, text, messages], place) => ({
    error: `${place}b12c34d56e7`.padEnd(12, "0").slice(0, 12),
    kind: "exception",
    type,
    text,
    messages,
    share: messages / BIG,
    first_seen: ago(place < 4 ? 400_000 : 3_600 * place),
    last_seen: ago(60 * (place + 1)),
    sample: place + 1,
    trend: trendOf(messages, place),
    new: place >= 4,
  }));
}

export function message(id: number, place: SubQueue = "poison"): MessageRow {
  const group = groups()[id % KINDS.length];
  const failed = place === "poison" || place === "retry";
  return {
    lookup_id: id,
    message_id: `m-${id}-9f2c1e`,
    sub_queue: place,
    abort_count: failed ? 6 : 0,
    move_count: failed ? 2 : 0,
    crash_count: id % 5 === 0 ? 1 : 0,
    priority: 5,
    group_id: `carrier-${["VX", "UA", "B6"][id % 3] ?? ""}`,
    conversation_id: null,
    message_type: "//Flights/Arrival",
    properties: { country: "US", note: HOSTILE },
    enqueued_at: ago(86_400 - id),
    expires_at: null,
    due_at: null,
    last_error:
      failed && group
        ? { kind: "exception", type: group.type, message: group.text, fingerprint: group.error, trace: `Traceback (most recent call last):\n  File "shop.py", line 7\n${group.type}: ${group.text}` }
        : null,
    reason: failed && group ? `${group.type}: ${group.text}` : null,
    edited: id === 6,
  };
}

export const BODY = `{"carrier":"VX","flight":12345678901234567890,"dep_delay":75,"note":"${"ümlaut".repeat(2)}","stops":["EWR","SFO"]}`;

export function events(): QueueEvent[] {
  return [
    { at: ago(7_000), event: "POISON_EXCEPTION", lookup_id: 1, abort_count: 6, move_count: 2, details: { error: `ValueError: ${HOSTILE}`, who: "dag:arrivals/scheduled__1/receive" }, links: { dag_run: "dags/arrivals/runs/scheduled__1", task_log: "dags/arrivals/runs/scheduled__1/tasks/receive" } },
    { at: ago(6_990), event: "MOVED_POISON", lookup_id: 1, abort_count: 6, move_count: 2, details: { place: "poison", who: "dag:arrivals/scheduled__1/receive" }, links: { dag_run: "dags/arrivals/runs/scheduled__1", task_log: "dags/arrivals/runs/scheduled__1/tasks/receive" } },
    { at: ago(600), event: "PLANNED", lookup_id: null, abort_count: 0, move_count: 0, details: { who: "airflow:ann", why: "carrier is back", plan: "p-old" } },
    { at: ago(300), event: "QUEUE_DISABLED", lookup_id: null, abort_count: 0, move_count: 0, details: { who: "shell:bob@host", why: "stocktaking" } },
  ];
}

export function conversation(handle: string, more: Partial<ConversationRow> = {}): ConversationRow {
  return {
    handle,
    conversation_id: "0a668759-281a-55ba-bc48-b0ab5cfb010b",
    group_id: handle,
    is_initiator: false,
    service: "//Warehouse",
    far_service: `//Shop${HOSTILE}`,
    contract: "//Shop/Parts",
    state: "SI",
    priority: 5,
    lifetime: ago(-604_800),
    dialog_timer: null,
    sent: 0,
    waiting: { "//Shop/Order": 2 },
    failures: 5,
    error: null,
    began_at: null,
    ...more,
  };
}

/** As `operators/question.py` writes it. */
export const QUESTION = `Queue **warehouse** is **disabled** by message 1: nothing is received from it.

\`\`\`
Message 1 was rolled back 5 times: ${HOSTILE}
\`\`\`

| | |
|---|---|
| message | 1 |
| sent | 2026-11-27 23:30:00 UTC |
| property \` note \` | \` a \\| b \` |

**Last error** \` ValueError \`

\`\`\`\`
fenced \`\`\` inside
\`\`\`\`

* **Remove message 1 and enable**: it is kept in \` warehouse;poison \`; what is behind it is received.
* **Enable, leave message 1 as it is**: it keeps its counts, and may halt the queue again.
* **Leave it disabled**: nothing is changed.`;
