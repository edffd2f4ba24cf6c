import { Button, Dialog } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";
import { useNavigate } from "react-router-dom";

import { act } from "../api/client";
import type { Plan, Selection } from "../api/plans";
import type { MessageAnswer } from "../api/types";
import { isExact } from "../lib/body";
import { many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { searchOf } from "../parts/Go";
import { Modal } from "../parts/Modal";
import { Note } from "../parts/Note";
import { PlanSummary } from "../plans/PlanSummary";

import { ActionForm } from "./ActionForm";
import { emptyDraft, madeOf, type Draft, type DraftProblems, type Made } from "./draft";
import { useAct } from "./useAct";
import { DEEDS, type Deed } from "./verbs";

interface Props {
  readonly queue: string;
  readonly selection: Selection;
  readonly deed: Deed;
  readonly about: string;
  readonly one?: MessageAnswer;
  /** What is filled in already; it is planned at once. */
  readonly filled?: Draft;
  readonly onClose: () => void;
}

/** A plan from its form to its confirmation: first what would happen, then, if somebody says so, that it happens. */
export function ActionDialog({ queue, selection, deed, about, one, filled, onClose }: Props) {
  const { connId, refresh } = usePage();
  const navigate = useNavigate();
  const [first] = useState(() => filled ?? emptyDraft(deed, editable(one)));
  const [draft, setDraft] = useState(first);
  const [problems, setProblems] = useState<DraftProblems>({});
  const [planned, setPlanned] = useState<{ readonly plan: Plan; readonly made: Made } | null>(null);
  const { busy, error, run } = useAct();
  const { name, what, danger } = DEEDS[deed];
  const typed = Object.entries(draft).some(([field, value]) => value !== first[field as keyof Draft]);

  const makePlan = () => {
    const read = madeOf(draft);
    setProblems("problems" in read ? read.problems : {});
    if ("problems" in read) return;
    const { made } = read;
    void run(async () => {
      const plan = await act("plan", connId, { queue, selection, action: made.action, ...(made.limit === null ? {} : { limit: made.limit }) });
      setPlanned({ plan, made });
    });
  };
  const begun = useRef(false);
  useEffect(() => {
    if (!filled || begun.current) return;
    begun.current = true;
    makePlan();
  });
  const apply = ({ plan, made }: { readonly plan: Plan; readonly made: Made }) => {
    void run(async () => {
      const recorded = await act("apply", connId, {
        queue,
        selection,
        action: made.action,
        version: plan.version,
        queue_id: plan.queue_id ?? "",
        reason: draft.reason.trim(),
        ...(made.limit === null ? {} : { limit: made.limit }),
        ...made.pace,
      });
      refresh();
      onClose();
      void navigate({ search: searchOf({ conn_id: connId, queue, view: "plans", plan: recorded.plan }) });
    });
  };

  return (
    <Modal
      title={`${name}: ${about}`}
      onClose={onClose}
      busy={busy}
      wide
      typed={typed}
      footer={
        planned ? (
          <>
            <Button
              size="sm"
              variant="outline"
              disabled={busy}
              onClick={() => {
                setPlanned(null);
              }}
            >
              Change
            </Button>
            <Button
              size="sm"
              colorPalette={danger ? "red" : "blue"}
              loading={busy}
              disabled={planned.plan.messages === 0}
              onClick={() => {
                apply(planned);
              }}
            >
              {`${name} ${many(planned.plan.messages, "message")}`}
            </Button>
          </>
        ) : (
          <>
            <Dialog.ActionTrigger asChild>
              <Button size="sm" variant="outline" disabled={busy}>
                Cancel
              </Button>
            </Dialog.ActionTrigger>
            <Button size="sm" colorPalette="blue" loading={busy} onClick={makePlan}>
              Plan: nothing is done yet
            </Button>
          </>
        )
      }
    >
      {error === null ? null : <Note status="error">{error}</Note>}
      {planned ? (
        <PlanSummary
          plan={planned.plan}
          pace={planned.made.pace}
          reason={draft.reason}
          onReason={(reason) => {
            setDraft({ ...draft, reason });
          }}
        />
      ) : (
        <ActionForm draft={draft} onChange={setDraft} problems={problems} what={what} whole={one ? wholeBody(one) : null} />
      )}
    </Modal>
  );
}

/** The body that may be edited as a whole, or null: escapes and hidden values must not be written back. */
function editable(one: MessageAnswer | undefined): string | null {
  return one && wholeBody(one) === "" ? one.message.body : null;
}

/** Why the whole body cannot be edited here; empty when it can. */
function wholeBody({ message, masked = [] }: MessageAnswer): string {
  if (masked.length) return "Values of the body are hidden, so it cannot be written as a whole here. A merge patch leaves them as they are.";
  if (message.body_encoding === "base64") return "The body is no text, so it cannot be written here.";
  if (!isExact(message)) return "The page does not have the body byte for byte, so it cannot be written as a whole here. A merge patch can change it.";
  return "";
}
