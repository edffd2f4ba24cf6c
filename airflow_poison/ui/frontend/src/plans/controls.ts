/** What people can do with a recorded plan. */

import type { Plan } from "../api/plans";

export type Control = "pause" | "resume" | "cancel" | "undo";

export const CONTROLS: Readonly<Record<Control, { readonly name: string; readonly what: string }>> = {
  pause: { name: "Pause", what: "Nothing more happens until it is resumed. A chunk whose commit is being made is the last one." },
  resume: { name: "Resume", what: "It goes on where it was." },
  cancel: { name: "Cancel the plan", what: "It ends. What it has done stays done, until somebody undoes it." },
  undo: { name: "Undo", what: "What has not been received since comes back as it was. A plan that is under way ends first." },
};

/** Whether a plan is under way, and nobody in this server goes on with it. */
export function isLeft({ state, server }: Plan): boolean {
  return ["running", "canary", "undoing"].includes(state) && server?.state === "";
}

export function controlsOf(plan: Plan): Control[] {
  const { state, undoable, done } = plan;
  const undo: Control[] = undoable && done > 0 ? ["undo"] : [];
  switch (state) {
    case "running":
    case "canary":
      return isLeft(plan) ? ["resume", "pause", "cancel"] : ["pause", "cancel"];
    case "paused":
    case "stopped":
    case "failed":
      return ["resume", "cancel", ...undo];
    case "done":
    case "cancelled":
      return undo;
    case "undoing":
      return ["undo"];
    case "planned":
    case "undone":
      return [];
  }
}
