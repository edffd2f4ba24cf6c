import { useState } from "react";

import { messageOf } from "../lib/words";

export interface Acting {
  readonly busy: boolean;
  readonly error: string | null;
  readonly run: (deed: () => Promise<void>) => Promise<void>;
}

/** Do something once at a time, and say why it has failed. */
export function useAct(): Acting {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const run = async (deed: () => Promise<void>) => {
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      await deed();
    } catch (caught) {
      setError(messageOf(caught));
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, run };
}
