import { useSearchParams } from "react-router-dom";

import type { To } from "../parts/Go";

export interface Place {
  readonly query: URLSearchParams;
  /** `replace`: the way back does not stop here. */
  readonly change: (to: To, options?: { readonly replace: boolean }) => void;
}

/** The query of the page's address, and a way to change parts of it: an empty value takes a part away. */
export function usePlace(): Place {
  const [query, setQuery] = useSearchParams();
  const change: Place["change"] = (to, options) => {
    setQuery((before) => {
      const after = new URLSearchParams(before);
      for (const [name, value] of Object.entries(to)) {
        if (value === undefined || value === "") after.delete(name);
        else after.set(name, String(value));
      }
      return after;
    }, options);
  };
  return { query, change };
}
