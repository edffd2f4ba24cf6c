import { Button, HStack, Link, Text } from "@chakra-ui/react";
import { useState } from "react";

import type { Decision, Decisions as Found } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { DecideDialog } from "../actions/DecideDialog";
import { safeUrl } from "../lib/url";
import { usePage } from "../page/PageContext";
import { Code } from "../parts/Code";
import { Note } from "../parts/Note";

/** Required actions of this queue that wait for somebody, as Airflow's human-in-the-loop has them. */
export function Decisions({ queue }: { readonly queue: string }) {
  const { found } = useAnswer<Found>("decisions", { queue });
  return found?.decisions.map((decision) => <Pending key={`${decision.run_id} ${decision.task_id} ${decision.map_index}`} decision={decision} />);
}

function Pending({ decision }: { readonly decision: Decision }) {
  const { rights } = usePage();
  const [option, setOption] = useState<string | null>(null);
  const url = safeUrl(decision.url);
  return (
    <Note status="warning" title={`Somebody must decide: ${decision.subject}`}>
      {decision.body ? (
        <Code label="What is asked" height="10rem">
          {decision.body}
        </Code>
      ) : null}
      <Text as="span" display="block" fontSize="sm">
        Task {decision.task_id} of {decision.dag_id}, run {decision.run_id}.{" "}
        {url ? (
          <Link href={url} color="blue.fg" textDecoration="underline">
            Open it in Airflow
          </Link>
        ) : null}
      </Text>
      {rights.act ? (
        <HStack as="span" wrap="wrap" marginTop="2">
          {decision.options.map((each) => (
            <Button
              key={each}
              size="xs"
              variant="outline"
              onClick={() => {
                setOption(each);
              }}
            >
              {each}
            </Button>
          ))}
        </HStack>
      ) : null}
      {option === null ? null : (
        <DecideDialog
          decision={decision}
          option={option}
          onClose={() => {
            setOption(null);
          }}
        />
      )}
    </Note>
  );
}
