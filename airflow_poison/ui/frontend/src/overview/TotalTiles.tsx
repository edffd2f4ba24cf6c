import { Flex, Text } from "@chakra-ui/react";

import type { Queue, Totals } from "../api/types";
import { newPoison } from "../lib/state";
import { count } from "../lib/words";

/** How much there is in all queues together, in one line. */
export function TotalTiles({ totals, queues }: { readonly totals: Totals; readonly queues: readonly Queue[] }) {
  const { halted, outages, messages } = totals;
  const fresh = queues.reduce((sum, queue) => sum + (newPoison(queue) ?? 0), 0);
  const tiles = [
    { name: totals.queues === 1 ? "queue" : "queues", number: totals.queues },
    { name: "halted", number: halted, bad: halted > 0 },
    { name: outages === 1 ? "outage" : "outages", number: outages, bad: outages > 0 },
    { name: "in main", number: messages.main },
    { name: "in retry", number: messages.retry },
    { name: "in poison", number: messages.poison },
    { name: "new poison since yesterday", number: fresh },
    ...(messages.postponed ? [{ name: "postponed", number: messages.postponed }] : []),
    ...(messages.transmission ? [{ name: "to be sent", number: messages.transmission }] : []),
  ];
  return (
    <Flex wrap="wrap" columnGap="5" rowGap="1" marginTop="4" role="group" aria-label="Totals">
      {tiles.map(({ name, number, bad }) => (
        <Text key={name} fontSize="sm" color="fg.muted">
          <Text as="strong" color={bad ? "red.fg" : "fg"} fontVariantNumeric="tabular-nums">
            {count(number)}
          </Text>{" "}
          {name}
        </Text>
      ))}
    </Flex>
  );
}
