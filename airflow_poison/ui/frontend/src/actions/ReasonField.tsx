import { Field, Input } from "@chakra-ui/react";

const LONGEST = 500;

interface Props {
  readonly reason: string;
  readonly onChange: (reason: string) => void;
}

/** Why somebody acts: it is recorded with the event and in Airflow's audit log. */
export function ReasonField({ reason, onChange }: Props) {
  return (
    <Field.Root>
      <Field.Label>Reason</Field.Label>
      <Input
        size="sm"
        value={reason}
        maxLength={LONGEST}
        autoComplete="off"
        onChange={(event) => {
          onChange(event.currentTarget.value);
        }}
      />
      <Field.HelperText>Recorded with your name, for those who come after you.</Field.HelperText>
    </Field.Root>
  );
}
