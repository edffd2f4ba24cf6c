import { Box } from "@chakra-ui/react";
import type { Instant, Queue } from "../api/types";
import { usePage } from "../page/PageContext";
import { usePlace } from "../page/usePlace";
import { useSearch } from "../page/useSearch";
import type { Sort } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Pager } from "../parts/Pager";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { TextField } from "../parts/TextField";

import { inOrder } from "./order";
import { queueColumns } from "./queueColumns";

const PAGE = 25;

/** All queues: searched, sorted, a page at a time. */
export function QueueList({ queues, now }: { readonly queues: readonly Queue[]; readonly now: Instant }) {
  const { connId } = usePage();
  const { query, change } = usePlace();
  const [text, setText] = useSearch();
  const sort: Sort = { by: query.get("sort") ?? "needs", desc: query.get("desc") === "true" };
  const wanted = text.trim().toLowerCase();
  const found = inOrder(queues, sort).filter(({ queue }) => queue.toLowerCase().includes(wanted));
  const offset = Math.min(Number(query.get("offset") ?? 0) || 0, Math.max(0, Math.floor((found.length - 1) / PAGE) * PAGE));
  return (
    <Section title="All queues">
      <Box maxWidth="20rem" marginBottom="2">
        <TextField
          label="Search by name"
          type="search"
          value={text}
          onChange={setText}
        />
      </Box>
      {found.length ? (
        <DataTable
          caption="Queues"
          columns={queueColumns(connId, now)}
          rows={found.slice(offset, offset + PAGE)}
          rowKey={({ queue }) => queue}
          sort={sort}
          onSort={({ by, desc }) => {
            change({ sort: by, desc: desc ? "true" : undefined, offset: undefined });
          }}
        />
      ) : (
        <Quiet>{`No queue has “${text.trim()}” in its name.`}</Quiet>
      )}
      <Pager
        label="queues"
        offset={offset}
        size={PAGE}
        total={found.length}
        onMove={(to) => {
          change({ offset: to || undefined });
        }}
      />
    </Section>
  );
}
