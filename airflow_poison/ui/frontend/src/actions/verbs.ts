/** What can be done with messages, in words. A redrive puts back with a canary. */

import type { Action, Verb } from "../api/plans";
import type { SubQueue } from "../api/types";

export type Deed = Verb | "redrive";

interface Words {
  readonly name: string;
  readonly what: string;
  readonly danger?: boolean;
}

export const DEEDS: Readonly<Record<Deed, Words>> = {
  redrive: { name: "Redrive", what: "Some messages go back to main first. The others follow when enough of these have been settled." },
  put_back: { name: "Put back", what: "The messages go back to main for one more cycle." },
  move: { name: "Move", what: "The messages go to another sub-queue of this queue." },
  send_to: { name: "Send to", what: "The messages are sent to another queue and leave this one. This cannot be undone." },
  edit: { name: "Edit", what: "The bodies or properties of the messages change. The original stays with each message." },
  remove: { name: "Remove", what: "The messages leave the queue. Undo brings them back.", danger: true },
};

const PLACES: Readonly<Record<Deed, readonly SubQueue[]>> = {
  redrive: ["poison"],
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
  return deed === "redrive" ? "put_back" : deed;
}

/** An action as a sentence's beginning: `Move to poison`. */
export function actionInWords({ verb, target, patch, body, function: code, properties }: Action): string {
  const { name } = DEEDS[verb];
  if (verb === "send_to") return target ? `${name} ${target}` : "Send to where each came from";
  if (verb === "move") return `${name} to ${target ?? ""}`;
  if (verb !== "edit") return name;
  const means = patch ? "a merge patch" : typeof body === "string" ? "a new body" : (code ?? "");
  return [name, means && `with ${means}`, properties && Object.keys(properties).length ? "properties" : ""].filter(Boolean).join(" ");
}
