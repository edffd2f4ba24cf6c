import { Box, Flex, HStack, Text } from "@chakra-ui/react";

import type { Events as Found, QueueEvent } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { count, many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { usePlace } from "../page/usePlace";
import { Answered } from "../parts/Answered";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Details } from "../parts/Details";
import { Go } from "../parts/Go";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { SelectField } from "../parts/SelectField";
import { TaskLinks } from "../parts/TaskLinks";
import { Time } from "../parts/Time";
import { Who } from "../parts/Who";

import { eventGroups, type By, type EventGroup } from "./eventGroups";

const WAYS: readonly { readonly value: By; readonly label: string }[] = [
  { value: "run", label: "by run, plan or person" },
  { value: "message", label: "by message" },
  { value: "time", label: "one after the other" },
];

/** The newest events of a queue, the newest first: by who has acted, by message, or one after the other. */
export function Events({ queue }: { readonly queue: string }) {
  const { query, change } = usePlace();
  const answer = useAnswer<Found>("events", { queue });
  const by = WAYS.find(({ value }) => value === query.get("by"))?.value ?? "run";
  return (
    <Section
      title="Events"
      actions={
        <SelectField
          label="Shown"
          value={by}
          options={WAYS}
          onChange={(way) => {
            change({ by: way }, { replace: true });
          }}
        />
      }
    >
      <Answered answer={answer}>
        {(found) =>
          found.events.length ? (
            <>
              {eventGroups(found.events, by).map((group) => (
                <Box key={group.key} marginBottom="4">
                  {by === "time" ? null : <GroupTitle queue={queue} group={group} />}
                  <EventTable queue={queue} group={group} by={by} />
                </Box>
              ))}
              {found.earlier ? <Quiet>{`${count(found.earlier)} earlier ones: airflow poison history shows them.`}</Quiet> : null}
            </>
          ) : (
            <Quiet>Nothing is recorded.</Quiet>
          )
        }
      </Answered>
    </Section>
  );
}

function GroupTitle({ queue, group }: { readonly queue: string; readonly group: EventGroup }) {
  const { connId } = usePage();
  const { who, plan, message, links, events, key } = group;
  const here = { conn_id: connId, queue };
  return (
    <Flex wrap="wrap" columnGap="3" align="baseline" marginBottom="1" fontSize="sm" overflowWrap="anywhere">
      <Text as="h3" fontWeight="semibold">
        {key === "queue" ? "The queue itself" : null}
        {message === null ? null : <Go to={{ ...here, lookup_id: message }}>{`Message ${message}`}</Go>}
        {plan === null ? null : (
          <>
            Plan <Go to={{ ...here, view: "plans", plan }}>{plan}</Go>
          </>
        )}
        {message === null && key !== "queue" && plan === null ? who ? <Who who={who} /> : "No actor is recorded" : null}
      </Text>
      <Text color="fg.muted">
        {many(events.length, "event")}, last <Time at={events[0]?.at} />
      </Text>
      {message === null ? (
        <HStack>
          <TaskLinks links={links} about={who ?? ""} />
        </HStack>
      ) : null}
    </Flex>
  );
}

function EventTable({ queue, group, by }: { readonly queue: string; readonly group: EventGroup; readonly by: By }) {
  const { connId } = usePage();
  const columns: Column<QueueEvent>[] = [
    { key: "at", title: "Time", cell: ({ at }) => <Time at={at} /> },
    { key: "event", title: "Event", cell: ({ event }) => event },
    {
      key: "message",
      title: "Message",
      cell: ({ lookup_id: id }) =>
        id === null ? null : (
          <Go to={{ conn_id: connId, queue, lookup_id: id }} label={`Message ${id}`}>
            {id}
          </Go>
        ),
    },
    { key: "aborts", title: "Aborts", numeric: true, cell: (event) => (event.lookup_id === null ? "" : count(event.abort_count)) },
    { key: "moves", title: "Moves", numeric: true, cell: (event) => (event.lookup_id === null ? "" : count(event.move_count)) },
    { key: "details", title: "Details", wide: true, cell: ({ details }) => <Details queue={queue} details={by === "run" ? withoutTitle(details) : details} /> },
    { key: "links", title: "In Airflow", cell: ({ links, event, at }) => <TaskLinks links={links} about={`${event} at ${at}`} /> },
  ];
  const hidden = by === "message" ? "message" : by === "run" ? "links" : "";
  return <DataTable caption={by === "time" ? "Events" : `Events ${group.key}`} columns={columns.filter(({ key }) => key !== hidden)} rows={group.events} rowKey={keyOf} />;
}

/** Details without what the title of their group says. */
function withoutTitle(details: QueueEvent["details"]): QueueEvent["details"] {
  return Object.fromEntries(Object.entries(details).filter(([name]) => name !== "who" && name !== "plan"));
}

function keyOf({ at, event, lookup_id: id, abort_count: aborts, move_count: moves }: QueueEvent): string {
  return [at, event, id, aborts, moves].join(" ");
}
