import type { Queues } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { Note } from "../parts/Note";

import { Needs } from "./Needs";
import { NoQueue } from "./NoQueue";
import { QueueList } from "./QueueList";
import { TotalTiles } from "./TotalTiles";

/** All queues of a connection: what needs somebody first, totals, and a table to search. */
export function Overview() {
  const { connId } = usePage();
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
              <TotalTiles totals={found.totals} />
              <Needs queues={found.queues} />
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
