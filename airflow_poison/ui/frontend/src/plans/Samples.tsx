import { Box, Stack, Text } from "@chakra-ui/react";

import { useMemo } from "react";

import type { Sample } from "../api/plans";
import { pretty } from "../lib/body";
import { Diff } from "../parts/Diff";
import { Long } from "../parts/Long";
import { Quiet } from "../parts/Quiet";

/** Some messages of a plan, and for an edit what changes in them. */
export function Samples({ samples }: { readonly samples: readonly Sample[] }) {
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
          {typeof sample.before === "string" && typeof sample.after === "string" ? (
            <Change id={sample.lookup_id} before={sample.before} after={sample.after} />
          ) : null}
        </Box>
      ))}
    </Stack>
  );
}

/** What an edit changes in a body, both laid out once. */
function Change({ id, before, after }: { readonly id: number; readonly before: string; readonly after: string }) {
  const laidOut = useMemo(() => [before, after].map((text) => pretty(text) ?? text), [before, after]);
  return <Diff label={`Difference of message ${id}`} before={laidOut[0] ?? before} after={laidOut[1] ?? after} />;
}
