import { Stack } from "@chakra-ui/react";

import { Quiet } from "../parts/Quiet";
import { SelectField } from "../parts/SelectField";
import { TextField } from "../parts/TextField";

import type { Draft, DraftProblems, EditWith } from "./draft";

interface Props {
  readonly draft: Draft;
  readonly onChange: (draft: Draft) => void;
  readonly problems: DraftProblems;
  readonly whole: string | null;
}

const WAYS: readonly { readonly value: EditWith; readonly label: string }[] = [
  { value: "patch", label: "a JSON merge patch" },
  { value: "body", label: "the whole body" },
  { value: "function", label: "a Python function" },
  { value: "nothing", label: "nothing: only properties" },
];

/** How bodies and properties are to change. The whole body is for one message only. */
export function EditFields({ draft, onChange, problems, whole }: Props) {
  return (
    <Stack gap="3">
      <SelectField
        label="Change the body with"
        value={draft.editWith}
        options={WAYS.filter(({ value }) => value !== "body" || whole === "")}
        onChange={(value) => {
          onChange({ ...draft, editWith: WAYS.find((way) => way.value === value)?.value ?? "patch" });
        }}
      />
      {whole ? <Quiet>{whole}</Quiet> : null}
      {draft.editWith === "patch" ? (
        <TextField
          label="Merge patch (RFC 7396)"
          value={draft.patch}
          problem={problems.patch}
          rows={6}
          mono
          help='For example {"currency": "EUR", "old": null}: sets currency, removes old.'
          onChange={(patch) => {
            onChange({ ...draft, patch });
          }}
        />
      ) : null}
      {draft.editWith === "body" ? (
        <TextField
          label="Body"
          value={draft.body}
          rows={12}
          mono
          onChange={(body) => {
            onChange({ ...draft, body });
          }}
        />
      ) : null}
      {draft.editWith === "function" ? (
        <TextField
          label="Function"
          value={draft.function}
          problem={problems.function}
          mono
          placeholder="shop.repairs:add_currency"
          help="module:name of a function that takes the bytes of a body and returns the new ones; the API server must be able to import it."
          onChange={(code) => {
            onChange({ ...draft, function: code });
          }}
        />
      ) : null}
      <TextField
        label="Properties"
        value={draft.properties}
        problem={problems.properties}
        rows={3}
        mono
        help="One a line: name=value sets a property, -name removes it."
        onChange={(properties) => {
          onChange({ ...draft, properties });
        }}
      />
    </Stack>
  );
}
