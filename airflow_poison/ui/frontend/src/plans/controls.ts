/** What people can do with a recorded plan. */

import type { Plan } from "../api/plans";

export type Control = "pause" | "resume" | "cancel" | "undo";

export const CONTROLS: Readonly<Record<Control, { readonly name: string; readonly what: string }>> = {
  pause: { name: "Pause", what: "Nothing more happens until it is resumed. A chunk whose commit is being made is the last one." },
  resume: { name: "Resume", what: "It goes on where it was." },
  cancel: { name: "Cancel the plan", what: "It ends. What it has done stays done, until somebody undoes it." },
  undo: { name: "Undo", what: "What has not been received since comes back as it was. A plan that is under way ends first." },
};

export function controlsOf({ state, undoable, done }: Plan): Control[] {
  const undo: Control[] = undoable && done > 0 ? ["undo"] : [];
  switch (state) {
    case "running":
    case "canary":
      return ["pause", "cancel"];
    case "paused":
    case "stopped":
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
