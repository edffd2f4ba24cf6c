import { Text } from "@chakra-ui/react";

import type { ErrorGroup, SubQueue } from "../api/types";
import { ActionButtons } from "../actions/ActionButtons";
import { EVERYWHERE, selectionOf } from "../lib/selection";
import { count, percent } from "../lib/words";
import type { Column } from "../parts/column";
import { Go } from "../parts/Go";
import { Sparkline } from "../parts/Sparkline";
import { Time } from "../parts/Time";

interface Here {
  readonly conn_id: string;
  readonly queue: string;
}

const SHOWN = 300; // characters; the messages of the group have all

export function groupColumns(here: Here, place: SubQueue | null, mayAct: boolean): Column<ErrorGroup>[] {
  const acting: Column<ErrorGroup> = {
    key: "act",
    title: "Actions",
    cell: ({ error, type }) =>
      error ? <ActionButtons queue={here.queue} selection={selectionOf(place, { error })} verbs={["redrive", "remove"]} about={`group ${type} ${error}`} nowrap /> : null,
  };
  return [
    {
      key: "error",
      title: "Error",
      wide: true,
      cell: ({ error, kind, type, text }) => (
        <>
          {error ? (
            <Go to={{ ...here, sub_queue: place ?? EVERYWHERE, selection: JSON.stringify({ error }) }}>{(type || kind || error).slice(0, SHOWN)}</Go>
          ) : (
            "no failure" // a selection by no group would be one of all messages
          )}
          <Text as="span" maxWidth="40rem" overflowWrap="anywhere" display="block" fontWeight="normal" fontSize="sm" color="fg.muted" lineClamp={3}>
            {text.slice(0, SHOWN)}
          </Text>
        </>
      ),
    },
    { key: "messages", title: "Messages", numeric: true, cell: ({ messages }) => count(messages) },
    { key: "share", title: "Share", numeric: true, cell: ({ share }) => percent(share) },
    { key: "trend", title: "Trend", cell: ({ trend, type }) => <Sparkline label={`messages of ${type} from first to last`} values={trend} /> },
    { key: "first", title: "First seen", cell: ({ first_seen: at }) => <Time at={at} /> },
    { key: "last", title: "Last seen", cell: ({ last_seen: at }) => <Time at={at} /> },
    {
      key: "sample",
      title: "Sample",
      cell: ({ sample }) => (sample === null ? null : <Go to={{ ...here, lookup_id: sample }} label={`Message ${sample}`}>{sample}</Go>),
    },
    ...(mayAct ? [acting] : []),
  ];
}
