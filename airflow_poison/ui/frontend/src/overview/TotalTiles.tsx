import { SimpleGrid, Stat } from "@chakra-ui/react";

import type { Totals } from "../api/types";
import { count } from "../lib/words";

/** How much there is in all queues together. */
export function TotalTiles({ totals }: { readonly totals: Totals }) {
  const { queues, halted, outages, messages } = totals;
  const tiles = [
    { name: "queues", number: queues },
    { name: "halted", number: halted, bad: halted > 0 },
    { name: "outages", number: outages, bad: outages > 0 },
    { name: "in main", number: messages.main },
    { name: "in retry", number: messages.retry },
    { name: "in poison", number: messages.poison, bad: messages.poison > 0 },
    ...(messages.postponed ? [{ name: "postponed", number: messages.postponed }] : []),
    ...(messages.transmission ? [{ name: "to be sent", number: messages.transmission }] : []),
  ];
  return (
    <SimpleGrid columns={{ base: 3, md: 6 }} gap="2" role="group" aria-label="Totals">
      {tiles.map(({ name, number, bad }) => (
        <Stat.Root key={name} size="sm" borderWidth="1px" borderRadius="md" padding="2">
          <Stat.Label>{name}</Stat.Label>
          <Stat.ValueText color={bad ? "red.fg" : undefined} fontVariantNumeric="tabular-nums" overflowWrap="anywhere" minWidth="0">
            {count(number)}
          </Stat.ValueText>
        </Stat.Root>
      ))}
    </SimpleGrid>
  );
}
