/** How much was done at a time, in milliseconds. */
export interface Sight {
  readonly at: number;
  readonly done: number;
}

/** After how many seconds all is done, at the speed between two looks; null when that cannot be said. */
export function leftSeconds(first: Sight, now: Sight, all: number): number | null {
  const seconds = (now.at - first.at) / 1000;
  const done = now.done - first.done;
  return seconds < 1 || done <= 0 ? null : (seconds * (all - now.done)) / done;
}
