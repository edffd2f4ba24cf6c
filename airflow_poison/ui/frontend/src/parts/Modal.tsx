import { CloseButton, Dialog, Portal } from "@chakra-ui/react";
import type { ReactNode } from "react";

interface Props {
  readonly title: ReactNode;
  readonly onClose: () => void;
  readonly footer: ReactNode;
  readonly busy?: boolean;
  readonly wide?: boolean;
  readonly children: ReactNode;
}

/** A dialog above the page. While it is `busy` nothing closes it. */
export function Modal({ title, onClose, footer, busy = false, wide = false, children }: Props) {
  return (
    <Dialog.Root
      open
      size={{ base: "full", md: wide ? "xl" : "lg" }}
      scrollBehavior="inside"
      closeOnEscape={!busy}
      closeOnInteractOutside={false}
      onOpenChange={({ open }) => {
        if (!open && !busy) onClose();
      }}
    >
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content>
            <Dialog.Header>
              <Dialog.Title overflowWrap="anywhere">{title}</Dialog.Title>
            </Dialog.Header>
            <Dialog.Body>{children}</Dialog.Body>
            <Dialog.Footer flexWrap="wrap">{footer}</Dialog.Footer>
            <Dialog.CloseTrigger asChild>
              <CloseButton size="sm" aria-label="Close" disabled={busy} />
            </Dialog.CloseTrigger>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}
