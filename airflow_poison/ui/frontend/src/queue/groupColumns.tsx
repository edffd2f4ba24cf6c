import { Badge, Text } from "@chakra-ui/react";

import type { ErrorGroup, SubQueue } from "../api/types";
import { ActionButtons } from "../actions/ActionButtons";
import { OF_MANY } from "../actions/verbs";
import { EVERYWHERE, selectionOf } from "../lib/selection";
import { count, percent } from "../lib/words";
import type { Column } from "../parts/column";
import { Go, type To } from "../parts/Go";
import { Sparkline } from "../parts/Sparkline";
import { Time } from "../parts/Time";

interface Here {
  readonly conn_id: string;
  readonly queue: string;
}

const SHOWN = 300; // characters; the page of the group has all

export function nameOf({ type, kind, error }: ErrorGroup): string {
  return (type || kind || error || "no failure").slice(0, SHOWN);
}

/** The address of a group's page. */
export function groupPlace(here: Here, place: SubQueue | null, { error }: ErrorGroup): To {
  return { ...here, view: "group", sub_queue: place ?? EVERYWHERE, error };
}

export function groupColumns(here: Here, place: SubQueue | null, mayAct: boolean): Column<ErrorGroup>[] {
  const acting: Column<ErrorGroup> = {
    key: "act",
    title: "Actions",
    cell: ({ error, type }) =>
      error ? <ActionButtons queue={here.queue} selection={selectionOf(place, { error })} verbs={OF_MANY} about={`group ${type} ${error}`} first={1} /> : null,
  };
  return [
    {
      key: "error",
      title: "Error",
      wide: true,
      sort: "error",
      cell: (group) => (
        <>
          {group.error ? <Go to={groupPlace(here, place, group)}>{nameOf(group)}</Go> : "no failure" /* a selection by no group would be one of all messages */}
          {group.new ? (
            <Badge marginStart="2" colorPalette="purple" variant="surface">
              new
            </Badge>
          ) : null}
          <Text as="span" maxWidth="40rem" overflowWrap="anywhere" display="block" fontWeight="normal" fontSize="sm" color="fg.muted" lineClamp={3}>
            {group.text.slice(0, SHOWN)}
          </Text>
        </>
      ),
    },
    { key: "messages", title: "Messages", numeric: true, sort: "messages", cell: ({ messages }) => count(messages) },
    { key: "share", title: "Share", numeric: true, cell: ({ share }) => percent(share) },
    { key: "trend", title: "Trend", cell: ({ trend, type }) => <Sparkline label={`messages of ${type} from first to last`} values={trend} /> },
    { key: "first", title: "First seen", sort: "first", cell: ({ first_seen: at }) => <Time at={at} /> },
    { key: "last", title: "Last seen", sort: "last", cell: ({ last_seen: at }) => <Time at={at} /> },
    ...(mayAct ? [acting] : []),
  ];
}
