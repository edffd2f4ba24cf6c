import { Box, Button } from "@chakra-ui/react";
import { useState } from "react";

import { count } from "../lib/words";

interface Props {
  readonly children: string;
  readonly most?: number;
}

/** A text of somebody else's, of any length: cut, and whole in place when somebody wants it. */
export function Long({ children: text, most = 500 }: Props) {
  const [whole, setWhole] = useState(false);
  if (text.length <= most) return text;
  return (
    <Box as="span" display="block" minWidth="6rem" maxHeight="26rem" overflow="auto" overflowWrap="anywhere" whiteSpace="pre-wrap">
      {whole ? text : `${text.slice(0, most).replace(/[\uD800-\uDBFF]$/, "")}…`}{" "}
      <Button
        size="2xs"
        variant="outline"
        aria-expanded={whole}
        onClick={() => {
          setWhole(!whole);
        }}
      >
        {whole ? "Show less" : `Show all ${count(text.length)} characters`}
      </Button>
    </Box>
  );
}
