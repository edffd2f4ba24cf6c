import { Text } from "@chakra-ui/react";

import { usePage } from "../page/PageContext";

import { Go } from "./Go";
import { Timed } from "./Timed";
import { Who } from "./Who";

const TOLD = 300;

/** What an event says besides its time: who acted and why first, the plan as a link, then all else. */
export function Details({ queue, details }: { readonly queue: string; readonly details: Readonly<Record<string, string>> }) {
  const { connId } = usePage();
  const { who, why, plan, ...others } = details;
  const alone = who ? {} : { why };
  const told = Object.entries({ ...alone, ...others }).filter(([, value]) => value);
  return (
    <>
      {who ? (
        <Text as="span" display="block">
          by <Who who={who} />
          {why ? `: ${why}` : ""}
        </Text>
      ) : null}
      {plan ? (
        <>
          plan <Go to={{ conn_id: connId, queue, view: "plans", plan }}>{plan}</Go>
          {told.length ? ", " : ""}
        </>
      ) : null}
      <Timed most={TOLD}>{told.map(([name, value]) => `${name}: ${value}`).join(", ")}</Timed>
    </>
  );
}
