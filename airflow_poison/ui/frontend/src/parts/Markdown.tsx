import { Box, Code as InlineCode, Table, Text } from "@chakra-ui/react";

import { inlinesOf, type Block } from "../lib/markdown";
import { timesIn, useZone } from "../lib/zone";

import { Code } from "./Code";

/** Blocks of a question. Nothing of it is HTML. */
export function Markdown({ blocks }: { readonly blocks: readonly Block[] }) {
  return (
    <Box display="flex" flexDirection="column" gap="2">
      {blocks.map((block, number) => (
        <Shown key={`${number} ${block.kind}`} block={block} number={number + 1} />
      ))}
    </Box>
  );
}

function Shown({ block, number }: { readonly block: Block; readonly number: number }) {
  switch (block.kind) {
    case "paragraph":
      return (
        <Text fontSize="sm" whiteSpace="pre-wrap" overflowWrap="anywhere">
          <Line>{block.line}</Line>
        </Text>
      );
    case "code":
      return (
        <Code label={`Quoted, part ${number}`} height="14rem">
          {block.text}
        </Code>
      );
    case "list":
      return (
        <Box as="ul" paddingStart="5" listStyleType="disc" fontSize="sm" overflowWrap="anywhere">
          {block.items.map((item) => (
            <li key={item}>
              <Line>{item}</Line>
            </li>
          ))}
        </Box>
      );
    case "table":
      return (
        <Table.Root size="sm" variant="outline" width="auto" maxWidth="full">
          <Table.Body>
            {block.rows.map((cells) => (
              <Table.Row key={cells.join("|")}>
                {cells.map((cell, place) => (
                  <Table.Cell key={`${place} ${cell}`} overflowWrap="anywhere" color={place ? "fg" : "fg.muted"} paddingY="1">
                    <Line>{cell}</Line>
                  </Table.Cell>
                ))}
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      );
  }
}

/** One line of Markdown. */
export function Line({ children }: { readonly children: string }) {
  const zone = useZone();
  return inlinesOf(children).map(({ kind, text }, number) => {
    const key = `${number} ${kind}`;
    if (kind === "bold") return <strong key={key}>{text}</strong>;
    return kind === "code" ? (
      <InlineCode key={key} size="sm" whiteSpace="pre-wrap" overflowWrap="anywhere">
        {text}
      </InlineCode>
    ) : (
      <span key={key}>{timesIn(zone, text)}</span>
    );
  });
}
