import { SimpleGrid } from "@chakra-ui/react";

import { TextField } from "../parts/TextField";

import type { Draft, DraftProblems } from "./draft";
import { redrives } from "./verbs";

interface Props {
  readonly draft: Draft;
  readonly onChange: (draft: Draft) => void;
  readonly problems: DraftProblems;
}

type Name = "canary" | "share" | "rate" | "limit" | "chunk";

/** How many messages an action takes, how fast, and which of them first. */
export function PaceFields({ draft, onChange, problems }: Props) {
  const field = (name: Name, label: string, help: string) => (
    <TextField
      label={label}
      value={draft[name]}
      problem={problems[name]}
      help={help}
      type="number"
      min={1}
      onChange={(value) => {
        onChange({ ...draft, [name]: value });
      }}
    />
  );
  return (
    <SimpleGrid columns={{ base: 1, sm: 2 }} gap="3">
      {redrives(draft.deed) ? (
        <>
          {field("canary", "Canary: messages", "so many go first, some of each error group")}
          {field("share", "Canary: settled, in %", "so many of them must be settled; else it stops")}
        </>
      ) : null}
      {field("rate", "Rate: messages a second", "empty: as fast as it goes")}
      {field("limit", "Limit: messages", "empty: all that are selected")}
      {field("chunk", "Chunk: messages in one commit", "empty: 50,000")}
    </SimpleGrid>
  );
}
