import type { Claim, Queue } from "../api/types";
import { count, due } from "../lib/words";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Facts } from "../parts/Facts";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

/** The policy of a queue, and the passes that are at work. */
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
    </>
  );
}
