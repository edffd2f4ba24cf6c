import { act } from "../api/client";
import type { Decision } from "../api/types";
import { usePage } from "../page/PageContext";
import { Line } from "../parts/Markdown";
import { Quiet } from "../parts/Quiet";

import { ReasonDialog } from "./ReasonDialog";

interface Props {
  readonly decision: Decision;
  readonly option: string;
  readonly meaning: string;
  readonly onAnswered: () => void;
  readonly onClose: () => void;
}

/** Answer a required action with one of its options. */
export function DecideDialog({ decision, option, meaning, onAnswered, onClose }: Props) {
  const { connId } = usePage();
  const { dag_id, run_id, task_id, map_index } = decision;
  return (
    <ReasonDialog
      title={option}
      confirm={option}
      onClose={onClose}
      run={async (reason) => {
        await act("decide", connId, { dag_id, run_id, task_id, map_index, option, reason });
        onAnswered();
      }}
    >
      {meaning ? (
        <p>
          <Line>{meaning}</Line>
        </p>
      ) : null}
      <Quiet>{`${decision.subject} Task ${task_id} of ${dag_id} goes on with this answer.`}</Quiet>
    </ReasonDialog>
  );
}
