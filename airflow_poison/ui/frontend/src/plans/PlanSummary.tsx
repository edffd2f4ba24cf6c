import { Stack } from "@chakra-ui/react";
import { useEffect, useRef } from "react";

import type { Plan } from "../api/plans";
import { ReasonField } from "../actions/ReasonField";
import { actionInWords } from "../actions/verbs";
import type { Made } from "../actions/draft";
import { selectionInWords } from "../lib/selection";
import { count, many } from "../lib/words";
import { timeIn, useZone } from "../lib/zone";
import { Facts } from "../parts/Facts";
import { Note } from "../parts/Note";

import { PlanGroups } from "./PlanGroups";
import { paceInWords } from "./pace";
import { Samples } from "./Samples";

interface Props {
  readonly plan: Plan;
  readonly pace: Made["pace"];
  readonly reason: string;
  readonly onReason: (reason: string) => void;
}

/** What a plan would do, before it does it: how many messages, of which groups, with samples. */
export function PlanSummary({ plan, pace, reason, onReason }: Props) {
  const zone = useZone();
  const top = useRef<HTMLDivElement>(null);
  useEffect(() => {
    top.current?.focus();
  }, []);
  const facts = {
    action: actionInWords(plan.action),
    selection: selectionInWords(plan.selection, (at) => timeIn(zone, at)),
    messages: `${count(plan.messages)} of version ${plan.version}; what arrives later is not in the plan`,
    pace: paceInWords(pace),
  };
  return (
    <Stack gap="3" ref={top} tabIndex={-1} role="group" aria-label="What would happen" outline="none">
      {plan.messages ? null : <Note status="warning">No message is in this selection.</Note>}
      <Facts label="The plan" facts={facts} />
      {plan.claimed ? <Note>{`${many(plan.claimed, "message is", "messages are")} claimed by a pass; each follows when its pass has ended, unless it has changed.`}</Note> : null}
      {plan.undoable ? null : <Note status="warning">This cannot be undone.</Note>}
      <PlanGroups groups={plan.groups} />
      <Samples samples={plan.samples} />
      <ReasonField reason={reason} onChange={onReason} />
    </Stack>
  );
}
