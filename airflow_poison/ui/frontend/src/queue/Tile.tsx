import { Box, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

import { count } from "../lib/words";
import { Go, type To } from "../parts/Go";

interface Props {
  readonly name: string;
  readonly to: To;
  readonly current: boolean;
  readonly number?: number | undefined;
  readonly note: string;
  readonly children?: ReactNode;
}

/** One part of a queue: its name as a link, how much is in it, and a note. */
export function Tile({ name, to, current, number, note, children }: Props) {
  return (
    <Box className="tile" borderWidth="1px" borderColor={current ? "blue.fg" : "border"} outline={current ? "1px solid" : "none"} outlineColor="blue.fg" borderRadius="md" padding="2" minWidth="0" fontSize="sm">
      <Go to={to} current={current}>
        {name}
      </Go>
      {number === undefined ? null : (
        <Text as="strong" display="block" fontSize="xl" fontVariantNumeric="tabular-nums" overflowWrap="anywhere">
          {count(number)}
        </Text>
      )}
      <Text color="fg.muted" fontSize="xs">
        {note}
      </Text>
      {children}
    </Box>
  );
}
