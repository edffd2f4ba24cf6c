import type { ReactNode } from "react";

import type { WholeMessage } from "../api/types";
import { Facts } from "../parts/Facts";
import { Section } from "../parts/Section";
import { Time } from "../parts/Time";

const EDITS = "poison.edits"; // the property with earlier bodies, which the difference shows
const ELSEWHERE = new Set(["body", "body_encoding", "body_bytes", "body_cut", "last_error", "reason", "properties"]);

/** The counts and columns of a message, and its properties. */
export function MessageFacts({ message }: { readonly message: WholeMessage }) {
  const columns = Object.entries(message).filter(([name, value]) => !ELSEWHERE.has(name) && value !== null && value !== "");
  const { last_error: error } = message;
  const facts = Object.fromEntries<ReactNode | object>([
    ...columns.map(([name, value]): [string, ReactNode] => [name, name.endsWith("_at") ? <Time at={String(value)} /> : (value as ReactNode)]),
    ...(error?.type ? [["error type", error.type] as const] : []),
    ...(error?.fingerprint ? [["error group", error.fingerprint] as const] : []),
    ...Object.entries(message.properties)
      .filter(([name]) => name !== EDITS)
      .map(([name, value]) => [`property ${name}`, value] as const),
  ]);
  return (
    <Section title="Counts and columns">
      <Facts label="Counts and columns" facts={facts} />
    </Section>
  );
}
