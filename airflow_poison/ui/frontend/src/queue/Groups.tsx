import type { Groups as Found, SubQueue } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { count, many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { DataTable } from "../parts/DataTable";
import { Go } from "../parts/Go";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

import { groupColumns } from "./groupColumns";

const EVERY = 4; // rounds: counting groups costs the server more than all else

interface Props {
  readonly queue: string;
  readonly place: SubQueue | null;
  readonly most?: number;
}

/** Messages by why they failed: a line for each kind of error. */
export function Groups({ queue, place, most }: Props) {
  const { connId, rights } = usePage();
  const answer = useAnswer<Found>("groups", { queue, selection: JSON.stringify({ sub_queue: place }) }, EVERY);
  const here = { conn_id: connId, queue };
  return (
    <Section title={`Error groups${place === null ? "" : ` in ${place}`}`}>
      <Answered answer={answer}>
        {({ groups, messages }) =>
          groups.length ? (
            <>
              <DataTable
                caption="Error groups"
                columns={groupColumns(here, place, rights.act)}
                rows={most === undefined ? groups : groups.slice(0, most)}
                rowKey={({ error }) => error}
              />
              <Quiet>
                {`${many(groups.length, "group")}, ${many(messages, "message")}. `}
                {most !== undefined && groups.length > most ? (
                  <Go to={{ ...here, view: "groups", sub_queue: place ?? undefined }}>{`All ${count(groups.length)} groups`}</Go>
                ) : null}
              </Quiet>
            </>
          ) : (
            <Quiet>No message has failed.</Quiet>
          )
        }
      </Answered>
    </Section>
  );
}
