import type { Choice, Column, Sort } from "./column";
import { CardList } from "./CardList";
import { useNarrow } from "./useNarrow";
import { WideTable } from "./WideTable";

export interface TableProps<T> {
  readonly caption: string;
  readonly columns: readonly Column<T>[];
  readonly rows: readonly T[];
  readonly rowKey: (row: T) => string;
  readonly rowLabel?: (row: T) => string;
  readonly sort?: Sort | undefined;
  readonly onSort?: (sort: Sort) => void;
  readonly choice?: Choice<T> | undefined;
}

/** Rows as a table, or as a list of cards where the window is narrow. The first column names its row. */
export function DataTable<T>(props: TableProps<T>) {
  return useNarrow() ? <CardList {...props} /> : <WideTable {...props} />;
}
