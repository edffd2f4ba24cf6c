import { Badge } from "@chakra-ui/react";

import { stateOf } from "./states";

/** The state of a conversation, with the manual's word for it. */
export function ConversationState({ state }: { readonly state: string }) {
  const { word, meaning, color } = stateOf(state);
  return (
    <Badge colorPalette={color} variant="surface" title={meaning}>
      {`${state} ${word}`}
    </Badge>
  );
}
