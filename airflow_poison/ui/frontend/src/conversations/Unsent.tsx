import type { Conversation } from "../api/types";
import { count } from "../lib/words";
import { DataTable } from "../parts/DataTable";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

/** What has not left for the partner, by message type. */
export function Unsent({ found }: { readonly found: Conversation }) {
  const held = Object.entries(found.unsent);
  if (!held.length) return null;
  return (
    <Section title="Not sent yet">
      {found.far_queue?.state === "disabled" ? (
        <Note>{`The queue of ${found.conversation.far_service} is disabled: these wait here until it is enabled.`}</Note>
      ) : (
        <Quiet>These leave with the next pass of either side.</Quiet>
      )}
      <DataTable
        caption="Not sent yet"
        rows={held}
        rowKey={([type]) => type}
        columns={[
          { key: "type", title: "Type", wide: true, cell: ([type]) => type },
          { key: "messages", title: "Messages", numeric: true, cell: ([, number]) => count(number) },
        ]}
      />
    </Section>
  );
}
