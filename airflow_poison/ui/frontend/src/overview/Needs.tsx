import { Badge, Box, Button, Flex, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { NeedKind, Queue } from "../api/types";
import { many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Go } from "../parts/Go";
import { Long } from "../parts/Long";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

import { needing } from "./order";

const AT_FIRST = 8;
const KINDS: Readonly<Record<NeedKind, { readonly word: string; readonly color: string }>> = {
  halted: { word: "halted", color: "red" },
  outage: { word: "outage", color: "red" },
  poison_growing: { word: "poison grows", color: "orange" },
  overdue: { word: "overdue", color: "orange" },
  expired_claim: { word: "pass has died", color: "gray" },
};

/** Queues that need somebody, the most urgent one first. */
export function Needs({ queues }: { readonly queues: readonly Queue[] }) {
  const { connId } = usePage();
  const [all, setAll] = useState(false);
  const found = needing(queues);
  const shown = all ? found : found.slice(0, AT_FIRST);
  return (
    <Section title={found.length ? `${many(found.length, "queue needs", "queues need")} somebody` : "Needs somebody"}>
      {found.length ? (
        <Stack as="ul" gap="1.5" listStyleType="none" margin="0" padding="0" aria-label="Queues that need somebody">
          {shown.map((queue) => (
            <Flex as="li" key={queue.queue} wrap="wrap" columnGap="3" rowGap="1" borderWidth="1px" borderRadius="md" padding="2">
              <Box fontWeight="semibold" minWidth="8rem">
                <Go to={{ conn_id: connId, queue: queue.queue }}>{queue.queue}</Go>
              </Box>
              <Stack gap="1" flex="1" minWidth="14rem">
                {(queue.needs ?? []).map(({ kind, text }) => (
                  <Flex key={`${kind} ${text}`} gap="2" align="flex-start">
                    <Badge colorPalette={KINDS[kind].color} variant="surface" flexShrink="0">
                      {KINDS[kind].word}
                    </Badge>
                    <Text fontSize="sm" overflowWrap="anywhere" minWidth="0">
                      <Long most={300}>{text}</Long>
                    </Text>
                  </Flex>
                ))}
              </Stack>
            </Flex>
          ))}
        </Stack>
      ) : (
        <Quiet>Nothing needs anybody: no queue is halted, none has an outage, no poison grows, nothing is overdue.</Quiet>
      )}
      {found.length > AT_FIRST ? (
        <Button
          size="xs"
          variant="outline"
          marginTop="2"
          aria-expanded={all}
          onClick={() => {
            setAll(!all);
          }}
        >
          {all ? "Show fewer" : `Show all ${found.length}`}
        </Button>
      ) : null}
    </Section>
  );
}
