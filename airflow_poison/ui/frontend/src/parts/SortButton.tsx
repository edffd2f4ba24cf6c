import { Button } from "@chakra-ui/react";

import { sortedBy, type Sort } from "./column";

interface Props {
  readonly title: string;
  readonly by: string;
  readonly sort: Sort | undefined;
  readonly onSort: (sort: Sort) => void;
}

/** The title of a column that rows can be sorted by. */
export function SortButton({ title, by, sort, onSort }: Props) {
  const arrow = sort?.by === by ? (sort.desc ? "↓" : "↑") : "↕";
  return (
    <Button
      variant="plain"
      size="xs"
      height="auto"
      minHeight="6"
      padding="0"
      fontSize="inherit"
      fontWeight="semibold"
      onClick={() => {
        onSort(sortedBy(sort, by));
      }}
    >
      {title} <span aria-hidden>{arrow}</span>
    </Button>
  );
}
