import { useState } from "react";

import type { MessageAnswer } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { ActionButtons } from "../actions/ActionButtons";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { Boundary } from "../parts/Boundary";
import { Code } from "../parts/Code";
import { EditedBadge } from "../parts/EditedBadge";
import { Long } from "../parts/Long";
import { Note } from "../parts/Note";
import { Section } from "../parts/Section";

import { Belonging } from "./Belonging";
import { BodyView } from "./BodyView";
import { History } from "./History";
import { MessageFacts } from "./MessageFacts";
import { Original } from "./Original";
import { Unmask } from "./Unmask";

const DIALOG = "poison.dialog"; // the property of a dialog's messages

/** One message: why it failed, its body, its original, what it counts, and its whole history. */
export function MessagePage({ queue, id }: { readonly queue: string; readonly id: string }) {
  const { rights } = usePage();
  const answer = useAnswer<MessageAnswer>("message", { queue, lookup_id: id });
  const [shown, setShown] = useState<MessageAnswer | null>(null);
  return (
    <Section
      title={
        answer.found?.message.edited ? (
          <>
            {`Message ${id} `}
            <EditedBadge />
          </>
        ) : (
          `Message ${id}`
        )
      }
    >
      <Answered answer={answer} lines={6}>
        {(found) => {
          const { message, original, masked = [], history } = found;
          return (
            <>
              {message.reason ? <Note status="neutral"><Long>{message.reason}</Long></Note> : null}
              {rights.act ? (
                <ActionButtons
                  queue={queue}
                  selection={{ sub_queue: message.sub_queue, lookup_ids: [message.lookup_id] }}
                  verbs={["put_back", "edit_put_back", "edit", "move", "send_to", "remove"]}
                  about={`message ${id}`}
                  one={found}
                />
              ) : null}
              {DIALOG in message.properties && message.conversation_id ? <Belonging queue={queue} handle={message.conversation_id} /> : null}
              <Boundary>
                {shown ? (
                  <BodyView key="shown" queue={queue} message={shown.message} masked={shown.masked ?? []} />
                ) : (
                  <BodyView queue={queue} message={message} masked={masked} />
                )}
                {masked.length && rights.unmask ? <Unmask queue={queue} id={id} shown={shown} onShow={setShown} /> : null}
              </Boundary>
              <Boundary>{original ? <Original original={original} message={message} /> : null}</Boundary>
              {message.last_error?.trace ? (
                <Section title="Trace of its last failure">
                  <Code label="Trace">{message.last_error.trace}</Code>
                </Section>
              ) : null}
              <Boundary>
                <History queue={queue} history={history} />
              </Boundary>
              <Boundary>
                <MessageFacts message={message} />
              </Boundary>
            </>
          );
        }}
      </Answered>
    </Section>
  );
}
