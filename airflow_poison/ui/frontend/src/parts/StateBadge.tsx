import { Badge } from "@chakra-ui/react";

/** The state of a queue: enabled, or what is wrong. */
export function StateBadge({ state }: { readonly state: string }) {
  return (
    <Badge colorPalette={state === "enabled" ? "green" : "red"} variant="surface" size="sm">
      {state}
    </Badge>
  );
}
