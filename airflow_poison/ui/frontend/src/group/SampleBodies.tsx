import { Box, Button, Grid, HStack, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { WholeMessage } from "../api/types";
import { bytesOf, hexDump, pretty } from "../lib/body";
import { count, many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Code } from "../parts/Code";
import { EditedBadge } from "../parts/EditedBadge";
import { Go } from "../parts/Go";
import { Section } from "../parts/Section";

/** Some messages of a group, one at a time: why it failed beside its body. */
export function SampleBodies({ queue, samples }: { readonly queue: string; readonly samples: readonly WholeMessage[] }) {
  const { connId } = usePage();
  const [wanted, setWanted] = useState<number | null>(null);
  const sample = samples.find(({ lookup_id: id }) => id === wanted) ?? samples[0];
  if (!sample) return null;
  const failed = sample.last_error?.trace ?? sample.reason ?? "It has no failure.";
  return (
    <Section title={many(samples.length, "sample")}>
      <HStack wrap="wrap" gap="1.5" marginBottom="2" role="group" aria-label="Samples">
        {samples.map(({ lookup_id: id }) => (
          <Button
            key={id}
            size="xs"
            variant={id === sample.lookup_id ? "solid" : "outline"}
            aria-pressed={id === sample.lookup_id}
            onClick={() => {
              setWanted(id);
            }}
          >
            {id}
          </Button>
        ))}
      </HStack>
      <Grid templateColumns={{ base: "minmax(0, 1fr)", lg: "minmax(0, 1fr) minmax(0, 1fr)" }} gap="3">
        <Box>
          <Text fontSize="sm" marginBottom="1">
            Its failure
          </Text>
          <Code label="Failure of the sample" height="22rem">
            {failed}
          </Code>
        </Box>
        <Box>
          <HStack fontSize="sm" marginBottom="1">
            <Go to={{ conn_id: connId, queue, lookup_id: sample.lookup_id }}>{`Message ${sample.lookup_id}`}</Go>
            <span>{`${many(sample.body_bytes, "byte")}${sample.body_cut ? `, the first ${count(sample.body.length)} of them` : ""}`}</span>
            {sample.edited ? <EditedBadge /> : null}
          </HStack>
          <SampleBody key={sample.lookup_id} sample={sample} />
        </Box>
      </Grid>
    </Section>
  );
}

function SampleBody({ sample }: { readonly sample: WholeMessage }) {
  const [shown] = useState(() => (sample.body_encoding === "base64" ? hexDump(bytesOf(sample)) : (pretty(sample.body) ?? sample.body)));
  return (
    <Code label="Body of the sample" height="22rem">
      {shown}
    </Code>
  );
}
