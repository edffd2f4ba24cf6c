import { useState } from "react";

import type { Plan, Plans } from "../api/plans";
import { useAnswer } from "../api/useAnswer";
import { actionInWords } from "../actions/verbs";
import { selectionInWords } from "../lib/selection";
import { count } from "../lib/words";
import { timeIn, useZone } from "../lib/zone";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Go } from "../parts/Go";
import { Long } from "../parts/Long";
import { Pager } from "../parts/Pager";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";
import { Who } from "../parts/Who";

import { PlanControls } from "./PlanControls";
import { PlanStateBadge } from "./PlanStateBadge";

const PAGE = 25;

/** What people have planned with the messages of a queue, the newest first. */
export function PlanList({ queue }: { readonly queue: string }) {
  const { connId, rights } = usePage();
  const zone = useZone();
  const [offset, setOffset] = useState(0);
  const answer = useAnswer<Plans>("plans", { queue });
  const acting: Column<Plan> = { key: "act", title: "Actions", cell: (plan) => <PlanControls plan={plan} only={["pause"]} /> };
  const columns: Column<Plan>[] = [
    { key: "plan", title: "Plan", cell: ({ plan }) => <Go to={{ conn_id: connId, queue, view: "plans", plan }}>{plan}</Go> },
    { key: "state", title: "State", cell: ({ state }) => <PlanStateBadge state={state} /> },
    { key: "action", title: "Action", cell: ({ action }) => actionInWords(action) },
    { key: "done", title: "Done", numeric: true, cell: ({ done, messages }) => `${count(done)} of ${count(messages)}` },
    ...(rights.act ? [acting] : []),
    { key: "selection", title: "Selection", wide: true, cell: ({ selection }) => <Long most={300}>{selectionInWords(selection, (at) => timeIn(zone, at))}</Long> },
    { key: "who", title: "Who", wide: true, cell: ({ who }) => <Who who={who} /> },
    { key: "at", title: "When", cell: ({ at }) => <Time at={at} /> },
    { key: "reason", title: "Reason", wide: true, cell: ({ reason }) => reason },
  ];
  return (
    <Section title="Plans">
      <Answered answer={answer}>
        {({ plans }) =>
          plans.length ? (
            <>
              <DataTable caption="Plans" columns={columns} rows={plans.slice(offset, offset + PAGE)} rowKey={({ plan }) => plan} />
              <Pager label="plans" offset={offset} size={PAGE} total={plans.length} onMove={setOffset} />
            </>
          ) : (
            <Quiet>No plan yet: each action on messages is one.</Quiet>
          )
        }
      </Answered>
    </Section>
  );
}
