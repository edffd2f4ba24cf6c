import { Box } from "@chakra-ui/react";
import { diffLines } from "diff";
import { useMemo } from "react";

import { Quiet } from "./Quiet";

interface Props {
  readonly label: string;
  readonly before: string;
  readonly after: string;
}

/** What has changed between two texts, line by line. */
export function Diff({ label, before, after }: Props) {
  const lines = useMemo(() => linesOf(before, after), [before, after]);
  if (before === after) return <Quiet>No difference.</Quiet>;
  return (
    <Box asChild margin="0" padding="2" maxHeight="20rem" overflow="auto" borderWidth="1px" borderRadius="md" fontFamily="mono" fontSize="xs" whiteSpace="pre-wrap" overflowWrap="anywhere">
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- what scrolls must be reached by keyboard */}
      <div tabIndex={0} role="region" aria-label={label}>
        {lines.map(({ text, sign }, number) => (
          <Line key={`${number} ${sign}`} sign={sign} text={text} />
        ))}
      </div>
    </Box>
  );
}

function linesOf(before: string, after: string) {
  return diffLines(before, after).flatMap(({ value, added, removed }) =>
    value
      .replace(/\n$/, "")
      .split("\n")
      .map((text) => ({ text, sign: added ? "+" : removed ? "−" : " " })),
  );
}

function Line({ sign, text }: { readonly sign: string; readonly text: string }) {
  const line = `${sign} ${text}`;
  if (sign === "+") return <Box as="ins" display="block" textDecoration="none" background="bg.success" color="fg">{line}</Box>;
  if (sign === "−") return <Box as="del" display="block" textDecoration="none" background="bg.error" color="fg">{line}</Box>;
  return <Box>{line}</Box>;
}
