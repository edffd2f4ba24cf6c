import { Box, Button, Flex, Link, Stack, Text } from "@chakra-ui/react";
import { useEffect, useMemo, useState } from "react";

import { questionOf } from "../api/question";
import type { Decision, Decisions as Found, Queue } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { DecideDialog } from "../actions/DecideDialog";
import { explained } from "../lib/markdown";
import { stateOf } from "../lib/state";
import { safeUrl } from "../lib/url";
import { usePage } from "../page/PageContext";
import { Line, Markdown } from "../parts/Markdown";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";
import { Time } from "../parts/Time";

const LOOK_MILLISECONDS = 2_000;
/** What somebody has answered here, by connection and queue: it outlives the page that Airflow makes anew. */
const answered = new Map<string, string>();

/** Questions about this queue that wait for somebody, and after an answer what becomes of the queue. */
export function Decisions({ queue }: { readonly queue: Queue }) {
  const { connId } = usePage();
  const key = `${connId} ${queue.queue}`;
  const { found, error } = useAnswer<Found>("decisions", { queue: queue.queue });
  const [given, setGiven] = useState(answered.get(key) ?? null);
  const tell = (option: string | null) => {
    if (option === null) answered.delete(key);
    else answered.set(key, option);
    setGiven(option);
  };
  return (
    <>
      {error === undefined ? null : <Note status="warning">{`Questions about this queue cannot be read: ${error}`}</Note>}
      {given === null ? null : (
        <Given
          option={given}
          queue={queue}
          onSeen={() => {
            tell(null);
          }}
        />
      )}
      {found?.decisions.map((decision) => <Pending key={`${decision.run_id} ${decision.task_id} ${decision.map_index}`} decision={decision} onAnswered={tell} />)}
    </>
  );
}

interface GivenProps {
  readonly option: string;
  readonly queue: Queue;
  readonly onSeen: () => void;
}

/** An answer that was given: how the queue is since, looked at every two seconds until it is enabled. */
function Given({ option, queue, onSeen }: GivenProps) {
  const { connId } = usePage();
  const state = stateOf(queue);
  const waits = state !== "enabled";
  useEffect(() => {
    if (!waits) return undefined;
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") void questionOf<Queue>("queue", { conn_id: connId, queue: queue.queue }).ask();
    }, LOOK_MILLISECONDS);
    return () => {
      clearInterval(timer);
    };
  }, [waits, connId, queue.queue]);
  return (
    <Note status={waits ? "info" : "success"} title={`Answered: ${option}`}>
      {waits ? `Airflow goes on with the task, which carries the answer out. The queue is ${state} now; this is looked at every two seconds. ` : "The queue is enabled. "}
      <Button size="2xs" variant="outline" onClick={onSeen}>
        {waits ? "Do not wait" : "Close"}
      </Button>
    </Note>
  );
}

interface PendingProps {
  readonly decision: Decision;
  readonly onAnswered: (option: string) => void;
}

function Pending({ decision, onAnswered }: PendingProps) {
  const { rights } = usePage();
  const [option, setOption] = useState<string | null>(null);
  const url = safeUrl(decision.url);
  const { blocks, meanings } = useMemo(() => explained(decision.body ?? "", decision.options), [decision]);
  const mayAnswer = rights.act && decision.may_answer !== false;
  return (
    <Box as="section" aria-label={`Question: ${decision.subject}`} borderWidth="1px" borderColor="border.emphasized" borderStartWidth="4px" borderStartColor="purple.solid" borderRadius="md" padding="3" marginBottom="3">
      <Text fontWeight="semibold" overflowWrap="anywhere">
        {`A decision is needed: ${decision.subject}`}
      </Text>
      <Text fontSize="sm" color="fg.muted" marginBottom="2" overflowWrap="anywhere">
        {`Task ${decision.task_id} of ${decision.dag_id}, run ${decision.run_id}`}
        {decision.at ? (
          <>
            , asked <Time at={decision.at} />
          </>
        ) : null}
        .{" "}
        {url ? (
          <Link href={url} color="blue.fg" textDecoration="underline">
            Open it in Airflow
          </Link>
        ) : null}
      </Text>
      <Stack as="ul" gap="1.5" listStyleType="none" padding="0" marginBottom="3" aria-label="Answers">
        {decision.options.map((each) => (
          <Flex as="li" key={each} columnGap="3" rowGap="0.5" align={{ base: "stretch", md: "center" }} direction={{ base: "column", md: "row" }}>
            {mayAnswer ? (
              <Button
                size="xs"
                variant="outline"
                flexShrink="0"
                height="auto"
                paddingY="1.5"
                whiteSpace="normal"
                aria-haspopup="dialog"
                onClick={() => {
                  setOption(each);
                }}
              >
                {each}
              </Button>
            ) : (
              <Text fontSize="sm" fontWeight="medium">
                {each}
              </Text>
            )}
            <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere" minWidth="0">
              <Line>{meanings.get(each) ?? ""}</Line>
            </Text>
          </Flex>
        ))}
      </Stack>
      {mayAnswer ? null : <Quiet>You may not answer it: that takes the right to act on the queue, and to answer required actions of the DAG.</Quiet>}
      <Markdown blocks={blocks} />
      {option === null ? null : (
        <DecideDialog
          decision={decision}
          option={option}
          meaning={meanings.get(option) ?? ""}
          onAnswered={() => {
            onAnswered(option);
          }}
          onClose={() => {
            setOption(null);
          }}
        />
      )}
    </Box>
  );
}
