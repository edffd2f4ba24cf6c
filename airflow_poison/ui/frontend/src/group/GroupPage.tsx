import { HStack } from "@chakra-ui/react";

import type { ErrorGroup, Groups as Found, Samples, SubQueue } from "../api/types";
import { useAnswer } from "../api/useAnswer";
import { ActionButtons } from "../actions/ActionButtons";
import { OF_MANY } from "../actions/verbs";
import { EVERYWHERE, selectionOf } from "../lib/selection";
import { count, many, percent } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Answered } from "../parts/Answered";
import { Boundary } from "../parts/Boundary";
import { Facts } from "../parts/Facts";
import { Go } from "../parts/Go";
import { Long } from "../parts/Long";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Sparkline } from "../parts/Sparkline";
import { Time } from "../parts/Time";
import { EVERY } from "../queue/Groups";

import { EditBench } from "./EditBench";
import { SampleBodies } from "./SampleBodies";

interface Props {
  readonly queue: string;
  readonly place: SubQueue | null;
  readonly error: string;
}

/** One kind of error: how many messages have it and since when, bodies beside the error, an edit beside its result, and every action. */
export function GroupPage({ queue, place, error }: Props) {
  const { connId, rights } = usePage();
  const here = { conn_id: connId, queue };
  const selection = selectionOf(place, { error });
  const groups = useAnswer<Found>("groups", { queue, selection: JSON.stringify({ sub_queue: place }) }, EVERY);
  const samples = useAnswer<Samples>("samples", { queue, selection: JSON.stringify(selection) }, EVERY);
  const group = groups.found?.groups.find((each) => each.error === error);
  return (
    <Section
      title={group ? group.type || group.kind || error : `Error group ${error}`}
      actions={rights.act && group ? <ActionButtons queue={queue} selection={selection} verbs={OF_MANY} about={`group ${group.type} ${error}`} /> : null}
    >
      <Answered answer={groups}>
        {() => (group ? <Counted group={group} /> : <Note>{`No message of error group ${error} is in ${place ?? "this queue"} any more.`}</Note>)}
      </Answered>
      <HStack wrap="wrap" gap="4" marginTop="2" fontSize="sm">
        {group ? <Go to={{ ...here, sub_queue: place ?? EVERYWHERE, selection: JSON.stringify({ error }) }}>{`Its ${many(group.messages, "message")}`}</Go> : null}
        <Go to={{ ...here, view: "groups", sub_queue: place ?? EVERYWHERE }}>All error groups</Go>
      </HStack>
      <Answered answer={samples} lines={5}>
        {({ samples: found }) =>
          found.length ? (
            <>
              <Boundary>
                <SampleBodies queue={queue} samples={found} />
              </Boundary>
              {rights.act && group ? (
                <Boundary>
                  <EditBench queue={queue} place={place} group={group} ids={found.map(({ lookup_id: id }) => id)} />
                </Boundary>
              ) : null}
            </>
          ) : (
            <Quiet>No message.</Quiet>
          )
        }
      </Answered>
    </Section>
  );
}

function Counted({ group }: { readonly group: ErrorGroup }) {
  const facts = {
    error: <Long>{group.text}</Long>,
    messages: `${count(group.messages)}, ${percent(group.share)} of all`,
    first_seen: (
      <>
        <Time at={group.first_seen} />
        {group.new ? ", new since yesterday" : ""}
      </>
    ),
    last_seen: <Time at={group.last_seen} />,
    trend: <Sparkline label={`messages of ${group.type} from first to last`} values={group.trend} />,
    error_group: group.error,
  };
  return <Facts label="Error group" facts={facts} />;
}
