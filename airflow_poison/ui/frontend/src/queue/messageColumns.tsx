import type { Instant, MessageRow } from "../api/types";
import { age, count, due, plain } from "../lib/words";
import type { Column } from "../parts/column";
import { EditedBadge } from "../parts/EditedBadge";
import { Go } from "../parts/Go";
import { Long } from "../parts/Long";
import { Time } from "../parts/Time";

const CELL = 300;

/** All columns of messages that can be shown; those of `SHOWN_AT_FIRST` are, until somebody chooses others. */
export function messageColumns(here: { readonly conn_id: string; readonly queue: string }, now: Instant): Column<MessageRow>[] {
  const number = (key: "abort_count" | "move_count" | "crash_count", title: string): Column<MessageRow> => ({
    key,
    title,
    numeric: true,
    sort: key,
    cell: (row) => count(row[key]),
  });
  return [
    {
      key: "lookup_id",
      title: "Lookup id",
      sort: "lookup_id",
      cell: ({ lookup_id: id, edited }) => (
        <>
          <Go to={{ ...here, lookup_id: id }} label={`Message ${id}`}>
            {id}
          </Go>
          {edited ? (
            <>
              {" "}
              <EditedBadge />
            </>
          ) : null}
        </>
      ),
    },
    { key: "message_id", title: "Message id", wide: true, cell: (row) => <Long most={CELL}>{row.message_id}</Long> },
    { key: "sub_queue", title: "Sub-queue", cell: (row) => row.sub_queue },
    { key: "message_type", title: "Type", wide: true, sort: "message_type", cell: (row) => <Long most={CELL}>{row.message_type ?? ""}</Long> },
    { key: "group_id", title: "Group", wide: true, sort: "group_id", cell: (row) => <Long most={CELL}>{row.group_id ?? row.conversation_id ?? ""}</Long> },
    { key: "priority", title: "Priority", numeric: true, cell: (row) => count(row.priority) },
    number("abort_count", "Aborts"),
    number("move_count", "Moves"),
    number("crash_count", "Crashes"),
    { key: "enqueued_at", title: "Enqueued", sort: "enqueued_at", cell: (row) => <Time at={row.enqueued_at} /> },
    { key: "age", title: "Age", cell: (row) => age(row.enqueued_at, now) },
    { key: "due_at", title: "Due", cell: (row) => due(row.due_at, now) },
    { key: "expires_at", title: "Expires", cell: (row) => <Time at={row.expires_at} /> },
    { key: "properties", title: "Properties", wide: true, cell: (row) => <Long most={CELL}>{Object.keys(row.properties).length ? plain(row.properties) : ""}</Long> },
    { key: "reason", title: "Last error", wide: true, sort: "error_type", cell: (row) => <Long most={CELL}>{row.reason ?? ""}</Long> },
  ];
}

export const ALWAYS_SHOWN = "lookup_id";
export const SHOWN_AT_FIRST = ["lookup_id", "message_id", "abort_count", "move_count", "crash_count", "age", "due_at", "reason"];
