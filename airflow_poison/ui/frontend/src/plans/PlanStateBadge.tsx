import { Badge } from "@chakra-ui/react";

import type { PlanState } from "../api/plans";

const COLORS: Readonly<Record<PlanState, string>> = {
  planned: "gray",
  running: "blue",
  canary: "blue",
  paused: "orange",
  stopped: "red",
  done: "green",
  cancelled: "gray",
  undoing: "blue",
  undone: "gray",
  failed: "red",
};
const WORDS: Partial<Record<PlanState, string>> = { stopped: "stopped by its canary" };

/** How far a plan has come. */
export function PlanStateBadge({ state }: { readonly state: PlanState }) {
  return (
    <Badge colorPalette={COLORS[state]} variant="surface">
      {WORDS[state] ?? state}
    </Badge>
  );
}
