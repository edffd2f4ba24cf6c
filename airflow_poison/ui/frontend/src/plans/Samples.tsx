import { Box, Stack, Text } from "@chakra-ui/react";

import type { PlanSample } from "../api/plans";
import { pretty } from "../lib/body";
import { Diff } from "../parts/Diff";
import { Long } from "../parts/Long";
import { Quiet } from "../parts/Quiet";

/** Some messages of a plan, and for an edit what changes in them. */
export function Samples({ samples }: { readonly samples: readonly PlanSample[] }) {
  if (!samples.length) return null;
  return (
    <Stack gap="2" role="group" aria-label="Samples">
      <Text fontWeight="semibold" fontSize="sm">
        Samples
      </Text>
      {samples.map((sample) => (
        <Box key={sample.lookup_id} borderWidth="1px" borderRadius="md" padding="2">
          <Text fontSize="sm" overflowWrap="anywhere">
            <Long>{`Message ${sample.lookup_id} in ${sample.sub_queue}${sample.reason ? `: ${sample.reason}` : ""}`}</Long>
          </Text>
          {sample.unfit ? <Quiet>{`It stays as it is: ${sample.unfit}`}</Quiet> : null}
          {sample.before !== null && sample.after !== null ? (
            <Diff label={`Difference of message ${sample.lookup_id}`} before={pretty(sample.before) ?? sample.before} after={pretty(sample.after) ?? sample.after} />
          ) : null}
        </Box>
      ))}
    </Stack>
  );
}
