import { Button, HStack } from "@chakra-ui/react";
import { useState } from "react";

import { act } from "../api/client";
import type { Plan } from "../api/plans";
import { ReasonDialog } from "../actions/ReasonDialog";
import { useAct } from "../actions/useAct";
import { usePage } from "../page/PageContext";
import { Note } from "../parts/Note";

import { controlsOf, CONTROLS, type Control } from "./controls";

interface Props {
  readonly plan: Plan;
  readonly only?: readonly Control[];
}

/** What can be done with a plan in its state, by those who may act. Pausing takes one click: it is for when something goes wrong, and can be resumed. */
export function PlanControls({ plan, only }: Props) {
  const { connId, rights, refresh } = usePage();
  const [control, setControl] = useState<Control | null>(null);
  const pausing = useAct();
  if (!rights.act) return null;
  const tell = (each: Control, reason: string) => act(each, connId, { queue: plan.queue, plan: plan.plan, reason });
  const press = (each: Control) => {
    if (each !== "pause") setControl(each);
    else {
      void pausing.run(async () => {
        await tell("pause", "");
        refresh();
      });
    }
  };
  return (
    <HStack wrap="wrap" role="group" aria-label={`Actions of plan ${plan.plan}`}>
      {controlsOf(plan)
        .filter((each) => !only || only.includes(each))
        .map((each) => (
          <Button
            key={each}
            size="xs"
            variant="outline"
            loading={each === "pause" && pausing.busy}
            aria-haspopup={each === "pause" ? undefined : "dialog"}
            onClick={() => {
              press(each);
            }}
          >
            {each === "pause" ? nameOf(each, plan) : `${nameOf(each, plan)} …`}
          </Button>
        ))}
      {pausing.error === null ? null : <Note status="error">{pausing.error}</Note>}
      {control === null ? null : (
        <ReasonDialog
          title={`${nameOf(control, plan)} plan ${plan.plan}`}
          confirm={nameOf(control, plan)}
          danger={control === "undo" || control === "cancel"}
          onClose={() => {
            setControl(null);
          }}
          run={(reason) => tell(control, reason)}
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
