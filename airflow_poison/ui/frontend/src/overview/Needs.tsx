import { Badge, Box, Button, Flex, Stack } from "@chakra-ui/react";
import { useState } from "react";

import type { Decisions, Need, NeedKind, Queue } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Go, type To } from "../parts/Go";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Timed } from "../parts/Timed";

import { needing } from "./order";

const AT_FIRST = 8;
const KINDS: Readonly<Record<NeedKind, { readonly word: string; readonly color: string }>> = {
  halted: { word: "halted", color: "red" },
  outage: { word: "outage", color: "red" },
  question: { word: "question", color: "purple" },
  plan: { word: "plan", color: "orange" },
  poison_growing: { word: "poison grows", color: "orange" },
  poison: { word: "poison", color: "orange" },
  overdue: { word: "overdue", color: "orange" },
  expired_claim: { word: "pass has died", color: "gray" },
  plan_at_work: { word: "plan", color: "blue" },
};

/** Where a need is dealt with; a click on the queue's name opens what is worst. */
function placeOf({ kind, plan }: Need): To {
  if (plan) return { view: "plans", plan };
  if (kind === "poison" || kind === "poison_growing") return { view: "groups", sub_queue: "poison" };
  if (kind === "overdue") return { sub_queue: "retry" };
  return kind === "expired_claim" ? { view: "settings" } : {};
}

/** What needs a person: halted queues, outages, questions, plans, poison that nobody has dealt with. The most urgent queue is first. */
export function Needs({ queues }: { readonly queues: readonly Queue[] }) {
  const { connId } = usePage();
  const [all, setAll] = useState(false);
  const asked = useAnswer<Decisions>("decisions", {});
  const found = needing(queues, asked.found?.decisions ?? []);
  const shown = all ? found : found.slice(0, AT_FIRST);
  return (
    <Section title={found.length ? `${many(found.length, "queue needs", "queues need")} attention` : "Needs attention"}>
      {asked.error === undefined ? null : <Note status="warning">{`Questions about queues cannot be read: ${asked.error}`}</Note>}
      {found.length ? (
        <Stack as="ul" gap="0" listStyleType="none" margin="0" padding="0" borderWidth="1px" borderColor="border.emphasized" borderRadius="md" aria-label="Queues that need attention">
          {shown.map(({ queue, needs }) => (
            <Flex as="li" key={queue.queue} direction={{ base: "column", md: "row" }} columnGap="3" rowGap="1" padding="2" borderTopWidth="1px" borderColor="border.emphasized" _first={{ borderTopWidth: 0 }}>
              <Box fontWeight="semibold" width={{ base: "full", md: "14rem" }} flexShrink="0">
                <Go to={{ conn_id: connId, queue: queue.queue }}>{queue.queue}</Go>
              </Box>
              <Stack gap="1" flex="1" minWidth="0">
                {needs.map((need) => (
                  <Flex key={`${need.kind} ${need.text}`} gap="2" align="flex-start">
                    <Badge colorPalette={KINDS[need.kind].color} variant="surface" flexShrink="0" minWidth="6.5rem" justifyContent="center">
                      {KINDS[need.kind].word}
                    </Badge>
                    <Box fontSize="sm" overflowWrap="anywhere" minWidth="0">
                      <Go to={{ conn_id: connId, queue: queue.queue, ...placeOf(need) }} quiet>
                        <Timed>{need.text}</Timed>
                      </Go>
                    </Box>
                  </Flex>
                ))}
              </Stack>
            </Flex>
          ))}
        </Stack>
      ) : (
        <Quiet>Nothing needs anybody: no queue is halted, none has an outage, no question waits, no plan is open, there is no poison, nothing is overdue.</Quiet>
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
