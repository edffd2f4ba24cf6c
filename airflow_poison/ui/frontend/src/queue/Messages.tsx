import { Box, HStack } from "@chakra-ui/react";
import { useState } from "react";

import type { Instant, MessageRow, Messages as Found, SubQueue } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { ActionButtons } from "../actions/ActionButtons";
import { OF_MANY } from "../actions/verbs";
import { EVERYWHERE, selectionOf, type Filter } from "../lib/selection";
import { count, many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { usePlace } from "../page/usePlace";
import { Answered } from "../parts/Answered";
import type { Choice } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Pager } from "../parts/Pager";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

import { ColumnChooser } from "./ColumnChooser";
import { FilterBar } from "./FilterBar";
import { ALWAYS_SHOWN, messageColumns } from "./messageColumns";
import { useColumns } from "./useColumns";

const PAGE = 50;

interface Props {
  readonly queue: string;
  readonly place: SubQueue | null;
  readonly filter: Filter;
  readonly now: Instant;
}

/** The messages of a sub-queue, or of all: filtered, sorted, a page at a time; and what can be done with them. */
export function Messages({ queue, place, filter, now }: Props) {
  const { connId, rights } = usePage();
  const { query, change } = usePlace();
  const [shown, chooseColumns] = useColumns();
  const selection = selectionOf(place, filter);
  const offset = Math.max(0, Number(query.get("offset") ?? 0) || 0);
  const [order, desc] = [query.get("order") ?? "lookup_id", query.get("desc") === "true"];
  const answer = useAnswer<Found>("messages", {
    queue,
    sub_queue: place,
    limit: PAGE,
    offset,
    order,
    desc,
    selection: JSON.stringify(selection),
  });
  const { chosen, choice, forget } = useChosen();
  const columns = messageColumns({ conn_id: connId, queue }, now);
  const apply = (to: Filter, where: SubQueue | null = place) => {
    forget();
    change({ selection: Object.keys(to).length ? JSON.stringify(to) : undefined, sub_queue: where ?? EVERYWHERE, offset: undefined });
  };
  return (
    <Section
      title={place === null ? "Messages everywhere" : `Messages in ${place}`}
      actions={<ColumnChooser columns={columns} shown={shown} onChoose={chooseColumns} />}
    >
      <FilterBar key={JSON.stringify(selection)} filter={filter} place={place} onApply={apply} />
      <Answered answer={answer} lines={8}>
        {({ messages, total }) => (
          <>
            {rights.act && total ? (
              <HStack wrap="wrap" marginBottom="2">
                <Box fontSize="sm">{chosen.size ? `${many(chosen.size, "message")} chosen:` : `All ${count(total)}:`}</Box>
                <ActionButtons
                  queue={queue}
                  selection={chosen.size ? selectionOf(place, { lookup_ids: [...chosen] }) : selection}
                  verbs={OF_MANY}
                  about={chosen.size ? many(chosen.size, "chosen message") : total === 1 ? "1 message" : `all ${count(total)} messages`}
                />
              </HStack>
            ) : null}
            {messages.length ? (
              <DataTable
                caption="Messages"
                columns={columns.filter(({ key }) => key === ALWAYS_SHOWN || shown.includes(key))}
                rows={messages}
                rowKey={({ lookup_id: id }) => String(id)}
                rowLabel={({ lookup_id: id }) => `message ${id}`}
                sort={{ by: order, desc }}
                onSort={(to) => {
                  change({ order: to.by, desc: to.desc ? "true" : undefined, offset: undefined });
                }}
                choice={rights.act ? choice : undefined}
              />
            ) : (
              <Quiet>{Object.keys(filter).length ? "No message fits the filter." : "No message."}</Quiet>
            )}
            <Pager
              label="messages"
              offset={offset}
              size={PAGE}
              total={total}
              onMove={(to) => {
                change({ offset: to || undefined });
              }}
            />
          </>
        )}
      </Answered>
    </Section>
  );
}

interface Chosen {
  readonly chosen: ReadonlySet<number>;
  readonly choice: Choice<MessageRow>;
  readonly forget: () => void;
}

function useChosen(): Chosen {
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  return {
    chosen,
    choice: {
      isChosen: ({ lookup_id: id }) => chosen.has(id),
      choose: (rows, isIn) => {
        const ids = rows.map(({ lookup_id: id }) => id);
        setChosen(new Set(isIn ? [...chosen, ...ids] : [...chosen].filter((id) => !ids.includes(id))));
      },
    },
    forget: () => {
      setChosen(new Set());
    },
  };
}
