import { Button, CloseButton, Dialog, Portal, Text } from "@chakra-ui/react";
import { useState, type ReactNode } from "react";

import { EDGES } from "./edges";

interface Props {
  readonly title: ReactNode;
  readonly onClose: () => void;
  readonly footer: ReactNode;
  readonly busy?: boolean;
  readonly wide?: boolean;
  /** Whether somebody has typed something, which nothing must drop unasked. */
  readonly typed?: boolean;
  readonly children: ReactNode;
}

/** A dialog above the page, as high as what it holds. While it is `busy` nothing closes it. */
export function Modal({ title, onClose, footer, busy = false, wide = false, typed = false, children }: Props) {
  const [asking, setAsking] = useState(false);
  return (
    <Dialog.Root
      open
      size={wide ? "xl" : "lg"}
      scrollBehavior="inside"
      closeOnEscape={!busy}
      closeOnInteractOutside={false}
      onOpenChange={({ open }) => {
        if (open || busy) return;
        if (typed) setAsking(!asking);
        else onClose();
      }}
    >
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner padding={{ base: "2", md: "6" }}>
          <Dialog.Content css={EDGES} marginY="0" maxHeight="full" width="full">
            <Dialog.Header paddingEnd="12" paddingBottom="3">
              <Dialog.Title overflowWrap="anywhere" minWidth="0">
                {title}
              </Dialog.Title>
            </Dialog.Header>
            <Dialog.Body>{children}</Dialog.Body>
            <Dialog.Footer flexWrap="wrap" paddingTop="3">
              {asking ? (
                <>
                  <Text role="alert" fontSize="sm" flex="1">
                    What you have typed would be lost.
                  </Text>
                  <Button
                    size="sm"
                    variant="outline"
                    autoFocus // eslint-disable-line jsx-a11y/no-autofocus -- the answer that loses nothing
                    onClick={() => {
                      setAsking(false);
                    }}
                  >
                    Go on typing
                  </Button>
                  <Button size="sm" colorPalette="red" onClick={onClose}>
                    Drop it
                  </Button>
                </>
              ) : (
                footer
              )}
            </Dialog.Footer>
            <Dialog.CloseTrigger asChild>
              <CloseButton size="sm" aria-label="Close" disabled={busy} />
            </Dialog.CloseTrigger>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}
