import { Field, Input, Textarea } from "@chakra-ui/react";

interface Props {
  readonly label: string;
  readonly value: string;
  readonly onChange: (value: string) => void;
  readonly help?: string;
  readonly problem?: string | undefined;
  readonly type?: "text" | "number" | "datetime-local" | "search";
  readonly step?: string;
  readonly min?: number;
  readonly max?: number;
  readonly rows?: number;
  readonly mono?: boolean;
  readonly placeholder?: string;
}

/** A text, a number or a time. With `rows` it has several lines. */
export function TextField({ label, value, onChange, help, problem, type = "text", step, min, max, rows, mono = false, placeholder }: Props) {
  const shared = { name: label, value, placeholder, fontFamily: mono ? "mono" : undefined, size: "sm" as const, spellCheck: false, autoComplete: "off" };
  return (
    <Field.Root invalid={problem !== undefined}>
      <Field.Label>{label}</Field.Label>
      {rows ? (
        <Textarea
          {...shared}
          rows={rows}
          onChange={(event) => {
            onChange(event.currentTarget.value);
          }}
        />
      ) : (
        <Input
          {...shared}
          type={type}
          step={step}
          min={min}
          max={max}
          onChange={(event) => {
            onChange(event.currentTarget.value);
          }}
        />
      )}
      {help ? <Field.HelperText>{help}</Field.HelperText> : null}
      {problem !== undefined ? <Field.ErrorText>{problem}</Field.ErrorText> : null}
    </Field.Root>
  );
}
