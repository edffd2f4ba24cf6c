import { Button, Dialog, Stack } from "@chakra-ui/react";
import { useState, type ReactNode } from "react";

import { usePage } from "../page/PageContext";
import { Modal } from "../parts/Modal";
import { Note } from "../parts/Note";

import { ReasonField } from "./ReasonField";
import { useAct } from "./useAct";

interface Props {
  readonly title: string;
  readonly confirm: string;
  readonly danger?: boolean;
  readonly run: (reason: string) => Promise<unknown>;
  readonly onClose: () => void;
  readonly children: ReactNode;
}

/** Ask for a confirmation and a reason, then act and read the page again. */
export function ReasonDialog({ title, confirm, danger = false, run, onClose, children }: Props) {
  const { refresh } = usePage();
  const [reason, setReason] = useState("");
  const acting = useAct();
  const submit = () => {
    void acting.run(async () => {
      await run(reason.trim());
      refresh();
      onClose();
    });
  };
  return (
    <Modal
      title={title}
      onClose={onClose}
      busy={acting.busy}
      typed={reason.trim() !== ""}
      footer={
        <>
          <Dialog.ActionTrigger asChild>
            <Button size="sm" variant="outline" disabled={acting.busy}>
              Back
            </Button>
          </Dialog.ActionTrigger>
          <Button size="sm" colorPalette={danger ? "red" : "blue"} loading={acting.busy} onClick={submit}>
            {confirm}
          </Button>
        </>
      }
    >
      <Stack gap="3">
        {acting.error === null ? null : <Note status="error">{acting.error}</Note>}
        <div>{children}</div>
        <ReasonField reason={reason} onChange={setReason} />
      </Stack>
    </Modal>
  );
}
