import { Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

/** A sentence of less weight. */
export function Quiet({ children }: { readonly children: ReactNode }) {
  return (
    <Text color="fg.muted" fontSize="sm" overflowWrap="anywhere">
      {children}
    </Text>
  );
}
