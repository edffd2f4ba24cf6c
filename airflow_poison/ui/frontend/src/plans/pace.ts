import type { Canary } from "../api/plans";
import { count, percent } from "../lib/words";

interface Pace {
  readonly rate?: number | null;
  readonly chunk?: number | null;
  readonly canary?: Canary | null;
}

/** How a plan goes on, in words. */
export function paceInWords({ rate, chunk, canary }: Pace): string {
  const words = [
    canary && `canary: ${count(canary.messages)} first, goes on when ${percent(canary.share)} of them are settled`,
    rate && `at most ${count(rate)} a second`,
    chunk && `${count(chunk)} in one commit`,
  ].filter(Boolean);
  return words.join("; ") || "as fast as it goes";
}
