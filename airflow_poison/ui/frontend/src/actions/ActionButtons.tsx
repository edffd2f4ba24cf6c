import { Button, HStack, Menu, Portal } from "@chakra-ui/react";
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
  /** So many have buttons, the others are in a menu. */
  readonly first?: number;
}

/** What can be done with a selection of messages; each button opens its plan. */
export function ActionButtons({ queue, selection, verbs, about, one, first = Infinity }: Props) {
  const [deed, setDeed] = useState<Deed | null>(null);
  const fitting = verbs.filter((each) => fits(each, selection.sub_queue));
  const [buttons, others] = [fitting.slice(0, first), fitting.slice(first)];
  return (
    <HStack wrap={others.length ? { base: "wrap", md: "nowrap" } : "wrap"} gap="1.5" role="group" aria-label={`Actions: ${about}`}>
      {buttons.map((each) => (
        <Button
          key={each}
          size="xs"
          variant="outline"
          color={DEEDS[each].danger ? "red.fg" : undefined}
          aria-haspopup="dialog"
          onClick={() => {
            setDeed(each);
          }}
        >
          {`${DEEDS[each].name} …`}
        </Button>
      ))}
      {others.length ? (
        <Menu.Root lazyMount unmountOnExit>
          <Menu.Trigger asChild>
            <Button size="xs" variant="outline" aria-label={`More actions: ${about}`}>
              More
            </Button>
          </Menu.Trigger>
          <Portal>
            <Menu.Positioner>
              <Menu.Content>
                {others.map((each) => (
                  <Menu.Item
                    key={each}
                    value={each}
                    color={DEEDS[each].danger ? "red.fg" : undefined}
                    onClick={() => {
                      setDeed(each);
                    }}
                  >
                    {`${DEEDS[each].name} …`}
                  </Menu.Item>
                ))}
              </Menu.Content>
            </Menu.Positioner>
          </Portal>
        </Menu.Root>
      ) : null}
      {deed === null ? null : (
        <ActionDialog
          key={deed} // a plan is of one action
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
