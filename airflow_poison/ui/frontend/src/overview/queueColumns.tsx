import { Flex } from "@chakra-ui/react";

import type { Instant, Queue, SubQueue } from "../api/types";
import { newPoison, stateOf } from "../lib/state";
import { age, count, due } from "../lib/words";
import type { Column } from "../parts/column";
import { Go } from "../parts/Go";
import { Sparkline } from "../parts/Sparkline";
import { StateBadge } from "../parts/StateBadge";

export function queueColumns(connId: string, now: Instant): Column<Queue>[] {
  const depth = (place: SubQueue): Column<Queue> => ({
    key: place,
    title: place,
    numeric: true,
    sort: place,
    cell: ({ queue, sub_queues: depths }) => (
      <Go to={{ conn_id: connId, queue, sub_queue: place }} label={`${count(depths[place].messages)} in ${place} of ${queue}`}>
        {count(depths[place].messages)}
      </Go>
    ),
  });
  return [
    { key: "queue", title: "Queue", sort: "queue", wide: true, cell: ({ queue }) => <Go to={{ conn_id: connId, queue }}>{queue}</Go> },
    { key: "state", title: "State", sort: "needs", cell: (queue) => <StateBadge state={stateOf(queue)} /> },
    depth("main"),
    depth("retry"),
    depth("poison"),
    { key: "new", title: "new in 24 h", numeric: true, sort: "new", cell: (queue) => count(newPoison(queue) ?? 0) },
    {
      key: "trend",
      title: "24 hours: poison, settled",
      cell: ({ trend }) =>
        trend ? (
          <Flex gap="2" wrap={{ base: "wrap", md: "nowrap" }}>
            <Sparkline label={`poison in ${trend.hours} hours`} values={trend.poison} />
            <Sparkline label={`settled in ${trend.hours} hours`} values={trend.settled} color="green.fg" />
          </Flex>
        ) : null,
    },
    { key: "oldest", title: "Oldest", sort: "oldest", cell: (queue) => age(queue.oldest_enqueued_at, now) },
    { key: "due", title: "Next due", sort: "due", cell: (queue) => due(queue.next_due_at, now) },
    { key: "rules", title: "Rules of", cell: ({ policy }) => (typeof policy["system"] === "string" ? policy["system"] : "") },
  ];
}
