import type { Body, WholeMessage } from "../api/types";
import { pretty } from "../lib/body";
import { Diff } from "../parts/Diff";
import { Section } from "../parts/Section";

function readable({ body, body_encoding: encoding }: Body): string {
  return encoding === "base64" ? body : (pretty(body) ?? body);
}

/** What has been edited: the body beside the one that was sent. */
export function Original({ original, message }: { readonly original: Body; readonly message: WholeMessage }) {
  return (
    <Section title="Edited: difference to its original">
      <Diff label="Difference to the original body" before={readable(original)} after={readable(message)} />
    </Section>
  );
}
