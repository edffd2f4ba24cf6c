import type { Queues } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { usePage } from "../page/PageContext";
import { useTitle } from "../page/useTitle";
import { Answered } from "../parts/Answered";
import { Note } from "../parts/Note";

import { Needs } from "./Needs";
import { NoQueue } from "./NoQueue";
import { QueueList } from "./QueueList";
import { TotalTiles } from "./TotalTiles";

/** All queues of a connection: first what needs attention, then totals, and a table to search. */
export function Overview() {
  const { connId } = usePage();
  useTitle(["Poison queues"]);
  const answer = useAnswer<Queues>("queues", {});
  return (
    <Answered answer={answer} lines={6}>
      {(found) => (
        <>
          {found.unreadable.length ? (
            <Note status="error">{`Cannot be read: ${found.unreadable.join(", ")}. The log of the API server says why.`}</Note>
          ) : null}
          {found.queues.length ? (
            <>
              <Needs queues={found.queues} />
              <TotalTiles totals={found.totals} queues={found.queues} />
              <QueueList queues={found.queues} now={found.at} />
            </>
          ) : (
            <NoQueue connId={connId} exists={found.exists} />
          )}
        </>
      )}
    </Answered>
  );
}
