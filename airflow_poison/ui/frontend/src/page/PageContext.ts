import { createContext, useContext } from "react";

import type { Rights } from "../api/types";

/** What all parts of the page share. `round` grows with each refresh, `insisted` with each one that somebody wanted. */
export interface PageState {
  readonly connId: string;
  readonly round: number;
  readonly insisted: number;
  readonly refresh: () => void;
  readonly rights: Rights;
}

export const NO_RIGHTS: Rights = { read: false, act: false, unmask: false };

export const PageContext = createContext<PageState>({ connId: "", round: 0, insisted: 0, refresh: () => undefined, rights: NO_RIGHTS });

export function usePage(): PageState {
  return useContext(PageContext);
}
