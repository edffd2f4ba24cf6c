import { Box, Flex, Text } from "@chakra-ui/react";

import type { Canary, CanarySeen } from "../api/plans";
import { count, many, percent } from "../lib/words";

import { PlanGroups } from "./PlanGroups";

/** How the messages of a canary fare: settled, failed again and by which errors, or still to be received. */
export function CanaryProgress({ canary, seen }: { readonly canary: Canary; readonly seen: CanarySeen }) {
  const all = seen.settled + seen.failed + seen.waiting;
  const parts = [
    { name: "settled", number: seen.settled, color: "green.solid" },
    { name: "failed again", number: seen.failed, color: "red.solid" },
    { name: "waiting", number: seen.waiting, color: "bg.emphasized" },
  ];
  const told = `Canary: of ${many(all, "message")}, ${count(seen.settled)} settled, ${count(seen.failed)} failed again, ${count(seen.waiting)} still to be received or tried again.`;
  return (
    <Box marginBottom="4">
      <Flex height="3" borderRadius="sm" overflow="hidden" borderWidth="1px" borderColor="border.emphasized" role="img" aria-label={told}>
        {parts.map(({ name, number, color }) => (number ? <Box key={name} title={`${count(number)} ${name}`} background={color} flexGrow={number} /> : null))}
      </Flex>
      <Text fontSize="sm" marginTop="1" role="status" fontVariantNumeric="tabular-nums">
        {`${told} The others follow when ${percent(canary.share)} (${count(Math.ceil(canary.share * all))}) are settled.`}
      </Text>
      {seen.errors.length ? (
        <Box marginTop="2">
          <PlanGroups groups={seen.errors} caption="Errors of the canary" />
        </Box>
      ) : null}
    </Box>
  );
}
