import type { Conversation as Found, Instant } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { count, due } from "../lib/words";
import { Answered } from "../parts/Answered";
import { Facts } from "../parts/Facts";
import { Note } from "../parts/Note";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";

import { ConversationState } from "./ConversationState";
import { Ending } from "./Ending";
import { Partner } from "./Partner";
import { Thread } from "./Thread";

const AT_ONCE = 50;

/** One conversation: its sides, what waits for it, what has not left for its partner, and what ends it. */
export function Conversation({ queue, handle }: { readonly queue: string; readonly handle: string }) {
  const answer = useAnswer<Found>("conversation", { queue, handle, limit: AT_ONCE });
  return (
    <Section title={`Conversation ${handle}`}>
      <Answered answer={answer}>
        {(found) => (
          <>
            {found.conversation.error ? (
              <Note status="error">{`The partner's error ${found.conversation.error.code}: ${found.conversation.error.description}`}</Note>
            ) : null}
            {found.halts ? <Ending found={found} /> : null}
            <Facts label="Conversation" facts={factsOf(found)} />
            <Thread queue={queue} found={found} />
            {found.ended_by && !found.halts ? (
              <Section title="To end it by hand">
                <Ending found={found} />
              </Section>
            ) : null}
          </>
        )}
      </Answered>
    </Section>
  );
}

function factsOf(found: Found) {
  const { conversation: row, at } = found;
  return {
    state: <ConversationState state={row.state} />,
    side: `${row.is_initiator ? "initiator" : "target"}, service ${row.service}`,
    partner: <Partner found={found} />,
    contract: row.contract,
    group: row.group_id === row.handle ? "its own" : row.group_id,
    priority: row.priority,
    began: row.is_initiator ? <Time at={row.began_at} /> : "by the partner",
    sent: count(row.sent),
    failures: count(row.failures),
    timer: <Ends at={row.dialog_timer} now={at} />,
    lifetime_ends: <Ends at={row.lifetime} now={at} />,
    id_of_both_sides: row.conversation_id,
  };
}

function Ends({ at, now }: { readonly at: Instant | null; readonly now: Instant }) {
  if (!at) return "none";
  return (
    <>
      <Time at={at} />, {due(at, now)}
    </>
  );
}
