import { useEffect, useSyncExternalStore } from "react";

import { usePage } from "../page/PageContext";

import type { Query } from "./client";
import { questionOf, type Answer } from "./question";

/** Read, and read again with each round of the page; of slow reads only `every` so many rounds. A click on Refresh asks at once. */
export function useAnswer<T>(name: string, query: Query, every = 1): Answer<T> {
  const { connId, round, insisted } = usePage();
  const question = questionOf<T>(name, { conn_id: connId, ...query });
  const turn = Math.floor(round / every);
  useEffect(() => {
    void question.ask();
  }, [question, turn]);
  useEffect(() => {
    if (insisted) void question.ask(true);
  }, [question, insisted]);
  return useSyncExternalStore(question.subscribe, question.current);
}
