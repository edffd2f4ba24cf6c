import type { Outage, Queue } from "../api/types";
import { usePage } from "../page/PageContext";
import { Go } from "../parts/Go";
import { Long } from "../parts/Long";
import { Note } from "../parts/Note";
import { Time } from "../parts/Time";

/** Why nothing is received from a queue, and what will become of it. */
export function Halts({ queue }: { readonly queue: Queue }) {
  const poison = `${queue.queue};poison`;
  return (
    <>
      <OutageNote who={queue.queue} outage={queue.outage} />
      <OutageNote who={poison} outage={queue.poison_outage} />
      <Halt who={queue.queue} state={queue.state} reason={queue.reason} queue={queue} />
      <Halt who={poison} state={queue.poison_state} reason={queue.poison_reason} queue={queue} />
      {queue.blocked_until ? (
        <Note status="error">
          {queue.queue} is blocked until{" "}
          {queue.blocked_until === "restart" ? "its broker is restarted or the message is removed" : <Time at={queue.blocked_until} />}
          {queue.obstacle ? ` (${queue.obstacle})` : ""}.
        </Note>
      ) : null}
      {queue.expired_claims ? <Note status="warning">A pass has died. The next receive finishes what it left.</Note> : null}
    </>
  );
}

function OutageNote({ who, outage }: { readonly who: string; readonly outage: Outage | null }) {
  if (!outage) return null;
  return (
    <Note status="error">
      {who} has an outage since <Time at={outage.since} />, no poison: nothing is charged. The next probe is due at <Time at={outage.next_probe_at} />.
    </Note>
  );
}

interface HaltProps {
  readonly who: string;
  readonly state: string;
  readonly reason: string | null;
  readonly queue: Queue;
}

function Halt({ who, state, reason, queue }: HaltProps) {
  const { connId } = usePage();
  if (state === "enabled") return null;
  return (
    <Note status="error">
      <Long>{`${who} is ${state}: ${reason ?? ""}`.trimEnd()}</Long>
      {reason ? " " : " it was set so by hand "}
      {queue.halted_by === null ? null : (
        <Go to={{ conn_id: connId, queue: queue.queue, lookup_id: queue.halted_by }}>{`Look at message ${queue.halted_by}.`}</Go>
      )}
    </Note>
  );
}
