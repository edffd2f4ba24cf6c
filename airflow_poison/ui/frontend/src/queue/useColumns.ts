import { useState } from "react";

import { SHOWN_AT_FIRST } from "./messageColumns";

const KEY = "airflow-poison.columns";

function stored(): readonly string[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "null");
    return Array.isArray(found) && found.every((each) => typeof each === "string") ? found : SHOWN_AT_FIRST;
  } catch {
    return SHOWN_AT_FIRST;
  }
}

/** The names of the columns of messages that this browser shows, and a way to choose others. */
export function useColumns(): readonly [readonly string[], (names: readonly string[]) => void] {
  const [names, setNames] = useState(stored);
  const choose = (chosen: readonly string[]) => {
    setNames(chosen);
    try {
      localStorage.setItem(KEY, JSON.stringify(chosen));
    } catch {
      // no storage: the choice lasts as long as the page
    }
  };
  return [names, choose];
}
