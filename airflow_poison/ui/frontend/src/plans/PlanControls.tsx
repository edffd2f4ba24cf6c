import { Button, HStack } from "@chakra-ui/react";
import { useState } from "react";

import { act } from "../api/client";
import type { Plan } from "../api/plans";
import { ReasonDialog } from "../actions/ReasonDialog";
import { usePage } from "../page/PageContext";

import { controlsOf, CONTROLS, type Control } from "./controls";

/** What can be done with a plan in its state, by those who may act. */
export function PlanControls({ plan }: { readonly plan: Plan }) {
  const { connId, rights } = usePage();
  const [control, setControl] = useState<Control | null>(null);
  if (!rights.act) return null;
  return (
    <HStack wrap="wrap" role="group" aria-label="Actions of the plan">
      {controlsOf(plan).map((each) => (
        <Button
          key={each}
          size="xs"
          variant="outline"
          aria-haspopup="dialog"
          onClick={() => {
            setControl(each);
          }}
        >
          {`${nameOf(each, plan)} …`}
        </Button>
      ))}
      {control === null ? null : (
        <ReasonDialog
          title={`${nameOf(control, plan)} plan ${plan.plan}`}
          confirm={nameOf(control, plan)}
          danger={control === "undo" || control === "cancel"}
          onClose={() => {
            setControl(null);
          }}
          run={(reason) => act(control, connId, { queue: plan.queue, plan: plan.plan, reason })}
        >
          {CONTROLS[control].what}
        </ReasonDialog>
      )}
    </HStack>
  );
}

function nameOf(control: Control, { state }: Plan): string {
  if (control === "resume" && state === "stopped") return "Go on without the canary";
  return control === "undo" && state === "undoing" ? "Go on undoing" : CONTROLS[control].name;
}
