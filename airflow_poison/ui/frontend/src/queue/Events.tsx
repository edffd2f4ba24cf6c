import type { Events as Found, QueueEvent } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { count } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Details } from "../parts/Details";
import { Go } from "../parts/Go";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";

/** The newest events of a queue, the newest first. */
export function Events({ queue }: { readonly queue: string }) {
  const { connId } = usePage();
  const answer = useAnswer<Found>("events", { queue });
  const columns: Column<QueueEvent>[] = [
    { key: "at", title: "Time", cell: ({ at }) => <Time at={at} /> },
    { key: "event", title: "Event", cell: ({ event }) => event },
    {
      key: "message",
      title: "Message",
      cell: ({ lookup_id: id }) =>
        id === null ? null : (
          <Go to={{ conn_id: connId, queue, lookup_id: id }} label={`Message ${id}`}>
            {id}
          </Go>
        ),
    },
    { key: "aborts", title: "Aborts", numeric: true, cell: (event) => (event.lookup_id === null ? "" : count(event.abort_count)) },
    { key: "moves", title: "Moves", numeric: true, cell: (event) => (event.lookup_id === null ? "" : count(event.move_count)) },
    { key: "details", title: "Details", wide: true, cell: ({ details }) => <Details queue={queue} details={details} /> },
  ];
  return (
    <Section title="Events">
      <Answered answer={answer}>
        {(found) =>
          found.events.length ? (
            <>
              <DataTable caption="Events" columns={columns} rows={found.events.toReversed()} rowKey={(event) => keyOf(event)} />
              {found.earlier ? <Quiet>{`${count(found.earlier)} earlier ones: airflow poison history shows them.`}</Quiet> : null}
            </>
          ) : (
            <Quiet>Nothing is recorded.</Quiet>
          )
        }
      </Answered>
    </Section>
  );
}

function keyOf({ at, event, lookup_id: id, abort_count: aborts, move_count: moves }: QueueEvent): string {
  return [at, event, id, aborts, moves].join(" ");
}
