/** Which view of a queue an address asks for. */

import { SUB_QUEUES, type Queue, type SubQueue } from "../api/types";
import { EVERYWHERE } from "../lib/selection";

export type View =
  | { readonly kind: "start" }
  | { readonly kind: "messages"; readonly place: SubQueue | null }
  | { readonly kind: "groups"; readonly place: SubQueue | null }
  | { readonly kind: "group"; readonly place: SubQueue | null; readonly error: string }
  | { readonly kind: "wrong"; readonly why: string }
  | { readonly kind: "message"; readonly id: string }
  | { readonly kind: "conversation"; readonly handle: string }
  | { readonly kind: "conversations"; readonly ended: boolean }
  | { readonly kind: "plan"; readonly id: string }
  | { readonly kind: "plans" | "events" | "settings" };

export function viewOf(query: URLSearchParams): View {
  const place = query.get("sub_queue") ?? EVERYWHERE;
  if (place !== EVERYWHERE && !SUB_QUEUES.some((name) => name === place)) {
    return { kind: "wrong", why: `sub_queue=“${place}” in the address is no sub-queue; expected ${SUB_QUEUES.join(", ")} or ${EVERYWHERE}.` };
  }
  const [id, handle, plan, view] = ["lookup_id", "conversation", "plan", "view"].map((name) => query.get(name));
  if (id) return { kind: "message", id };
  if (handle) return { kind: "conversation", handle };
  if (plan) return { kind: "plan", id: plan };
  switch (view) {
    case "conversations":
    case "ended":
      return { kind: "conversations", ended: view === "ended" };
    case "plans":
    case "events":
    case "settings":
      return { kind: view };
    case "group":
    case "groups":
      return { kind: view, place: placeOf(query, "poison"), error: query.get("error") ?? "" };
    default:
      return query.has("sub_queue") || query.has("selection") ? { kind: "messages", place: placeOf(query, "main") } : { kind: "start" };
  }
}

/** What a queue opens on: the message that halts it, its poison, what waits for another try, or what is to be received. */
export function startOf({ halted_by: halted, sub_queues: depths }: Queue): Exclude<View, { readonly kind: "start" }> {
  if (halted !== null) return { kind: "message", id: String(halted) };
  if (depths.poison.messages) return { kind: "messages", place: "poison" };
  return { kind: "messages", place: depths.retry.messages && !depths.main.messages ? "retry" : "main" };
}

/** A view as a part of the browser's title. */
export function titleOf(view: View): string {
  switch (view.kind) {
    case "start":
    case "wrong":
      return "";
    case "message":
      return `message ${view.id}`;
    case "conversation":
      return `conversation ${view.handle}`;
    case "conversations":
      return "conversations";
    case "plan":
      return `plan ${view.id}`;
    case "settings":
      return "policy";
    case "group":
      return `error group ${view.error}`;
    case "groups":
      return `error groups${view.place === null ? "" : ` in ${view.place}`}`;
    case "messages":
      return view.place ?? "all messages";
    default:
      return view.kind;
  }
}

/** The sub-queue of an address; null is everywhere. */
function placeOf(query: URLSearchParams, other: SubQueue): SubQueue | null {
  const wanted = query.get("sub_queue");
  return wanted === EVERYWHERE ? null : (SUB_QUEUES.find((name) => name === wanted) ?? other);
}
