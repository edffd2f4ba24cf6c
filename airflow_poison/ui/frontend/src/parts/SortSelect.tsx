import { HStack } from "@chakra-ui/react";

import { sortedBy, type Column, type Sort } from "./column";
import { SelectField } from "./SelectField";
import { SortButton } from "./SortButton";

interface Props<T> {
  readonly columns: readonly Column<T>[];
  readonly sort: Sort | undefined;
  readonly onSort: (sort: Sort) => void;
}

/** What cards are sorted by, where there are no titles of columns to click on. */
export function SortSelect<T>({ columns, sort, onSort }: Props<T>) {
  const sortable = columns.flatMap(({ sort: by, title }) => (by ? [{ value: by, label: title }] : []));
  return (
    <HStack align="flex-end">
      <SelectField
        label="Sort by"
        value={sort?.by ?? ""}
        options={sort ? sortable : [{ value: "", label: "as it comes" }, ...sortable]}
        onChange={(by) => {
          onSort(sortedBy(undefined, by));
        }}
      />
      {sort ? <SortButton title={sort.desc ? "descending" : "ascending"} by={sort.by} sort={sort} onSort={onSort} /> : null}
    </HStack>
  );
}
