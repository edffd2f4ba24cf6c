import type { Conversation } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { ConversationState } from "../conversations/ConversationState";
import { Ending } from "../conversations/Ending";
import { Partner } from "../conversations/Partner";
import { count, waiting } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { Facts } from "../parts/Facts";
import { Go } from "../parts/Go";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

/** The conversation of a message: who the partner is, and what ends it. */
export function Belonging({ queue, handle }: { readonly queue: string; readonly handle: string }) {
  const { connId } = usePage();
  const answer = useAnswer<Conversation>("conversation", { queue, handle, limit: 1 });
  if (answer.error !== undefined && answer.found === undefined) return <Quiet>{answer.error}</Quiet>;
  return (
    <Section title="Its conversation">
      <Answered answer={answer}>
        {(found) => {
          const { state, service, contract } = found.conversation;
          const facts = {
            conversation: <Go to={{ conn_id: connId, queue, conversation: handle }}>{handle}</Go>,
            state: <ConversationState state={state} />,
            partner: <Partner found={found} />,
            service,
            contract,
            waiting_here: count(waiting(found.conversation)),
          };
          return (
            <>
              <Facts label="Its conversation" facts={facts} />
              {found.halts ? <Ending found={found} /> : null}
            </>
          );
        }}
      </Answered>
    </Section>
  );
}
