import { Box } from "@chakra-ui/react";

import type { ErrorGroup, Groups as Found, SubQueue } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { count, many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { usePlace } from "../page/usePlace";
import { useSearch } from "../page/useSearch";
import { Answered } from "../parts/Answered";
import type { Sort } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Go } from "../parts/Go";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { TextField } from "../parts/TextField";

import { groupColumns, groupPlace, nameOf } from "./groupColumns";
import { groupsInOrder } from "./groupOrder";

export const EVERY = 4; // rounds: counting groups costs the server more than all else
const NAMED = 5;

interface Props {
  readonly queue: string;
  readonly place: SubQueue | null;
  readonly most?: number;
}

/** Messages by why they failed: a line for each kind of error, to search, to sort and to act on. */
export function Groups({ queue, place, most }: Props) {
  const { connId, rights } = usePage();
  const { query, change } = usePlace();
  const answer = useAnswer<Found>("groups", { queue, selection: JSON.stringify({ sub_queue: place }) }, EVERY);
  const here = { conn_id: connId, queue };
  const whole = most === undefined;
  const [text, setText] = useSearch();
  const search = whole ? text : "";
  const sort: Sort = whole ? { by: query.get("order") ?? "messages", desc: query.get("desc") !== "false" } : { by: "messages", desc: true };
  return (
    <Section title={`Error groups${place === null ? "" : ` in ${place}`}`}>
      <Answered answer={answer}>
        {({ groups, messages }) => {
          if (!groups.length) return <Quiet>No message has failed.</Quiet>;
          const found = groupsInOrder(groups, search, sort);
          return (
            <>
              <NewKinds groups={groups.filter((group) => group.new)} here={here} place={place} />
              {whole ? (
                <Box maxWidth="24rem" marginBottom="2">
                  <TextField
                    label="Search errors"
                    type="search"
                    value={search}
                    onChange={setText}
                  />
                </Box>
              ) : null}
              {found.length ? (
                <DataTable
                  caption="Error groups"
                  columns={groupColumns(here, place, rights.act)}
                  rows={whole ? found : found.slice(0, most)}
                  rowKey={({ error }) => error}
                  {...(whole
                    ? {
                        sort,
                        onSort: ({ by, desc }: Sort) => {
                          change({ order: by, desc: desc ? undefined : "false" }, { replace: true });
                        },
                      }
                    : {})}
                />
              ) : (
                <Quiet>{`No error has “${search.trim()}” in its type or text.`}</Quiet>
              )}
              <Quiet>
                {`${many(groups.length, "group")}, ${many(messages, "message")}. `}
                {!whole && groups.length > most ? <Go to={{ ...here, view: "groups", sub_queue: place ?? undefined }}>{`All ${count(groups.length)} groups`}</Go> : null}
              </Quiet>
            </>
          );
        }}
      </Answered>
    </Section>
  );
}

interface NewProps {
  readonly groups: readonly ErrorGroup[];
  readonly here: { readonly conn_id: string; readonly queue: string };
  readonly place: SubQueue | null;
}

/** The kinds that were not there yesterday, by name. */
function NewKinds({ groups, here, place }: NewProps) {
  if (!groups.length) return null;
  const more = groups.length - NAMED;
  return (
    <Box fontSize="sm" marginBottom="2" overflowWrap="anywhere">
      {`${many(groups.length, "kind is", "kinds are")} new since yesterday: `}
      {groups.slice(0, NAMED).map((group, number) => (
        <span key={group.error}>
          {number ? ", " : ""}
          <Go to={groupPlace(here, place, group)}>{nameOf(group)}</Go>
        </span>
      ))}
      {more > 0 ? ` and ${count(more)} more` : ""}
    </Box>
  );
}
