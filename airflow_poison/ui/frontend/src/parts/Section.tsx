import { Box, Flex, Heading } from "@chakra-ui/react";
import { useId, type ReactNode } from "react";

interface Props {
  readonly title: ReactNode;
  readonly actions?: ReactNode;
  readonly children: ReactNode;
}

/** A titled part of the page; its heading takes the focus when the link to it is gone. */
export function Section({ title, actions, children }: Props) {
  const id = useId();
  return (
    <Box as="section" aria-labelledby={id} marginTop="5">
      <Flex wrap="wrap" gap="2" align="center" justify="space-between" marginBottom="2">
        <Heading as="h2" size="md" id={id} tabIndex={-1} overflowWrap="anywhere">
          {title}
        </Heading>
        {actions}
      </Flex>
      {children}
    </Box>
  );
}
