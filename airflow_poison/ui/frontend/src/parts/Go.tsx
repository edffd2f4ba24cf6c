import { Link } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

import { rememberClick } from "../page/useKeptPlace";

/** Where a link leads: the query of the page's address. */
export type To = Readonly<Record<string, string | number | undefined>>;

export function searchOf(to: To): string {
  const set = Object.entries(to).filter((entry): entry is [string, string | number] => entry[1] !== undefined && entry[1] !== "");
  return `?${new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString()}`;
}

interface Props {
  readonly to: To;
  readonly label?: string;
  readonly current?: boolean;
  /** It looks like the text around it, and is underlined when it is pointed at. */
  readonly quiet?: boolean;
  readonly children: ReactNode;
}

/** A link to another view of the page. */
export function Go({ to, label, current, quiet = false, children }: Props) {
  return (
    <Link asChild color={quiet ? "fg" : "blue.fg"} textDecoration={quiet ? "none" : "underline"} _hover={{ textDecoration: "underline" }} textUnderlineOffset="2px" overflowWrap="anywhere">
      <RouterLink to={{ search: searchOf(to) }} onClick={rememberClick} aria-label={label} aria-current={current ? "page" : undefined}>
        {children}
      </RouterLink>
    </Link>
  );
}
