import type { Queue, SubQueue } from "../api/types";
import { parseFilter } from "../lib/selection";
import { usePlace } from "../page/usePlace";
import { Go } from "../parts/Go";
import { Long } from "../parts/Long";
import { Note } from "../parts/Note";
import { Section } from "../parts/Section";

import { Groups } from "./Groups";
import { Messages } from "./Messages";

/** A sub-queue, or null for all: its largest error groups where messages have failed, and its messages. */
export function PlaceView({ queue, place }: { readonly queue: Queue; readonly place: SubQueue | null }) {
  const { query } = usePlace();
  const wanted = query.get("selection");
  const filter = parseFilter(wanted);
  if (filter === null) {
    return (
      <Section title="Messages">
        <Note status="error">
        selection=“<Long>{wanted ?? ""}</Long>” in the address is no filter: expected a JSON object with conditions, such as {'{"error_type": "KeyError"}'}. No message is shown, and
        nothing can be done. <Go to={{ ...Object.fromEntries(query), selection: undefined }}>Show the messages without a filter</Go>
        </Note>
      </Section>
    );
  }
  const failed = !Object.keys(filter).length && (place === "poison" || place === "retry") && queue.sub_queues[place].messages > 0;
  return (
    <>
      {failed ? <Groups queue={queue.queue} place={place} most={5} /> : null}
      <Messages queue={queue.queue} place={place} filter={filter} now={queue.at} />
    </>
  );
}
