import { Button, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { Queue } from "../api/types";
import { SwitchDialog } from "../actions/SwitchDialog";
import { stateOf } from "../lib/state";
import { plain } from "../lib/words";
import { usePage } from "../page/PageContext";
import { StateBadge } from "../parts/StateBadge";

/** The state of a queue, whose rules it follows, and the button that enables or disables it. */
export function QueueHeader({ queue }: { readonly queue: Queue }) {
  const { rights } = usePage();
  const [asking, setAsking] = useState(false);
  const enabled = queue.state === "enabled";
  return (
    <>
      <StateBadge state={stateOf(queue)} />
      <Text color="fg.muted" fontSize="sm">
        rules of {queue.policy["system"] ? plain(queue.policy["system"]) : "no system"}
      </Text>
      {rights.act ? (
        <Button
          size="xs"
          variant="outline"
          onClick={() => {
            setAsking(true);
          }}
        >
          {enabled ? "Disable …" : "Enable …"}
        </Button>
      ) : null}
      {asking ? (
        <SwitchDialog
          queue={queue.queue}
          enable={!enabled}
          onClose={() => {
            setAsking(false);
          }}
        />
      ) : null}
    </>
  );
}
