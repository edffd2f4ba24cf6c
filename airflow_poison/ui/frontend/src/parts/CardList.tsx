import { Box, DataList, Flex, Stack } from "@chakra-ui/react";

import type { TableProps } from "./DataTable";
import { RowChoice } from "./RowChoice";
import { SortSelect } from "./SortSelect";

/** The rows of a table for narrow windows: a card for each. */
export function CardList<T>({ caption, columns, rows, rowKey, rowLabel, sort, onSort, choice }: TableProps<T>) {
  const [first, ...others] = columns;
  return (
    <Stack gap="2">
      {onSort ? <SortSelect columns={columns} sort={sort} onSort={onSort} /> : null}
      {choice ? <RowChoice label="Choose all of this page" rows={rows} choice={choice} shown /> : null}
      <Stack as="ul" aria-label={caption} gap="2" listStyleType="none" margin="0" padding="0">
        {rows.map((row) => (
          <Box as="li" key={rowKey(row)} borderWidth="1px" borderRadius="md" padding="3">
            <Flex gap="3" fontWeight="medium" marginBottom="2" overflowWrap="anywhere">
              {choice ? <RowChoice label={`Choose ${rowLabel?.(row) ?? rowKey(row)}`} rows={[row]} choice={choice} /> : null}
              <Box minWidth="0">{first?.cell(row)}</Box>
            </Flex>
            <DataList.Root orientation="horizontal" size="sm" gap="1">
              {others
                .map(({ key, title, cell }) => ({ key, title, shown: cell(row) }))
                .filter(({ shown }) => shown !== null && shown !== "")
                .map(({ key, title, shown }) => (
                  <DataList.Item key={key} alignItems="flex-start">
                    <DataList.ItemLabel minWidth="6.5rem">{title}</DataList.ItemLabel>
                    <DataList.ItemValue overflowWrap="anywhere" minWidth="0">
                      <Box minWidth="0">{shown}</Box>
                    </DataList.ItemValue>
                  </DataList.Item>
                ))}
            </DataList.Root>
          </Box>
        ))}
      </Stack>
    </Stack>
  );
}
