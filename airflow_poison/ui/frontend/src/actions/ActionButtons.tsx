import { Button, HStack } from "@chakra-ui/react";
import { useState } from "react";

import type { Selection } from "../api/plans";
import type { MessageAnswer } from "../api/types";

import { ActionDialog } from "./ActionDialog";
import { DEEDS, fits, type Deed } from "./verbs";

interface Props {
  readonly queue: string;
  readonly selection: Selection;
  readonly verbs: readonly Deed[];
  readonly about: string;
  readonly one?: MessageAnswer;
  readonly nowrap?: boolean;
}

/** What can be done with a selection of messages; each button opens its plan. */
export function ActionButtons({ queue, selection, verbs, about, one, nowrap = false }: Props) {
  const [deed, setDeed] = useState<Deed | null>(null);
  return (
    <HStack wrap={nowrap ? { base: "wrap", md: "nowrap" } : "wrap"} gap="1.5" role="group" aria-label={`Actions: ${about}`}>
      {verbs
        .filter((each) => fits(each, selection.sub_queue))
        .map((each) => (
          <Button
            key={each}
            size="xs"
            variant="outline"
            colorPalette={DEEDS[each].danger ? "red" : "gray"}
            aria-haspopup="dialog"
            onClick={() => {
              setDeed(each);
            }}
          >
            {`${DEEDS[each].name} …`}
          </Button>
        ))}
      {deed === null ? null : (
        <ActionDialog
          queue={queue}
          selection={selection}
          deed={deed}
          about={about}
          {...(one ? { one } : {})}
          onClose={() => {
            setDeed(null);
          }}
        />
      )}
    </HStack>
  );
}
