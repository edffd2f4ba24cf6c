/** How a queue is, in one word. An outage is no state of the server's, but nobody who sees it may think that all is well. */

import type { Queue } from "../api/types";

export function stateOf({ state, poison_state: poison, outage, poison_outage: poisonOutage, blocked_until: blocked }: Queue): string {
  if (state !== "enabled") return state;
  if (outage) return "outage";
  if (blocked) return "blocked";
  if (poison !== "enabled") return `poison: ${poison}`;
  return poisonOutage ? "poison: outage" : "enabled";
}

/** How many messages became poison in the last day; null as long as it is not counted. */
export function newPoison({ trend }: Queue): number | null {
  return trend ? trend.poison.reduce((sum, number) => sum + number, 0) : null;
}
