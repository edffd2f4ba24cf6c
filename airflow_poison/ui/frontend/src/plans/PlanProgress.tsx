import { Progress, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { Plan } from "../api/plans";
import { count, many, span } from "../lib/words";

import { leftSeconds, perSecond, type Sight } from "./speed";

/** How much of a plan is done, and when it will be. */
export function PlanProgress({ plan, at }: { readonly plan: Plan; readonly at: Date | undefined }) {
  const [first, setFirst] = useState<Sight | null>(null);
  const ended = plan.done + plan.skipped;
  const now = plan.state === "running" && at ? { at: at.getTime(), done: ended } : null;
  if (now && (first === null || first.done > ended)) setFirst(now);
  if (!now && first !== null) setFirst(null);
  const speed = now && first ? perSecond(first, now) : null;
  const left = now && first ? leftSeconds(first, now, plan.messages) : null;
  const told = [
    `${count(plan.done)} of ${many(plan.messages, "message")} done`,
    plan.skipped ? `${count(plan.skipped)} skipped: they have changed since, or an edit did not fit` : "",
    plan.claimed ? `${count(plan.claimed)} claimed by passes` : "",
    speed === null ? "" : `${count(Math.max(1, Math.round(speed)))} a second`,
    left === null ? "" : `about ${span(left)} left`,
  ];
  return (
    <Progress.Root
      value={plan.messages ? Math.min(100, (100 * ended) / plan.messages) : 100}
      colorPalette={plan.state === "stopped" || plan.state === "failed" ? "red" : "blue"}
      marginBottom="4"
      animated={plan.state === "running"}
    >
      <Progress.Track>
        <Progress.Range />
      </Progress.Track>
      <Progress.Label asChild>
        <Text fontSize="sm" color="fg.muted" role="status" fontVariantNumeric="tabular-nums" marginTop="1">
          {told.filter(Boolean).join(", ")}
        </Text>
      </Progress.Label>
    </Progress.Root>
  );
}
