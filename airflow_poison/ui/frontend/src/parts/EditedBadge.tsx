import { Badge } from "@chakra-ui/react";

/** A mark on a message whose body or properties somebody has changed. */
export function EditedBadge() {
  return (
    <Badge colorPalette="teal" variant="surface" title="Its body or properties were changed; its page has the difference.">
      edited
    </Badge>
  );
}
