import { Text } from "@chakra-ui/react";

import type { PlanGroup } from "../api/plans";
import { count } from "../lib/words";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";

const COLUMNS: Column<PlanGroup>[] = [
  {
    key: "error",
    title: "Error group",
    wide: true,
    cell: ({ error, type, text }) => (
      <>
        {type || error || "no error"}
        <Text as="span" display="block" fontWeight="normal" fontSize="sm" color="fg.muted" lineClamp={2}>
          {text}
        </Text>
      </>
    ),
  },
  { key: "messages", title: "Messages", numeric: true, cell: ({ messages }) => count(messages) },
];

/** The messages of a plan by why they failed. */
export function PlanGroups({ groups }: { readonly groups: readonly PlanGroup[] }) {
  return groups.length ? <DataTable caption="Error groups of the plan" columns={COLUMNS} rows={groups} rowKey={({ error }) => error} /> : null;
}
