/** The Markdown of questions (`operators/question.py`): paragraphs, tables, lists, code and bold texts. Everything else is text. */

export interface Inline {
  readonly kind: "text" | "code" | "bold";
  readonly text: string;
}

export type Block =
  | { readonly kind: "paragraph"; readonly line: string }
  | { readonly kind: "code"; readonly text: string }
  | { readonly kind: "list"; readonly items: readonly string[] }
  | { readonly kind: "table"; readonly rows: readonly (readonly string[])[] };

const FENCE = /^(`{3,})[^`]*$/;
const ITEM = /^[*-] +/;

/** A text as blocks. A fence that nothing ends reaches to the end. */
export function blocksOf(text: string): Block[] {
  const blocks: Block[] = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) {
    const line = lines[at] ?? "";
    const fence = FENCE.exec(line)?.[1];
    const end = lines.findIndex((each, place) => place > at && !continues(line, each));
    const until = end < 0 ? lines.length : end;
    if (fence !== undefined) {
      const close = lines.findIndex((each, place) => place > at && each.trim() === fence);
      blocks.push({ kind: "code", text: lines.slice(at + 1, close < 0 ? lines.length : close).join("\n") });
      at = close < 0 ? lines.length : close + 1;
      continue;
    }
    const part = lines.slice(at, until);
    if (line.startsWith("|")) blocks.push({ kind: "table", rows: part.map(cellsOf).filter((cells) => cells.some((cell) => !/^:?-*:?$/.test(cell))) });
    else if (ITEM.test(line)) blocks.push({ kind: "list", items: part.map((each) => each.replace(ITEM, "")) });
    else if (line.trim()) blocks.push({ kind: "paragraph", line: part.join("\n") });
    at = until;
  }
  return blocks;
}

function continues(first: string, line: string): boolean {
  if (first.startsWith("|")) return line.startsWith("|");
  if (ITEM.test(first)) return ITEM.test(line);
  return line.trim() !== "" && first.trim() !== "" && !line.startsWith("|") && !ITEM.test(line) && !FENCE.test(line);
}

function cellsOf(line: string): string[] {
  return line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** A line as texts, code and bold texts. */
export function inlinesOf(line: string): Inline[] {
  const found: Inline[] = [];
  let rest = line;
  while (rest) {
    const match = /(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)|\*\*(.+?)\*\*/s.exec(rest);
    if (!match) break;
    if (match.index) found.push({ kind: "text", text: rest.slice(0, match.index) });
    found.push(match[2] === undefined ? { kind: "bold", text: match[3] ?? "" } : { kind: "code", text: match[2].trim() });
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest) found.push({ kind: "text", text: rest });
  return found;
}

/** What a question says of its options, `* **option**: meaning`, and the question without that. */
export function explained(text: string, options: readonly string[]): { readonly blocks: readonly Block[]; readonly meanings: ReadonlyMap<string, string> } {
  const meanings = new Map<string, string>();
  const blocks = blocksOf(text).filter((block) => {
    if (block.kind !== "list") return true;
    const found = block.items.map((item) => /^\*\*(.+?)\*\*: (.*)$/s.exec(item));
    if (!found.every((match) => match && options.includes(match[1] ?? ""))) return true;
    for (const match of found) meanings.set(match?.[1] ?? "", match?.[2] ?? "");
    return false;
  });
  return { blocks, meanings };
}
