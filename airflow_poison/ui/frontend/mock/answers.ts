/** Made-up answers of the page's server: they follow the contract, and remember what was done. */

import type { Plan, PlanState, Selection } from "../src/api/plans";
import type { Decision, Queue, Rights } from "../src/api/types";

import { ago, BIG, BODY, conversation, events, groups, HOSTILE, message, NOW, QUESTION, queues } from "./data.ts";

interface Answer {
  readonly status: number;
  readonly body: unknown;
}

type Fields = Readonly<Record<string, unknown>>;

const HANDLE = "8912277c-5f5b-5852-9cee-f41f30afa462";
const ok = (body: unknown): Answer => ({ status: 200, body });
const refused = (status: number, detail: string): Answer => ({ status, body: { detail } });

export class Mock {
  rights: Rights = { read: true, act: true, unmask: true };
  queues: Queue[] = queues();
  exists = true;
  unreadable: string[] = [];
  decisions: Decision[] = [
    {
      dag_id: "arrivals",
      run_id: "manual__1",
      task_id: "ask",
      map_index: -1,
      queue: "warehouse",
      subject: "Queue warehouse is disabled by message 1. What shall be done?",
      body: QUESTION,
      options: ["Remove message 1 and enable", "Enable, leave message 1 as it is", "Leave it disabled"],
      at: ago(900),
      may_answer: true,
      url: "/dags/arrivals/runs/manual__1/tasks/ask/required_actions",
    },
  ];
  plans: Plan[] = [this.plan({ plan: "p-old", state: "done", done: 4_100, messages: 4_100, who: "airflow:ann", reason: "carrier is back" })];
  edited = false;
  /** After so many looks at a queue it is enabled. */
  enablesIn = 0;
  /** At most so many messages are in an answer, whatever their number. */
  mostRows = Infinity;
  asked: { readonly method: string; readonly name: string; readonly query: URLSearchParams; readonly body: unknown }[] = [];
  /** Answers that are given instead, by name. */
  instead = new Map<string, Answer>();

  answer(method: string, name: string, query: URLSearchParams, body: unknown): Answer {
    this.asked.push({ method, name, query, body });
    const other = this.instead.get(name);
    if (other) return other;
    return method === "POST" ? this.post(name, body as Fields) : this.get(name, query);
  }

  private get(name: string, query: URLSearchParams): Answer {
    const wanted = query.get("queue") ?? "";
    const found = this.queues.find(({ queue }) => queue === wanted);
    if (name === "queues") return ok(this.overview());
    if (name === "rights") return ok(this.rights);
    if (name === "decisions") return ok({ decisions: this.decisions.filter(({ queue }) => wanted === "" || queue === wanted) });
    if (!found) return refused(404, `There is no queue '${wanted}' in the store of connection '${query.get("conn_id") ?? ""}'.`);
    switch (name) {
      case "queue":
        if (this.enablesIn > 0 && !--this.enablesIn) this.post("enable", { queue: wanted, reason: "" });
        return ok(this.queues.find(({ queue }) => queue === wanted));
      case "messages":
        return this.messages(query, found);
      case "samples":
        return this.samples(query);
      case "message":
        return this.message(Number(query.get("lookup_id")), query.get("unmask") === "true");
      case "groups":
        return ok({ queue: wanted, version: 412, at: NOW.toISOString(), messages: BIG, groups: found.sub_queues.poison.messages > 1 ? groups() : [] });
      case "events":
        return ok({ events: events(), earlier: 12 });
      case "plans":
        return ok({ plans: this.plans });
      case "plan":
        return this.progress(query.get("plan") ?? "");
      case "conversations":
        return ok({ at: NOW.toISOString(), conversations: [conversation(HANDLE), conversation("other", { state: "CO", failures: 0 })], more: 0 });
      case "conversation":
        return this.conversation(query.get("handle") ?? "");
      default:
        return refused(404, "Not Found");
    }
  }

  private overview() {
    const sum = (place: "main" | "retry" | "poison" | "postponed" | "transmission") =>
      this.queues.reduce((total, { sub_queues: depths }) => total + depths[place].messages, 0);
    return {
      at: NOW.toISOString(),
      exists: this.exists,
      queues: this.queues,
      unreadable: this.unreadable,
      totals: {
        queues: this.queues.length,
        halted: this.queues.filter(({ halted }) => halted).length,
        outages: this.queues.filter(({ outage }) => outage).length,
        messages: { main: sum("main"), retry: sum("retry"), poison: sum("poison"), postponed: sum("postponed"), transmission: sum("transmission") },
      },
    };
  }

  private messages(query: URLSearchParams, { sub_queues: depths }: Queue): Answer {
    const selection = JSON.parse(query.get("selection") ?? "{}") as Selection;
    if (selection.where?.includes("carier")) return refused(400, "where: there is no column or field 'carier'; expected a condition on columns or body.…");
    const place = selection.sub_queue === null ? "poison" : (selection.sub_queue ?? "poison");
    const group = groups().find(({ error }) => error === selection.error);
    const total = selection.text === "nothing" ? 0 : (group?.messages ?? depths[place].messages);
    const [offset, limit] = [Number(query.get("offset")), Number(query.get("limit"))];
    const rows = Array.from({ length: Math.max(0, Math.min(limit, total - offset, this.mostRows)) }, (_, place_) => message(offset + place_ + 1, place));
    return ok({ messages: query.get("desc") === "true" ? rows.reverse() : rows, total, version: 412 });
  }

  private samples(query: URLSearchParams): Answer {
    const selection = JSON.parse(query.get("selection") ?? "{}") as Selection;
    const group = groups().findIndex(({ error }) => error === selection.error);
    const ids = Array.from({ length: group < 0 ? 0 : 10 }, (_, number) => group + 6 * number);
    return ok({ samples: ids.map((id) => (this.message(id).body as { message: unknown }).message), total: groups()[group]?.messages ?? 0 });
  }

  private message(id: number, unmask = false): Answer {
    if (id === 99) return refused(404, "Message 99 is not in queue 'orders': it was settled, moved or removed, or never sent. Its events may say which.");
    const row = message(id);
    const text = id === 2 ? "<order><id>7</id><note>Größe</note></order>" : id === 3 ? `${HOSTILE}\\x1b]0;owned` : BODY;
    const body = id === 4 ? btoa("\u0000\u00ff bytes") : text;
    const bytes = id === 4 ? 8 : id === 3 ? text.length - 3 : new TextEncoder().encode(text).length;
    return ok({
      queue: "orders",
      message: {
        ...row,
        ...(id === 5 ? { properties: { "poison.dialog": "1" }, conversation_id: HANDLE } : {}),
        body: id === 7 ? body.replace("75", unmask ? '75,"card":"4111"' : '75,"card":"***"') : body,
        body_encoding: id === 4 ? "base64" : "text",
        body_bytes: bytes,
        body_cut: false,
      },
      original: this.edited || id === 6 ? { body: BODY.replace("75", "15"), body_encoding: "text" } : null,
      masked: id === 7 && !unmask ? ["$.card"] : [],
      history: [
        { at: ago(86_000), type: "MOVED_RETRY", details: { run: "scheduled__1" }, links: { dag_run: "dags/arrivals/runs/scheduled__1", task_log: "dags/arrivals/runs/scheduled__1/tasks/receive" } },
        { at: ago(7_000), type: "MOVED_POISON", details: { error: `ValueError: ${HOSTILE}` }, links: { dag_run: "javascript:alert(1)", task_log: null } },
        { at: ago(600), type: "EDITED", details: { who: "airflow:ann", why: "dep_delay was wrong", plan: "p-old" }, links: { dag_run: null, task_log: null } },
      ],
    });
  }

  private conversation(handle: string): Answer {
    if (handle === "nowhere") return refused(404, "Queue 'warehouse' has no conversation 'nowhere': nothing of it was received.");
    return ok({
      at: NOW.toISOString(),
      conversation: { ...conversation(handle), far_handle: "0a668759" },
      far_queue: { queue: "orders", state: "disabled" },
      messages: [message(1, "main"), message(2, "main")],
      more: 0,
      unsent: { "//Shop/Order": 1 },
      halts: true,
      ended_by: `airflow poison end-conversation warehouse ${handle} --error 127 --description 'Unable to process message.' --enable`,
    });
  }

  private post(name: string, body: Fields): Answer {
    if (!this.rights.act) return refused(403, "To act on the queues of this connection, you need Airflow's rights to create asset events and to edit it.");
    switch (name) {
      case "plan":
        return ok(this.plan(body));
      case "apply":
        return this.apply(body);
      case "pause":
        return this.turn(body, "paused");
      case "resume":
        return this.turn(body, "running");
      case "cancel":
        return this.turn(body, "cancelled");
      case "undo":
        return this.turn(body, "undone");
      case "enable":
      case "disable":
        this.queues = this.queues.map((each) => (each.queue === body["queue"] ? { ...each, state: `${name}d`, reason: String(body["reason"]), halted: name === "disable", halted_by: null } : each));
        return ok({});
      case "decide":
        this.decisions = [];
        this.enablesIn = 3; // the task has to go on first
        return ok({});
      default:
        return refused(404, "Not Found");
    }
  }

  private plan(fields: Fields): Plan {
    const selection = (fields["selection"] ?? { sub_queue: "poison" }) as Selection;
    const action = (fields["action"] ?? { verb: "put_back" }) as Plan["action"];
    const chosen = selection.lookup_ids?.length ?? groups().find(({ error }) => error === selection.error)?.messages ?? BIG;
    const edits = action.verb === "edit";
    return {
      queue: "orders",
      plan: "",
      version: 412,
      at: NOW.toISOString(),
      messages: Math.min(chosen, Number(fields["limit"] ?? chosen)),
      claimed: chosen > 1_000 ? 120 : 0,
      groups: groups().slice(0, chosen > 1_000 ? 4 : 1),
      samples: (selection.lookup_ids ?? [1, 2]).slice(0, 10).map((id) => ({
        lookup_id: id,
        sub_queue: "poison",
        reason: message(id).reason ?? "",
        before: edits ? BODY : null,
        after: edits ? BODY.replace("75", "15") : null,
      })),
      state: "planned",
      done: 0,
      skipped: 0,
      who: "",
      reason: "",
      rate: null,
      chunk: null,
      canary: null,
      undoable: action.verb !== "send_to",
      queue_id: "id of orders",
      ...fields,
      action,
      selection,
    };
  }

  private apply(body: Fields): Answer {
    const plan: Plan = { ...this.plan(body), plan: `p-${this.plans.length}`, state: body["canary"] ? "canary" : "running", who: "airflow:ann" };
    this.plans = [plan, ...this.plans];
    return ok(plan);
  }

  /** A running plan has done a part more at each look. */
  private progress(id: string): Answer {
    this.plans = this.plans.map((plan) => {
      if (plan.plan !== id || (plan.state !== "running" && plan.state !== "canary")) return plan;
      const seen = plan.canary_seen;
      if (plan.state === "canary" && plan.canary && (seen?.settled ?? 0) < plan.canary.share * plan.canary.messages) {
        const settled = (seen?.settled ?? -32) + 32;
        const failed = settled ? 2 : 0;
        return { ...plan, done: plan.canary.messages, canary_seen: { settled, failed, waiting: plan.canary.messages - settled - failed, errors: failed ? plan.groups.slice(1, 2).map((each) => ({ ...each, messages: failed })) : [] } };
      }
      const done = Math.min(plan.messages, plan.done + Math.ceil(plan.messages / 12));
      return { ...plan, done, canary_seen: null, state: done === plan.messages ? "done" : "running" };
    });
    const plan = this.plans.find((each) => each.plan === id);
    return plan ? ok(plan) : refused(404, `Queue 'orders' has no plan '${id}'.`);
  }

  private turn(body: Fields, state: PlanState): Answer {
    this.plans = this.plans.map((plan) => (plan.plan === body["plan"] ? { ...plan, state } : plan));
    return ok(this.plans.find(({ plan }) => plan === body["plan"]) ?? {});
  }
}
