import { Box } from "@chakra-ui/react";

interface Props {
  readonly label: string;
  readonly children: string;
  readonly height?: string;
}

/** A text of somebody else's, as it is. It can be scrolled with the keyboard. */
export function Code({ label, children, height = "26rem" }: Props) {
  return (
    <Box
      asChild
      margin="0"
      padding="3"
      maxHeight={height}
      overflow="auto"
      whiteSpace="pre-wrap"
      overflowWrap="anywhere"
      borderWidth="1px"
      borderRadius="md"
      background="bg.muted"
      color="fg"
      fontFamily="mono"
      fontSize="xs"
    >
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- what scrolls must be reached by keyboard */}
      <pre tabIndex={0} role="region" aria-label={label}>
        {children}
      </pre>
    </Box>
  );
}
