import { Box, Flex, Text } from "@chakra-ui/react";
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
    <Box className="tile" borderWidth="1px" borderColor={current ? "blue.fg" : "border"} outline={current ? "1px solid" : "none"} outlineColor="blue.fg" borderRadius="md" paddingX="2" paddingY="1" minWidth="0" fontSize="sm">
      <Flex wrap="wrap" columnGap="2" justify="space-between" align="baseline">
        <Go to={to} current={current}>
          {name}
        </Go>
        {number === undefined ? null : (
          <Text as="strong" fontVariantNumeric="tabular-nums" overflowWrap="anywhere">
            {count(number)}
          </Text>
        )}
      </Flex>
      <Text color="fg.muted" fontSize="xs">
        {note}
      </Text>
      {children}
    </Box>
  );
}
