import { Table } from "@chakra-ui/react";

import type { Column } from "./column";
import { RowChoice } from "./RowChoice";
import { SortButton } from "./SortButton";
import type { TableProps } from "./DataTable";

function layout<T>({ numeric, wide }: Column<T>) {
  return {
    textAlign: numeric ? ("end" as const) : ("start" as const),
    whiteSpace: wide ? ("normal" as const) : ("nowrap" as const),
    ...(wide ? { overflowWrap: "anywhere" as const, minWidth: "12rem" } : {}),
    ...(numeric ? { fontVariantNumeric: "tabular-nums" } : {}),
    verticalAlign: "top" as const,
  };
}

export function WideTable<T>({ caption, columns, rows, rowKey, rowLabel, sort, onSort, choice }: TableProps<T>) {
  const direction = (column: Column<T>) => (column.sort && sort?.by === column.sort ? (sort.desc ? "descending" : "ascending") : undefined);
  return (
    <Table.ScrollArea borderWidth="1px" borderRadius="md" tabIndex={0} role="region" aria-label={`${caption}, scrollable`}>
      <Table.Root size="sm" aria-label={caption}>
        <Table.Header>
          <Table.Row>
            {choice ? (
              <Table.ColumnHeader width="8">
                <RowChoice label="Choose all of this page" rows={rows} choice={choice} />
              </Table.ColumnHeader>
            ) : null}
            {columns.map((column) => (
              <Table.ColumnHeader key={column.key} scope="col" aria-sort={direction(column)} {...layout(column)} verticalAlign="middle" fontWeight="semibold">
                {column.sort && onSort ? <SortButton title={column.title} by={column.sort} sort={sort} onSort={onSort} /> : column.title}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map((row) => (
            <Table.Row key={rowKey(row)}>
              {choice ? (
                <Table.Cell verticalAlign="top">
                  <RowChoice label={`Choose ${rowLabel?.(row) ?? rowKey(row)}`} rows={[row]} choice={choice} />
                </Table.Cell>
              ) : null}
              {columns.map((column, place) =>
                place ? (
                  <Table.Cell key={column.key} {...layout(column)}>
                    {column.cell(row)}
                  </Table.Cell>
                ) : (
                  <Table.Cell key={column.key} asChild {...layout(column)}>
                    <th scope="row">{column.cell(row)}</th>
                  </Table.Cell>
                ),
              )}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}
