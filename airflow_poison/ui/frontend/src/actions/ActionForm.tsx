import { Stack } from "@chakra-ui/react";

import { Quiet } from "../parts/Quiet";
import { SelectField } from "../parts/SelectField";
import { TextField } from "../parts/TextField";

import type { Draft, DraftProblems } from "./draft";
import { EditFields } from "./EditFields";
import { PaceFields } from "./PaceFields";
import { verbOf } from "./verbs";

interface Props {
  readonly draft: Draft;
  readonly onChange: (draft: Draft) => void;
  readonly problems: DraftProblems;
  readonly what: string;
  /** Why the whole body of the one message cannot be edited, empty when it can; null where there is more than one message. */
  readonly whole: string | null;
}

/** What an action needs to be told before it is planned. */
export function ActionForm({ draft, onChange, problems, what, whole }: Props) {
  return (
    <Stack gap="3">
      <Quiet>{what}</Quiet>
      {draft.deed === "move" ? (
        <SelectField
          label="To sub-queue"
          value={draft.target}
          options={[
            { value: "main", label: "main" },
            { value: "poison", label: "poison" },
          ]}
          onChange={(target) => {
            onChange({ ...draft, target });
          }}
        />
      ) : null}
      {draft.deed === "send_to" ? (
        <TextField
          label="To queue"
          value={draft.target}
          problem={problems.target}
          help="Empty: each message goes to the queue that it came from."
          onChange={(target) => {
            onChange({ ...draft, target });
          }}
        />
      ) : null}
      {verbOf(draft.deed) === "edit" ? <EditFields draft={draft} onChange={onChange} problems={problems} whole={whole} /> : null}
      {whole === null ? <PaceFields draft={draft} onChange={onChange} problems={problems} /> : null}
    </Stack>
  );
}
