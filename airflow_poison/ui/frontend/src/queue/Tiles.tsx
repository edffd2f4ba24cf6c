import { Grid, Text } from "@chakra-ui/react";

import { SUB_QUEUES, type Depth, type Queue, type SubQueue } from "../api/types";
import { age, count, due } from "../lib/words";
import { usePage } from "../page/PageContext";

import { Tile } from "./Tile";
import type { View } from "./view";

const ALWAYS: readonly SubQueue[] = ["main", "retry", "poison"];

/** The parts of a queue, as links to them. */
export function Tiles({ queue, view }: { readonly queue: Queue; readonly view: View }) {
  const { connId } = usePage();
  const here = { conn_id: connId, queue: queue.queue };
  const shown = SUB_QUEUES.filter((name) => ALWAYS.includes(name) || queue.sub_queues[name].messages);
  const is = (kind: View["kind"]) => view.kind === kind;
  return (
    <Grid as="nav" templateColumns={{ base: "repeat(auto-fill, minmax(7rem, 1fr))", md: "repeat(auto-fill, minmax(8.5rem, 1fr))" }} gap="1.5" aria-label="Parts of the queue" marginTop="2">
      {shown.map((name) => (
        <Tile
          key={name}
          name={name}
          to={{ ...here, sub_queue: name }}
          current={view.kind === "messages" && view.place === name}
          number={queue.sub_queues[name].messages}
          note={depthInWords(queue.sub_queues[name], queue.at)}
        />
      ))}
      <Tile name="error groups" to={{ ...here, view: "groups" }} current={is("groups") || is("group")} note="why messages failed" />
      <Tile name="plans" to={{ ...here, view: "plans" }} current={is("plans") || is("plan")} note="what people do" />
      <Tile name="events" to={{ ...here, view: "events" }} current={is("events")} note="what has happened" />
      {queue.has_conversations ? (
        <Tile
          name="conversations"
          to={{ ...here, view: "conversations" }}
          current={is("conversations") || is("conversation")}
          number={queue.conversations ?? undefined}
          note={queue.conversations === null ? "too many to count here" : "going on"}
        />
      ) : null}
      <Tile name="policy" to={{ ...here, view: "settings" }} current={is("settings")} note={claimsInWords(queue)}>
        {queue.expired_claims ? <Text color="red.fg" fontSize="xs">{`${count(queue.expired_claims)} expired`}</Text> : null}
      </Tile>
    </Grid>
  );
}

function depthInWords(depth: Depth, now: string): string {
  const words = [
    depth.messages ? `oldest ${age(depth.oldest_enqueued_at, now)}` : "empty",
    depth.claimed ? `${count(depth.claimed)} claimed` : "",
    depth.next_due_at ? `next due ${due(depth.next_due_at, now)}` : "",
  ];
  return words.filter(Boolean).join(", ");
}

function claimsInWords({ claims }: Queue): string {
  return claims.length ? `claims: ${count(claims.length)}` : "and claims: none";
}
