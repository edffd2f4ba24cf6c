import type { Conversation, MessageRow } from "../api/types";
import { age, count } from "../lib/words";
import { usePage } from "../page/PageContext";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Go } from "../parts/Go";

/** The messages that wait for a conversation. */
export function Waiting({ queue, found }: { readonly queue: string; readonly found: Conversation }) {
  const { connId } = usePage();
  const columns: Column<MessageRow>[] = [
    {
      key: "id",
      title: "Lookup id",
      cell: ({ lookup_id: id }) => <Go to={{ conn_id: connId, queue, lookup_id: id }} label={`Message ${id}`}>{id}</Go>,
    },
    { key: "type", title: "Type", wide: true, cell: (row) => row.message_type ?? "" },
    { key: "place", title: "Sub-queue", cell: (row) => row.sub_queue },
    { key: "aborts", title: "Aborts", numeric: true, cell: (row) => count(row.abort_count) },
    { key: "age", title: "Age", cell: (row) => age(row.enqueued_at, found.at) },
    { key: "reason", title: "Last error", wide: true, cell: (row) => row.reason ?? "" },
  ];
  return <DataTable caption="Messages that wait for it" columns={columns} rows={found.messages} rowKey={({ lookup_id: id }) => String(id)} />;
}
