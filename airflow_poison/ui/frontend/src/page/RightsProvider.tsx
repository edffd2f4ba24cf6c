import type { ReactNode } from "react";

import type { Rights } from "../api/types";
import { useAnswer } from "../api/useAnswer";

import { NO_RIGHTS, PageContext, usePage } from "./PageContext";

const EVERY = 20; // rounds: rights change rarely, and the server asks for them at every act

/** Tells the page what its user may do. Until it is known, and where it cannot be read, that is nothing. */
export function RightsProvider({ children }: { readonly children: ReactNode }) {
  const page = usePage();
  const { found } = useAnswer<Rights>("rights", {}, EVERY);
  return <PageContext value={{ ...page, rights: found ?? NO_RIGHTS }}>{children}</PageContext>;
}
