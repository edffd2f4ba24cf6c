import { Text } from "@chakra-ui/react";

import type { PlannedGroup } from "../api/plans";
import { count } from "../lib/words";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";

const COLUMNS: Column<PlannedGroup>[] = [
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
export function PlanGroups({ groups, caption = "Error groups of the plan" }: { readonly groups: readonly PlannedGroup[]; readonly caption?: string }) {
  return groups.length ? <DataTable caption={caption} columns={COLUMNS} rows={groups} rowKey={({ error }) => error} /> : null;
}
