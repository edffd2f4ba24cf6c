import { Box, Button, Grid, HStack, Stack } from "@chakra-ui/react";
import { useState } from "react";

import { act } from "../api/client";
import type { Plan } from "../api/plans";
import type { ErrorGroup, SubQueue } from "../api/types";
import { ActionDialog } from "../actions/ActionDialog";
import { emptyDraft, madeOf, type DraftProblems } from "../actions/draft";
import { EditFields } from "../actions/EditFields";
import { useAct } from "../actions/useAct";
import { DEEDS, type Deed } from "../actions/verbs";
import { selectionOf } from "../lib/selection";
import { many } from "../lib/words";
import { usePage } from "../page/PageContext";
import { Note } from "../parts/Note";
import { Quiet } from "../parts/Quiet";
import { Section } from "../parts/Section";
import { Samples } from "../plans/Samples";

const DEED = ["edit_redrive", "edit"] as const;

interface Props {
  readonly queue: string;
  readonly place: SubQueue | null;
  readonly group: ErrorGroup;
  readonly ids: readonly number[];
}

/** An edit beside what it makes of samples, before it is planned for all messages of the group. */
export function EditBench({ queue, place, group, ids }: Props) {
  const { connId } = usePage();
  const [draft, setDraft] = useState(() => emptyDraft("edit_redrive", null));
  const [problems, setProblems] = useState<DraftProblems>({});
  const [tried, setTried] = useState<Plan | null>(null);
  const [planning, setPlanning] = useState<Deed | null>(null);
  const { busy, error, run } = useAct();
  const read = () => {
    const found = madeOf(draft);
    setProblems("problems" in found ? found.problems : {});
    return "made" in found ? found.made : null;
  };
  const tryIt = () => {
    const made = read();
    if (made) {
      void run(async () => {
        setTried(await act("plan", connId, { queue, selection: selectionOf(place, { lookup_ids: ids }), action: made.action }));
      });
    }
  };
  return (
    <Section title="Edit them">
      <Grid templateColumns={{ base: "minmax(0, 1fr)", lg: "minmax(0, 1fr) minmax(0, 1fr)" }} gap="4">
        <Stack gap="3">
          <EditFields draft={draft} onChange={setDraft} problems={problems} whole={null} />
          <HStack wrap="wrap">
            <Button size="sm" variant="outline" loading={busy} onClick={tryIt}>
              {`Try it on ${many(ids.length, "sample")}`}
            </Button>
            {DEED.map((deed) => (
              <Button
                key={deed}
                size="sm"
                variant={deed === "edit" ? "outline" : "solid"}
                colorPalette={deed === "edit" ? undefined : "blue"}
                aria-haspopup="dialog"
                onClick={() => {
                  setPlanning(read() && deed);
                }}
              >
                {`${DEEDS[deed].name} ${many(group.messages, "message")} …`}
              </Button>
            ))}
          </HStack>
          <Quiet>Nothing changes yet: what would happen is shown first. A redrive puts 100 messages back before the others.</Quiet>
        </Stack>
        <Box minWidth="0" maxHeight="40rem" overflow="auto" role="group" aria-label="Result on samples">
          {error === null ? null : <Note status="error">{error}</Note>}
          {tried ? <Samples samples={tried.samples} /> : <Quiet>The result stands here, as a difference to each sample.</Quiet>}
        </Box>
      </Grid>
      {planning !== null ? (
        <ActionDialog
          key={planning}
          queue={queue}
          selection={selectionOf(place, { error: group.error })}
          deed={planning}
          about={`group ${group.type} ${group.error}`}
          filled={planning === "edit" ? { ...draft, deed: "edit" } : draft}
          onClose={() => {
            setPlanning(null);
          }}
        />
      ) : null}
    </Section>
  );
}
