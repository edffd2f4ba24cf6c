import type { WholeMessage } from "../api/types";
import { bytesOf, isJson } from "../lib/body";

function ending({ body, body_encoding: encoding }: WholeMessage): string {
  if (encoding === "base64") return "bin";
  if (isJson(body)) return "json";
  return body.trimStart().startsWith("<") ? "xml" : "txt";
}

/** Give the body of a message to the browser as a file. */
export function download(queue: string, message: WholeMessage): void {
  const url = URL.createObjectURL(new Blob([bytesOf(message)], { type: "application/octet-stream" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: `${queue}-${message.lookup_id}.${ending(message)}` });
  link.click();
  URL.revokeObjectURL(url);
}
