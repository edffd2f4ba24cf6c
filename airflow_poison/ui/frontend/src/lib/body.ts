/** Bodies of messages: what kind of text they are, laid out for reading, and as bytes. */

import { applyEdits, format, parse, type ParseError } from "jsonc-parser";
import formatXml from "xml-formatter";

import type { Body } from "../api/types";

export type Form = "pretty" | "plain" | "hex";

const BYTES_IN_HEX = 16 * 1024;

const DEEPEST = 200;
const JSON_TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{}]/g;
const XML_TOKENS = /<\/|\/>|<(?![!?])/g;
const STEPS: Readonly<Record<string, number>> = { "[": 1, "{": 1, "<": 1, "]": -1, "}": -1, "</": -1, "/>": -1 };

/** Whether a text is nested so deeply that laying it out takes more than the browser's stack, or megabytes of spaces. */
function isDeep(text: string, tokens: RegExp): boolean {
  let depth = 0;
  for (const [token] of text.matchAll(tokens)) {
    depth += STEPS[token] ?? 0;
    if (depth > DEEPEST) return true;
  }
  return false;
}

export function isJson(text: string): boolean {
  if (isDeep(text, JSON_TOKENS)) return false;
  const errors: ParseError[] = [];
  parse(text, errors, { disallowComments: true });
  return errors.length === 0 && text.trim() !== "";
}

/** Lay out JSON or XML; null for what is neither, or nested too deeply. JSON keeps its text: numbers of any length and repeated names stay as they are. */
export function pretty(text: string): string | null {
  const begin = text.trimStart()[0] ?? "";
  if ((begin === "{" || begin === "[") && isJson(text)) return applyEdits(text, format(text, undefined, { insertSpaces: true, tabSize: 2 }));
  if (begin !== "<" || isDeep(text, XML_TOKENS)) return null;
  try {
    return formatXml(text, { indentation: "  ", collapseContent: true, lineSeparator: "\n", strictMode: true });
  } catch {
    return null;
  }
}

/** The bytes that a body was shown from. */
export function bytesOf({ body, body_encoding: encoding }: Body): Uint8Array<ArrayBuffer> {
  if (encoding !== "base64") return new TextEncoder().encode(body);
  const binary = atob(body);
  return Uint8Array.from(binary, (sign) => sign.charCodeAt(0));
}

/** Whether the text is the body, byte for byte. The server shows escapes for signs that cannot be seen, which makes the text longer. */
export function isExact(message: Body & { readonly body_bytes: number; readonly body_cut: boolean }): boolean {
  return !message.body_cut && (message.body_encoding === "text" || message.body_encoding === "base64") && bytesOf(message).length === message.body_bytes;
}

/** Bytes as lines of offset, 16 bytes in hexadecimal, and their ASCII signs. */
export function hexDump(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let offset = 0; offset < Math.min(bytes.length, BYTES_IN_HEX); offset += 16) {
    const line = [...bytes.subarray(offset, offset + 16)];
    const hex = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const signs = line.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${offset.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${signs}`);
  }
  if (bytes.length > BYTES_IN_HEX) lines.push(`… of ${bytes.length} bytes`);
  return lines.join("\n");
}
