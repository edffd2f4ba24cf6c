import type { Claim, Queue, Source } from "../api/types";
import { count, due } from "../lib/words";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Facts } from "../parts/Facts";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";

const sourceColumns: Column<Source>[] = [
  { key: "source", title: "Source", wide: true, cell: ({ source }) => source },
  { key: "position", title: "Taken so far", wide: true, cell: ({ position }) => position },
  { key: "messages", title: "Messages", numeric: true, cell: ({ messages }) => count(messages) },
  { key: "malformed", title: "Malformed", numeric: true, cell: ({ malformed }) => count(malformed) },
  { key: "taken_at", title: "Last", cell: ({ taken_at: at }) => <Time at={at} /> },
];

/** The policy of a queue, the passes that are at work, and the sources that fill it. */
export function Settings({ queue }: { readonly queue: Queue }) {
  const columns: Column<Claim>[] = [
    { key: "key", title: "Pass", wide: true, cell: ({ key }) => key },
    { key: "sub_queue", title: "Sub-queue", cell: (claim) => claim.sub_queue },
    { key: "messages", title: "Messages", numeric: true, cell: ({ messages }) => count(messages) },
    {
      key: "ends",
      title: "Ends",
      cell: (claim) => (claim.expired ? "expired: the next receive takes it over" : due(claim.expires_at, queue.at)),
    },
  ];
  return (
    <>
      <Section title="Policy">{Object.keys(queue.policy).length ? <Facts label="Policy" facts={queue.policy as Record<string, object>} /> : <Quiet>None.</Quiet>}</Section>
      <Section title="Claims">
        {queue.claims.length ? (
          <DataTable caption="Claims" columns={columns} rows={queue.claims} rowKey={({ key, sub_queue: place }) => `${key} ${place}`} />
        ) : (
          <Quiet>No pass is at work.</Quiet>
        )}
      </Section>
      {queue.sources.length ? (
        <Section title="Sources">
          <DataTable caption="Sources" columns={sourceColumns} rows={queue.sources} rowKey={({ source }) => source} />
        </Section>
      ) : null}
    </>
  );
}
