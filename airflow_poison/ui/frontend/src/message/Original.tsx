import { useMemo } from "react";

import type { Body, WholeMessage } from "../api/types";
import { pretty } from "../lib/body";
import { Diff } from "../parts/Diff";
import { Section } from "../parts/Section";

function useReadable({ body, body_encoding: encoding }: Body): string {
  return useMemo(() => (encoding === "base64" ? body : (pretty(body) ?? body)), [body, encoding]);
}

/** What has been edited: the body beside the one that was sent. */
export function Original({ original, message }: { readonly original: Body; readonly message: WholeMessage }) {
  const [before, after] = [useReadable(original), useReadable(message)];
  return (
    <Section title="Edited: difference to its original">
      <Diff label="Difference to the original body" before={before} after={after} />
    </Section>
  );
}
