import { Box, Flex, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

import type { Conversation } from "../api/types";
import { age, many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Go } from "../parts/Go";
import { Long } from "../parts/Long";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";

/** What the two sides have said and nobody has taken yet: what has come from the partner at the left, what has not left for it at the right. */
export function Thread({ queue, found }: { readonly queue: string; readonly found: Conversation }) {
  const { connId } = usePage();
  const { conversation: row, messages, more, unsent, far_queue: there, at } = found;
  const held = Object.entries(unsent);
  return (
    <Section title="Messages">
      {held.length && there?.state === "disabled" ? <Note>{`The queue of ${row.far_service} is disabled: what is not sent yet waits here until it is enabled.`}</Note> : null}
      <Flex justify="space-between" gap="4" fontSize="sm" fontWeight="semibold" marginBottom="2" overflowWrap="anywhere">
        <Box minWidth="0">{row.far_service}</Box>
        <Box minWidth="0" textAlign="end">{`${row.service} (this side)`}</Box>
      </Flex>
      {messages.length + held.length ? null : <Quiet>Nothing waits at this side, and all that was said here has left.</Quiet>}
      <Stack as="ol" gap="2" listStyleType="none" padding="0" aria-label="Messages of the conversation">
        {messages.toSorted((one, other) => one.lookup_id - other.lookup_id).map((message) => (
          <Said key={message.lookup_id} by={row.far_service} ours={false}>
            <Text fontWeight="medium" overflowWrap="anywhere">
              {message.message_type ?? "no type"}{" "}
              <Go to={{ conn_id: connId, queue, lookup_id: message.lookup_id }} label={`Message ${message.lookup_id}`}>
                {message.lookup_id}
              </Go>
            </Text>
            <Text color="fg.muted">
              <Time at={message.enqueued_at} />
              {`, waits in ${message.sub_queue} for ${age(message.enqueued_at, at)}${message.abort_count ? `, rolled back ${many(message.abort_count, "time")}` : ""}`}
            </Text>
            {message.reason ? <Long most={300}>{message.reason}</Long> : null}
          </Said>
        ))}
        {held.map(([type, number]) => (
          <Said key={type} by={row.service} ours>
            <Text fontWeight="medium" overflowWrap="anywhere">
              {type}
            </Text>
            <Text color="fg.muted">{`${many(number, "message")}, not sent yet${there?.state === "disabled" ? "" : ": with the next pass of either side"}`}</Text>
          </Said>
        ))}
      </Stack>
      {more ? <Quiet>{`${many(more, "message")} more.`}</Quiet> : null}
    </Section>
  );
}

function Said({ by, ours, children }: { readonly by: string; readonly ours: boolean; readonly children: ReactNode }) {
  return (
    <Box
      as="li"
      aria-label={`from ${by}`}
      alignSelf={ours ? "flex-end" : "flex-start"}
      maxWidth={{ base: "90%", md: "70%" }}
      fontSize="sm"
      borderWidth="1px"
      borderColor="border.emphasized"
      borderRadius="lg"
      padding="2"
      background={ours ? "bg.info" : "bg.subtle"}
    >
      {children}
    </Box>
  );
}
