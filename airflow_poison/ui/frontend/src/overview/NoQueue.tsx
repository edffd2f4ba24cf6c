import { EmptyState } from "@chakra-ui/react";

const ABSENT =
  "The folder of this store does not exist where the API server runs. The first send makes it. If it was there before, mount it there, or correct " +
  "the store's root in the connection; the log of the API server says which folder it is.";

/** A store without a queue, and what makes the first one. */
export function NoQueue({ exists }: { readonly exists: boolean }) {
  return (
    <EmptyState.Root role="status">
      <EmptyState.Content>
        <EmptyState.Title>{exists ? "This store has no queue" : "No queue yet"}</EmptyState.Title>
        <EmptyState.Description textAlign="center">{exists ? "The first send to one makes it." : ABSENT}</EmptyState.Description>
      </EmptyState.Content>
    </EmptyState.Root>
  );
}
