import type { HistoryEvent } from "../api/types";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Details } from "../parts/Details";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { TaskLinks } from "../parts/TaskLinks";
import { Time } from "../parts/Time";

/** All that has happened to a message, the newest first, with the runs and the people that did it. */
export function History({ queue, history }: { readonly queue: string; readonly history: readonly HistoryEvent[] }) {
  const columns: Column<HistoryEvent>[] = [
    { key: "at", title: "Time", cell: ({ at }) => <Time at={at} /> },
    { key: "type", title: "Event", cell: ({ type }) => type },
    { key: "details", title: "Details", wide: true, cell: ({ details }) => <Details queue={queue} details={details} /> },
    { key: "links", title: "In Airflow", cell: ({ links, type, at }) => <TaskLinks links={links} about={`${type} at ${at}`} /> },
  ];
  return (
    <Section title="History">
      {history.length ? (
        <DataTable caption="History" columns={columns} rows={history.toReversed()} rowKey={({ at, type, details }) => `${at} ${type} ${JSON.stringify(details)}`} />
      ) : (
        <Quiet>Nothing is recorded.</Quiet>
      )}
    </Section>
  );
}
