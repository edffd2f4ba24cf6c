import type { ReactNode } from "react";

/** A column of a table. `sort` is the name by which rows can be sorted; `wide` texts may wrap. */
export interface Column<T> {
  readonly key: string;
  readonly title: string;
  readonly cell: (row: T) => ReactNode;
  readonly numeric?: boolean;
  readonly wide?: boolean;
  readonly sort?: string;
}

export interface Sort {
  readonly by: string;
  readonly desc: boolean;
}

/** What a click on a column's title sorts by: the other way when it is the same column. */
export function sortedBy(sort: Sort | undefined, by: string): Sort {
  return { by, desc: sort?.by === by && !sort.desc };
}

/** Rows that can be chosen, and which are. */
export interface Choice<T> {
  readonly isChosen: (row: T) => boolean;
  readonly choose: (rows: readonly T[], chosen: boolean) => void;
}
