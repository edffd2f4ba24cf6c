import type { Queue, SubQueue } from "../api/types";

import { Groups } from "./Groups";
import { Messages } from "./Messages";

/** A sub-queue, or null for all: its largest error groups where messages have failed, and its messages. */
export function PlaceView({ queue, place }: { readonly queue: Queue; readonly place: SubQueue | null }) {
  const failed = (place === "poison" || place === "retry") && queue.sub_queues[place].messages > 0;
  return (
    <>
      {failed ? <Groups queue={queue.queue} place={place} most={5} /> : null}
      <Messages queue={queue.queue} place={place} now={queue.at} />
    </>
  );
}
