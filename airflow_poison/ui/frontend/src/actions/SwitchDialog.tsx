import { act } from "../api/client";
import { usePage } from "../page/PageContext";

import { ReasonDialog } from "./ReasonDialog";

interface Props {
  readonly queue: string;
  readonly enable: boolean;
  readonly onClose: () => void;
}

/** Enable or disable a queue. */
export function SwitchDialog({ queue, enable, onClose }: Props) {
  const { connId } = usePage();
  const name = enable ? "Enable" : "Disable";
  return (
    <ReasonDialog
      title={`${name} ${queue}`}
      confirm={name}
      danger={!enable}
      onClose={onClose}
      run={(reason) => act(enable ? "enable" : "disable", connId, { queue, reason })}
    >
      {enable
        ? "The next pass receives from it again. A message that has halted it is delivered again: mend the cause first, or move it to poison."
        : "No pass receives from it until somebody enables it. A pass that is at work ends what it has begun."}
    </ReasonDialog>
  );
}
