import { Checkbox } from "@chakra-ui/react";

import type { Choice } from "./column";

interface Props<T> {
  readonly label: string;
  readonly rows: readonly T[];
  readonly choice: Choice<T>;
  readonly shown?: boolean;
}

/** A box that chooses some rows; half ticked when only some of them are chosen. */
export function RowChoice<T>({ label, rows, choice, shown = false }: Props<T>) {
  const chosen = rows.filter((row) => choice.isChosen(row)).length;
  const checked = chosen === 0 ? false : chosen === rows.length ? true : "indeterminate";
  return (
    <Checkbox.Root
      size="sm"
      checked={checked}
      onCheckedChange={(change) => {
        choice.choose(rows, change.checked === true);
      }}
    >
      <Checkbox.HiddenInput aria-label={label} />
      <Checkbox.Control />
      {shown ? <Checkbox.Label>{label}</Checkbox.Label> : null}
    </Checkbox.Root>
  );
}
