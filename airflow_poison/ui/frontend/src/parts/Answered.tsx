import { Skeleton, Stack, Text, VisuallyHidden } from "@chakra-ui/react";
import type { ReactNode } from "react";

import type { Answer } from "../api/question";
import { useZone, timeIn } from "../lib/zone";

import { Boundary } from "./Boundary";
import { Note } from "./Note";

interface Props<T> {
  readonly answer: Answer<T>;
  readonly lines?: number;
  readonly children: (found: T) => ReactNode;
}

/** What was read, or that it is being read, cannot be read, or is old. */
export function Answered<T>({ answer, lines = 3, children }: Props<T>) {
  const { found, at, error, late } = answer;
  const zone = useZone();
  if (found === undefined && error !== undefined) return <Note status="error">{error}</Note>;
  if (found === undefined) return <Reading late={Boolean(late)} lines={lines} />;
  const from = at ? `From ${timeIn(zone, at)}. ` : "";
  return (
    <>
      {error !== undefined ? <Note status="warning">{`${from}The last try to read it again has failed: ${error}`}</Note> : null}
      {error === undefined && late ? <Note>{`${from}A newer answer takes long and is on its way.`}</Note> : null}
      <Boundary>
        <Shown found={found}>{children}</Shown>
      </Boundary>
    </>
  );
}

/** What was read, in a component of its own: a boundary catches what fails below it alone. */
function Shown<T>({ found, children }: { readonly found: T; readonly children: (found: T) => ReactNode }) {
  return children(found);
}

function Reading({ late, lines }: { readonly late: boolean; readonly lines: number }) {
  return (
    <div role="status" data-reading>
      {late ? <Text color="fg.muted">Reading … this takes long.</Text> : <VisuallyHidden>Reading …</VisuallyHidden>}
      <Stack gap="2" aria-hidden>
        {Array.from({ length: lines }, (_, line) => (
          <Skeleton key={line} height="6" width={line === lines - 1 ? "60%" : "full"} />
        ))}
      </Stack>
    </div>
  );
}
