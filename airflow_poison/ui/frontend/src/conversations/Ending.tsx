import { Strong } from "@chakra-ui/react";

import type { Conversation } from "../api/types";
import { count } from "../lib/words";
import { Code } from "../parts/Code";
import { CopyButton } from "../parts/CopyButton";
import { Note } from "../parts/Note";

import { tellsPartner } from "./states";

/** The command that ends a conversation, and what it does. */
export function Ending({ found }: { readonly found: Conversation }) {
  if (!found.ended_by) return null;
  const { conversation, messages, more, halts, ended_by: command } = found;
  const gone = messages.length + more;
  const what = gone ? `${count(gone)} of its messages ${gone === 1 ? "goes" : "go"} for good` : "nothing of it waits here";
  const told = tellsPartner(conversation.state) ? `, ${conversation.far_service} is told an error` : "";
  return (
    <Note>
      {halts ? <Strong>A message of this conversation has halted the queue. </Strong> : null}
      {`This ends it, in a shell that sees the store: ${what}${told}${halts ? ", and the queue is enabled" : ""}.`}
      <Code label="Command">{command}</Code>
      <CopyButton text={command} />
    </Note>
  );
}
