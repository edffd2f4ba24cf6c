import type { Instant } from "../api/types";
import { timeIn, timeInUtc, useZone } from "../lib/zone";

/** An instant in the zone of Airflow's UI; its title has it in UTC. */
export function Time({ at }: { readonly at: Instant | null | undefined }) {
  const zone = useZone();
  if (!at) return null;
  return (
    <time dateTime={at} title={timeInUtc(at)}>
      {timeIn(zone, at)}
    </time>
  );
}
