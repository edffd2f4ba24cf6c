import { Box } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";

import { Overview } from "./overview/Overview";
import { DEFAULT_CONNECTION } from "./page/connection";
import { Header } from "./page/Header";
import { NO_RIGHTS, PageContext } from "./page/PageContext";
import { RightsProvider } from "./page/RightsProvider";
import { useKeptPlace } from "./page/useKeptPlace";
import { useRounds } from "./page/useRounds";
import { Boundary } from "./parts/Boundary";
import { EDGES } from "./parts/edges";
import { QueuePage } from "./queue/QueuePage";

/** The page of queues: all of a connection, or one. */
export function App() {
  const [query] = useSearchParams();
  const rounds = useRounds();
  const kept = useKeptPlace();
  const connId = query.get("conn_id") || DEFAULT_CONNECTION; // eslint-disable-line @typescript-eslint/prefer-nullish-coalescing -- an empty one, too
  const queue = query.get("queue");
  return (
    <PageContext value={{ connId, rights: NO_RIGHTS, ...rounds }}>
      <RightsProvider>
        <Box as="main" className="poison" height="full" overflow="auto" paddingX={{ base: "3", md: "5" }} paddingTop="2" paddingBottom="12" color="fg" css={EDGES} {...kept}>
          {queue === null ? <Header queue={null} /> : null}
          <Boundary>{queue === null ? <Overview /> : <QueuePage key={queue} name={queue} />}</Boundary>
        </Box>
      </RightsProvider>
    </PageContext>
  );
}
