import type { ConversationRow, Instant } from "../api/types";
import { count, due, waiting } from "../lib/words";
import type { Column } from "../parts/column";
import { Go } from "../parts/Go";

import { ConversationState } from "./ConversationState";

export function conversationColumns(here: { readonly conn_id: string; readonly queue: string }, now: Instant): Column<ConversationRow>[] {
  const times = ({ dialog_timer: timer, lifetime }: ConversationRow) =>
    [timer && `timer ${due(timer, now)}`, lifetime && `lifetime ${due(lifetime, now)}`].filter(Boolean).join(", ");
  return [
    { key: "handle", title: "Conversation", wide: true, cell: ({ handle }) => <Go to={{ ...here, conversation: handle }}>{handle}</Go> },
    { key: "state", title: "State", cell: ({ state }) => <ConversationState state={state} /> },
    {
      key: "service",
      title: "Service → partner",
      wide: true,
      cell: ({ service, far_service: far }) => (
        <>
          {service}
          <br />→ {far}
        </>
      ),
    },
    { key: "contract", title: "Contract", wide: true, cell: ({ contract }) => contract },
    { key: "group", title: "Group", wide: true, cell: ({ group_id: group, handle }) => (group === handle ? "its own" : group) },
    { key: "waiting", title: "Waiting", numeric: true, cell: (row) => count(waiting(row)) },
    { key: "failures", title: "Failures", numeric: true, cell: ({ failures }) => count(failures) },
    { key: "due", title: "Due", cell: times },
    { key: "error", title: "Error", wide: true, cell: ({ error }) => (error ? `${error.code}: ${error.description}` : "") },
  ];
}
