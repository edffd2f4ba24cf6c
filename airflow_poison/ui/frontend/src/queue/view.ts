/** Which view of a queue an address asks for. */

import { SUB_QUEUES, type SubQueue } from "../api/types";
import { EVERYWHERE } from "../lib/selection";

export type View =
  | { readonly kind: "messages"; readonly place: SubQueue | null }
  | { readonly kind: "groups"; readonly place: SubQueue | null }
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
    case "groups":
      return { kind: "groups", place: placeOf(query, "poison") };
    default:
      return { kind: "messages", place: placeOf(query, "main") };
  }
}

/** The sub-queue of an address; null is everywhere. */
function placeOf(query: URLSearchParams, other: SubQueue): SubQueue | null {
  const wanted = query.get("sub_queue");
  return wanted === EVERYWHERE ? null : (SUB_QUEUES.find((name) => name === wanted) ?? other);
}
