import { HStack } from "@chakra-ui/react";
import { useEffect } from "react";

import type { Plan } from "../api/plans";
import { questionOf } from "../api/question";
import { useAnswer } from "../api/useAnswer";
import { actionInWords } from "../actions/verbs";
import { selectionInWords } from "../lib/selection";
import { timeIn, useZone } from "../lib/zone";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { Facts } from "../parts/Facts";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";
import { Who } from "../parts/Who";

import { CanaryProgress } from "./CanaryProgress";
import { paceInWords } from "./pace";
import { PlanControls } from "./PlanControls";
import { PlanGroups } from "./PlanGroups";
import { PlanProgress } from "./PlanProgress";
import { PlanStateBadge } from "./PlanStateBadge";
import { Samples } from "./Samples";
import { ServerNote } from "./ServerNote";

const LOOK_MILLISECONDS = 2_000;

/** One plan: how far it is, who made it and why, and the buttons that pause, resume, cancel and undo it. */
export function PlanPage({ queue, id }: { readonly queue: string; readonly id: string }) {
  const zone = useZone();
  const { connId } = usePage();
  const answer = useAnswer<Plan>("plan", { queue, plan: id });
  const moves = answer.found !== undefined && ["running", "canary", "undoing"].includes(answer.found.state);
  useEffect(() => {
    if (!moves) return undefined;
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") void questionOf<Plan>("plan", { conn_id: connId, queue, plan: id }).ask();
    }, LOOK_MILLISECONDS);
    return () => {
      clearInterval(timer);
    };
  }, [moves, connId, queue, id]);
  return (
    <Section title={`Plan ${id}`}>
      <Answered answer={answer} lines={6}>
        {(plan) => (
          <>
            <HStack wrap="wrap" marginBottom="3" justify="space-between">
              <HStack>
                <PlanStateBadge state={plan.state} />
                {actionInWords(plan.action)}
              </HStack>
              <PlanControls plan={plan} />
            </HStack>
            <ServerNote plan={plan} />
            <PlanProgress plan={plan} at={answer.at} />
            {plan.canary && plan.canary_seen ? <CanaryProgress canary={plan.canary} seen={plan.canary_seen} /> : null}
            <Facts
              label="Plan"
              facts={{
                selection: selectionInWords(plan.selection, (at) => timeIn(zone, at)),
                version: plan.version,
                who: <Who who={plan.who} />,
                when: <Time at={plan.at} />,
                reason: plan.reason,
                pace: paceInWords(plan),
              }}
            />
            <Section title="What it is made of">
              <PlanGroups groups={plan.groups} />
              <Samples samples={plan.samples} />
            </Section>
          </>
        )}
      </Answered>
    </Section>
  );
}
