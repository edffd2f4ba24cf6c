import { HStack, Link } from "@chakra-ui/react";

import type { Links } from "../api/types";
import { safeUrl } from "../lib/url";

/** Where Airflow shows the run and the log of the task that has acted. */
export function TaskLinks({ links, about }: { readonly links: Links | null | undefined; readonly about: string }) {
  const found = [
    { name: "DAG run", url: safeUrl(links?.dag_run) },
    { name: "task log", url: safeUrl(links?.task_log) },
  ];
  return (
    <HStack wrap="wrap">
      {found.map(({ name, url }) =>
        url ? (
          <Link key={name} href={url} color="blue.fg" textDecoration="underline" aria-label={`${name} of ${about}`}>
            {name}
          </Link>
        ) : null,
      )}
    </HStack>
  );
}
