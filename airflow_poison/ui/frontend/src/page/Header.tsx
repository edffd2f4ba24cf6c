import { Button, Flex, Heading, Spacer } from "@chakra-ui/react";

import { Go } from "../parts/Go";

import { ConnectionForm } from "./ConnectionForm";
import { usePage } from "./PageContext";

/** The title of the page, its connection, and Refresh. */
export function Header({ queue }: { readonly queue: string | null }) {
  const { connId, refresh } = usePage();
  return (
    <Flex wrap="wrap" columnGap="3" rowGap="2" align="center" marginBottom="3">
      {queue === null ? null : (
        <nav aria-label="Up">
          <Go to={{ conn_id: connId }}>Queues</Go> <span aria-hidden>/</span>
        </nav>
      )}
      <Heading as="h1" size="lg" tabIndex={-1} overflowWrap="anywhere">
        {queue ?? "Queues"}
      </Heading>
      <Spacer />
      <ConnectionForm key={connId} />
      <Button size="xs" variant="outline" onClick={refresh}>
        Refresh
      </Button>
    </Flex>
  );
}
