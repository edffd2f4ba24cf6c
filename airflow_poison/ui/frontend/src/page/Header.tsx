import { Button, Flex, Heading, Spacer } from "@chakra-ui/react";

import type { ReactNode } from "react";

import { Go } from "../parts/Go";

import { ConnectionForm } from "./ConnectionForm";
import { usePage } from "./PageContext";

/** One row: the title of the page, what belongs to its queue, its connection, and Refresh. */
export function Header({ queue, children }: { readonly queue: string | null; readonly children?: ReactNode }) {
  const { connId, refresh } = usePage();
  return (
    <Flex wrap="wrap" columnGap="3" rowGap="1" align="center" marginBottom="2">
      {queue === null ? null : (
        <nav aria-label="Up">
          <Go to={{ conn_id: connId }}>Queues</Go> <span aria-hidden>/</span>
        </nav>
      )}
      <Heading as="h1" size="md" tabIndex={-1} overflowWrap="anywhere">
        {queue ?? "Queues"}
      </Heading>
      {children}
      <Spacer />
      <ConnectionForm key={connId} />
      <Button size="xs" variant="outline" onClick={refresh}>
        Refresh
      </Button>
    </Flex>
  );
}
