import { act } from "../api/client";
import type { Decision } from "../api/types";
import { usePage } from "../page/PageContext";
import { Code } from "../parts/Code";

import { ReasonDialog } from "./ReasonDialog";

interface Props {
  readonly decision: Decision;
  readonly option: string;
  readonly onClose: () => void;
}

/** Answer a required action with one of its options. */
export function DecideDialog({ decision, option, onClose }: Props) {
  const { connId } = usePage();
  const { dag_id, run_id, task_id, map_index } = decision;
  return (
    <ReasonDialog
      title={`Decide: ${option}`}
      confirm={option}
      onClose={onClose}
      run={(reason) => act("decide", connId, { dag_id, run_id, task_id, map_index, option, reason })}
    >
      {`${decision.subject}. Task ${task_id} of ${dag_id} goes on with “${option}”.`}
      {decision.body ? <Code label="What is asked, in full">{decision.body}</Code> : null}
    </ReasonDialog>
  );
}
