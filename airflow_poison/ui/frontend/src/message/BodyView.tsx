import { Button, HStack } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import type { WholeMessage } from "../api/types";
import { bytesOf, hexDump, isExact, pretty, type Form } from "../lib/body";
import { count, many } from "../lib/words";
import { Code } from "../parts/Code";
import { CopyButton } from "../parts/CopyButton";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";

import { download } from "./download";

interface Props {
  readonly queue: string;
  readonly message: WholeMessage;
  readonly masked: readonly string[];
}

const NAMES: Readonly<Record<Form, string>> = { pretty: "Laid out", plain: "As it is", hex: "Hex" };

/** The body of a message: laid out, as it is, or as bytes; to be copied and downloaded. */
export function BodyView({ queue, message, masked }: Props) {
  const { body, body_encoding: encoding, body_bytes: bytes, body_cut: cut } = message;
  const isText = encoding !== "base64";
  const laidOut = useMemo(() => (isText ? pretty(body) : null), [isText, body]);
  const [wanted, setForm] = useState<Form>(laidOut === null ? (isText ? "plain" : "hex") : "pretty");
  const forms: Form[] = [...(laidOut === null ? [] : (["pretty"] as const)), "plain", "hex"];
  const form = forms.includes(wanted) ? wanted : "plain";
  const shown = useMemo(
    () => (form === "pretty" ? (laidOut ?? body) : form === "hex" ? hexDump(bytesOf({ body, body_encoding: encoding })) : body),
    [form, laidOut, body, encoding],
  );
  const what = encoding === "base64" ? ", no text: “As it is” is Base64" : encoding === "text" ? "" : `, XML in ${encoding}`;
  return (
    <Section
      title={`Body: ${many(bytes, "byte")}${what}${cut ? ", only its beginning" : ""}`}
      actions={
        <HStack wrap="wrap" role="group" aria-label="Body">
          {forms.map((each) => (
            <Button
              key={each}
              size="xs"
              variant={each === form ? "solid" : "outline"}
              aria-pressed={each === form}
              onClick={() => {
                setForm(each);
              }}
            >
              {NAMES[each]}
            </Button>
          ))}
          <CopyButton text={shown} />
          <Button
            size="xs"
            variant="outline"
            onClick={() => {
              download(queue, message);
            }}
          >
            Download
          </Button>
        </HStack>
      }
    >
      {masked.length ? <Quiet>{`${many(masked.length, "value")} hidden: ${masked.join(", ")}`}</Quiet> : null}
      {isExact(message) ? null : <Quiet>{inexact(message)}</Quiet>}
      <Code label="Body">{shown}</Code>
    </Section>
  );
}

function inexact({ body_cut: cut, body_bytes: bytes, body_encoding: encoding }: WholeMessage): string {
  if (cut) return `Only the beginning of ${count(bytes)} bytes is shown, copied and downloaded; airflow poison show has all of them.`;
  if (encoding !== "text") return "It is shown, copied and downloaded in UTF-8.";
  return "It holds signs that cannot be seen, which stand here as escapes such as \\x1b, also in a copy and a download; or values are hidden.";
}
