/** The states of a conversation's side, as the manual names them. */

interface State {
  readonly word: string;
  readonly meaning: string;
  readonly color: string;
}

const STATES: Readonly<Record<string, State>> = {
  SO: { word: "started outbound", meaning: "begun here, nothing sent yet", color: "green" },
  SI: { word: "started inbound", meaning: "begun by the partner, nothing received yet", color: "green" },
  CO: { word: "conversing", meaning: "both sides may send", color: "green" },
  DI: { word: "disconnected inbound", meaning: "the partner has ended it", color: "gray" },
  DO: { word: "disconnected outbound", meaning: "this side has ended it, the partner has not yet", color: "gray" },
  ER: { word: "error", meaning: "an Error message has arrived", color: "red" },
  CD: { word: "closed", meaning: "over", color: "gray" },
};

export function stateOf(state: string): State {
  return STATES[state] ?? { word: "unknown", meaning: "", color: "gray" };
}

/** Whether the partner of a side in this state is told when it is ended with an error. */
export function tellsPartner(state: string): boolean {
  return state === "SI" || state === "CO";
}
