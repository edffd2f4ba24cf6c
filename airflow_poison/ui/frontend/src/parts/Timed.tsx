import { timesIn, useZone } from "../lib/zone";

import { Long } from "./Long";

/** A text of the server whose instants are shown in the zone of Airflow's UI. */
export function Timed({ children, most = 300 }: { readonly children: string; readonly most?: number }) {
  const zone = useZone();
  return <Long most={most}>{timesIn(zone, children)}</Long>;
}
