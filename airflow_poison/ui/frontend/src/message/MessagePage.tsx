import type { MessageAnswer } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { ActionButtons } from "../actions/ActionButtons";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { Code } from "../parts/Code";
import { Note } from "../parts/Note";
import { Section } from "../parts/Section";

import { Belonging } from "./Belonging";
import { BodyView } from "./BodyView";
import { History } from "./History";
import { MessageFacts } from "./MessageFacts";
import { Original } from "./Original";

const DIALOG = "poison.dialog"; // the property of a dialog's messages

/** One message: why it failed, its body, its original, what it counts, and its whole history. */
export function MessagePage({ queue, id }: { readonly queue: string; readonly id: string }) {
  const { rights } = usePage();
  const answer = useAnswer<MessageAnswer>("message", { queue, lookup_id: id });
  return (
    <Section title={`Message ${id}`}>
      <Answered answer={answer} lines={6}>
        {(found) => {
          const { message, original, masked, history } = found;
          return (
            <>
              {message.reason ? <Note status="error">{message.reason}</Note> : null}
              {rights.act ? (
                <ActionButtons
                  queue={queue}
                  selection={{ sub_queue: message.sub_queue, lookup_ids: [message.lookup_id] }}
                  verbs={["put_back", "move", "send_to", "edit", "remove"]}
                  about={`message ${id}`}
                  one={found}
                />
              ) : null}
              {DIALOG in message.properties && message.conversation_id ? <Belonging queue={queue} handle={message.conversation_id} /> : null}
              <BodyView queue={queue} message={message} masked={masked} />
              {original ? <Original original={original} message={message} /> : null}
              {message.last_error?.trace ? (
                <Section title="Trace of its last failure">
                  <Code label="Trace">{message.last_error.trace}</Code>
                </Section>
              ) : null}
              <History queue={queue} history={history} />
              <MessageFacts message={message} />
            </>
          );
        }}
      </Answered>
    </Section>
  );
}
