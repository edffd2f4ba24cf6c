import type { Conversations as Found } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { count } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { DataTable } from "../parts/DataTable";
import { Go } from "../parts/Go";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

import { conversationColumns } from "./conversationColumns";

const AT_ONCE = 50;

/** The conversations of a queue, those with failures, errors and waiting messages first. */
export function Conversations({ queue, ended }: { readonly queue: string; readonly ended: boolean }) {
  const { connId } = usePage();
  const here = { conn_id: connId, queue };
  const answer = useAnswer<Found>("conversations", { queue, ended, limit: AT_ONCE });
  return (
    <Section title={ended ? "Conversations, with those that have ended" : "Conversations"}>
      <Answered answer={answer}>
        {(found) =>
          found.conversations.length ? (
            <>
              <DataTable caption="Conversations" columns={conversationColumns(here, found.at)} rows={found.conversations} rowKey={({ handle }) => handle} />
              {found.more ? <Quiet>{`${count(found.more)} more: airflow poison conversations shows them.`}</Quiet> : null}
            </>
          ) : (
            <Quiet>{ended ? "None is remembered." : "None goes on."}</Quiet>
          )
        }
      </Answered>
      <Go to={{ ...here, view: ended ? "conversations" : "ended" }}>{ended ? "Only those that go on" : "Also those that have ended"}</Go>
    </Section>
  );
}
