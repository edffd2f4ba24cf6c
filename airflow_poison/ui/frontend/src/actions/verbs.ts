/** What can be done with messages, in words. A redrive puts back with a canary; `edit_redrive` and `edit_put_back` edit in the same plan. */

import type { Action, Verb } from "../api/plans";
import type { SubQueue } from "../api/types";

export type Deed = Verb | "redrive" | "edit_redrive" | "edit_put_back";

interface Words {
  readonly name: string;
  readonly what: string;
  readonly danger?: boolean;
}

export const DEEDS: Readonly<Record<Deed, Words>> = {
  redrive: { name: "Redrive", what: "Some messages go back to main first. The others follow when enough of these have been settled." },
  edit_redrive: { name: "Edit and redrive", what: "The messages change and go back to main in one step, some of them first. The original stays with each message." },
  edit_put_back: { name: "Edit and put back", what: "The message changes and goes back to main in one step. The original stays with it." },
  put_back: { name: "Put back", what: "The messages go back to main for one more cycle." },
  move: { name: "Move", what: "The messages go to another sub-queue of this queue." },
  send_to: { name: "Send to", what: "The messages are sent to another queue and leave this one. This cannot be undone." },
  edit: { name: "Edit", what: "The bodies or properties of the messages change. The original stays with each message." },
  remove: { name: "Remove", what: "The messages leave the queue. Undo brings them back.", danger: true },
};

/** What is done with many messages, the most frequent first. */
export const OF_MANY: readonly Deed[] = ["redrive", "edit_redrive", "edit", "put_back", "move", "send_to", "remove"];

const PLACES: Readonly<Record<Deed, readonly SubQueue[]>> = {
  redrive: ["poison"],
  edit_redrive: ["retry", "poison"],
  edit_put_back: ["retry", "poison"],
  put_back: ["poison"],
  move: ["main", "retry", "poison", "postponed"],
  send_to: ["main", "retry", "poison", "postponed"],
  edit: ["main", "retry", "poison", "postponed"],
  remove: ["main", "retry", "poison", "postponed", "transmission"],
};

/** Whether something can be done to messages of a sub-queue; null is everywhere, where it is done to those that it can be done to. */
export function fits(deed: Deed, place: SubQueue | null | undefined): boolean {
  return place === null || PLACES[deed].includes(place ?? "poison");
}

export function verbOf(deed: Deed): Verb {
  return deed === "redrive" ? "put_back" : deed === "edit_redrive" || deed === "edit_put_back" ? "edit" : deed;
}

/** Whether a canary goes first. */
export function redrives(deed: Deed): boolean {
  return deed === "redrive" || deed === "edit_redrive";
}

/** An action as a sentence's beginning: `Move to poison`. */
export function actionInWords({ verb, target, patch, body, function: code, properties }: Action): string {
  const { name } = DEEDS[verb === "edit" && target ? "edit_put_back" : verb];
  if (verb === "send_to") return target ? `${name} ${target}` : "Send to where each came from";
  if (verb === "move") return `${name} to ${target ?? ""}`;
  if (verb !== "edit") return name;
  const means = patch ? "a merge patch" : typeof body === "string" ? "a new body" : (code ?? "");
  return [name, means && `with ${means}`, properties && Object.keys(properties).length ? "properties" : ""].filter(Boolean).join(" ");
}
