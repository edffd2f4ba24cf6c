import { Button, HStack, SimpleGrid } from "@chakra-ui/react";
import { useState, type SyntheticEvent } from "react";

import { SUB_QUEUES, type SubQueue } from "../api/types";
import { EVERYWHERE, type Filter } from "../lib/selection";
import { useZone } from "../lib/zone";
import { SelectField } from "../parts/SelectField";
import { TextField } from "../parts/TextField";

import { draftOf, filterOf, type FilterDraft, type Problems } from "./filterDraft";

interface Props {
  readonly filter: Filter;
  readonly place: SubQueue | null;
  readonly onApply: (filter: Filter, place: SubQueue | null) => void;
}

/** All that a selection can ask of messages. */
export function FilterForm({ filter, place, onApply }: Props) {
  const zone = useZone();
  const [draft, setDraft] = useState(() => draftOf(filter, zone));
  const [where, setWhere] = useState<string>(place ?? EVERYWHERE);
  const [problems, setProblems] = useState<Problems>({});
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    const made = filterOf(draft, zone);
    setProblems(made.problems);
    if (!Object.keys(made.problems).length) onApply(made.filter, SUB_QUEUES.find((name) => name === where) ?? null);
  };
  const field = (name: keyof FilterDraft, label: string, more: Partial<Parameters<typeof TextField>[0]> = {}) => (
    <TextField
      label={label}
      value={draft[name]}
      problem={problems[name]}
      onChange={(value) => {
        setDraft({ ...draft, [name]: value });
      }}
      {...more}
    />
  );
  return (
    <form onSubmit={submit} aria-label="Filter messages">
      <SimpleGrid columns={{ base: 1, sm: 2, lg: 4 }} gap="3" borderWidth="1px" borderRadius="md" padding="3">
        {field("text", "Text", { help: "in the error's message or the body", type: "search" })}
        {field("error_type", "Error type", { placeholder: "KeyError" })}
        {field("error", "Error group", { help: "12 hexadecimal digits" })}
        <SelectField
          label="Sub-queue"
          value={where}
          options={[...SUB_QUEUES.map((name) => ({ value: name, label: name })), { value: EVERYWHERE, label: "everywhere" }]}
          onChange={setWhere}
        />
        {field("since", "Enqueued since", { type: "datetime-local", step: "1", help: `time zone ${zone}` })}
        {field("until", "Enqueued before", { type: "datetime-local", step: "1", help: `time zone ${zone}` })}
        {field("counts", "Counts", { placeholder: "abort_count>=3, crash_count>0" })}
        {field("lookup_ids", "Lookup ids", { placeholder: "17, 42" })}
        {field("message_type", "Message type")}
        {field("message_id", "Message id")}
        {field("group", "Group")}
        {field("properties", "Properties", { rows: 2, placeholder: "country=DE", help: "name=value, one a line" })}
        {field("where", "SQL condition", {
          rows: 3,
          mono: true,
          placeholder: "body.carrier = 'VX' and body.dep_delay > 60",
          help: "DuckDB's SQL, on the columns of the message and the fields of its JSON body",
        })}
      </SimpleGrid>
      <HStack marginTop="2">
        <Button type="submit" size="xs">
          Apply the filter
        </Button>
      </HStack>
    </form>
  );
}
