import { EmptyState } from "@chakra-ui/react";

import { Note } from "../parts/Note";

const ABSENT =
  "Its folder is not where the API server runs. If it was there before, mount it, or correct the store's root in the connection; the log of the API " +
  "server says which folder it is. The first send makes the folder of a new store.";

/** A store without a queue, and what makes the first one; or a store that is not there. */
export function NoQueue({ connId, exists }: { readonly connId: string; readonly exists: boolean }) {
  if (!exists) {
    return (
      <Note status="error" title={`The store of connection ${connId} does not exist`}>
        {ABSENT}
      </Note>
    );
  }
  return (
    <EmptyState.Root role="status">
      <EmptyState.Content>
        <EmptyState.Title>{`The store of connection ${connId} has no queue`}</EmptyState.Title>
        <EmptyState.Description textAlign="center">The first send to one makes it.</EmptyState.Description>
      </EmptyState.Content>
    </EmptyState.Root>
  );
}
