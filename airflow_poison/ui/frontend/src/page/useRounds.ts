import { useEffect, useState } from "react";

import { REFRESH_SECONDS } from "../api/question";

export interface Rounds {
  readonly round: number;
  readonly insisted: number;
  readonly refresh: () => void;
}

/** Count refreshes: one every 15 seconds while the page is visible, and one whenever somebody wants it. */
export function useRounds(): Rounds {
  const [round, setRound] = useState(0);
  const [insisted, setInsisted] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") setRound((number) => number + 1);
    }, REFRESH_SECONDS * 1000);
    return () => {
      clearInterval(timer);
    };
  }, []);
  return {
    round,
    insisted,
    refresh: () => {
      setInsisted((number) => number + 1);
    },
  };
}
