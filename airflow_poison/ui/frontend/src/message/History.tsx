import { HStack, Link } from "@chakra-ui/react";

import type { HistoryEvent } from "../api/types";
import { safeUrl } from "../lib/url";
import type { Column } from "../parts/column";
import { DataTable } from "../parts/DataTable";
import { Details } from "../parts/Details";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";

/** All that has happened to a message, the newest first, with the runs and the people that did it. */
export function History({ queue, history }: { readonly queue: string; readonly history: readonly HistoryEvent[] }) {
  const columns: Column<HistoryEvent>[] = [
    { key: "at", title: "Time", cell: ({ at }) => <Time at={at} /> },
    { key: "type", title: "Event", cell: ({ type }) => type },
    { key: "details", title: "Details", wide: true, cell: ({ details }) => <Details queue={queue} details={details} /> },
    { key: "links", title: "In Airflow", cell: ({ links, type, at }) => <Places links={links} about={`${type} at ${at}`} /> },
  ];
  return (
    <Section title="History">
      {history.length ? (
        <DataTable caption="History" columns={columns} rows={history.toReversed()} rowKey={({ at, type, details }) => `${at} ${type} ${JSON.stringify(details)}`} />
      ) : (
        <Quiet>Nothing is recorded.</Quiet>
      )}
    </Section>
  );
}

function Places({ links, about }: { readonly links: HistoryEvent["links"]; readonly about: string }) {
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
