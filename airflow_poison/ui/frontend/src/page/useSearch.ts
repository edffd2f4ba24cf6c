import { useState } from "react";

import { usePlace } from "./usePlace";

/** A text that is searched for, also in the address. What is typed is shown at once: the address follows a little later. */
export function useSearch(): readonly [string, (text: string) => void] {
  const { query, change } = usePlace();
  const [text, setText] = useState(query.get("search") ?? "");
  const search = (typed: string) => {
    setText(typed);
    change({ search: typed || undefined, offset: undefined }, { replace: true });
  };
  return [text, search];
}
