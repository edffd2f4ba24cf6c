/** How much was done at a time, in milliseconds. */
export interface Sight {
  readonly at: number;
  readonly done: number;
}

/** How many messages were done in a second between two looks; null when that cannot be said. */
export function perSecond(first: Sight, now: Sight): number | null {
  const seconds = (now.at - first.at) / 1000;
  const done = now.done - first.done;
  return seconds < 1 || done <= 0 ? null : done / seconds;
}

/** After how many seconds all is done, at the speed between two looks; null when that cannot be said. */
export function leftSeconds(first: Sight, now: Sight, all: number): number | null {
  const speed = perSecond(first, now);
  return speed === null ? null : (all - now.done) / speed;
}
