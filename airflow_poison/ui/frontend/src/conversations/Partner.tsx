import type { Conversation } from "../api/types";
import { usePage } from "../page/PageContext";
import { Go } from "../parts/Go";
import { StateBadge } from "../parts/StateBadge";

/** The other side of a conversation: its service, and its queue where that is known. */
export function Partner({ found }: { readonly found: Conversation }) {
  const { connId } = usePage();
  const { conversation, far_queue: there } = found;
  if (!there) return `${conversation.far_service} (the queue of this service is not known here)`;
  return (
    <>
      {conversation.far_service} in queue <Go to={{ conn_id: connId, queue: there.queue }}>{there.queue}</Go>
      {there.state === "enabled" ? null : (
        <>
          {" "}
          <StateBadge state={there.state} />
        </>
      )}
      : <Go to={{ conn_id: connId, queue: there.queue, conversation: conversation.far_handle }}>its side</Go>
    </>
  );
}
